"""`gen-durable graph` and `gen-durable check`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gen_durable.cli.root import root

APP = """
from gen_durable import *

class Checkout(Machine[int, None], name="shop/checkout"):
    @step
    async def first(self, ctx): return Next(self.second)
    @step
    async def second(self, ctx): return Done(None)

@job("mail.send")
async def send(address: str) -> None: ...

worker = Worker([Checkout])
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    file = tmp_path / "app.py"
    file.write_text(APP)
    return file


def run(*arguments: object) -> Result:
    return CliRunner().invoke(root, [str(each) for each in arguments])


@pytest.mark.clause("GRAPH-4")
def test_graph_prints_all_machines_of_a_file(app: Path) -> None:
    done = run("graph", app)
    assert done.exit_code == 0
    assert "shop/checkout version 1, starts at first" in done.stdout
    assert "mail.send version 1, starts at run" in done.stdout


@pytest.mark.clause("GRAPH-4")
@pytest.mark.parametrize(
    ("format_", "text"), [("svg", "<svg "), ("mermaid", "stateDiagram-v2"), ("dot", "digraph ")]
)
def test_graph_writes_every_format_to_a_file(app: Path, format_: str, text: str) -> None:
    output = app.with_name("picture")
    assert run("graph", f"{app}:Checkout", "--format", format_, "--output", output).exit_code == 0
    assert output.read_text().startswith(text)


def test_graph_writes_one_file_per_machine_to_a_directory(app: Path) -> None:
    directory = app.with_name("pictures")
    directory.mkdir()
    done = run("graph", app, "--format", "svg", "--output", directory)
    assert done.exit_code == 0
    assert sorted(path.name for path in directory.iterdir()) == ["mail.send.svg", "shop_checkout.svg"]


def test_svg_of_several_machines_needs_a_directory(app: Path) -> None:
    done = run("graph", app, "--format", "svg")
    assert done.exit_code == 2
    assert (
        f"has 2 machines. Name one of them ({app}:Checkout, {app}:send), or give --output with" in done.stderr
    )
    assert run("graph", f"{app}:send", "--format", "svg").exit_code == 0


def test_svg_of_machines_without_a_variable_needs_a_directory(app: Path) -> None:
    app.write_text(APP + "\nmachines = [type('A', (Checkout,), {}), send]\ndel send\n")
    done = run("graph", f"{app}:machines", "--format", "svg")
    assert done.exit_code == 2
    assert "has 2 machines. Give --output with an existing directory" in done.stderr


def test_graph_and_check_take_the_machines_of_a_worker(app: Path) -> None:
    assert "starts at first" in run("graph", f"{app}:worker").stdout
    assert run("check", f"{app}:worker").stdout == "no problems found in 1 machine\n"


def test_unwritable_output_is_a_failure(app: Path) -> None:
    done = run("graph", f"{app}:Checkout", "--output", app / "sub")
    assert done.exit_code == 2
    assert "cannot be written" in done.stderr


@pytest.mark.clause("GRAPH-3")
def test_check_prints_place_code_and_fix(app: Path) -> None:
    app.write_text(APP.replace("Next(self.second)", "Next(self.secnod)"))
    done = run("check", app)
    assert done.exit_code == 1
    first, fix, *_ = done.stdout.splitlines()
    assert first.startswith(f"{app}:6: problem: step 'first' continues with 'secnod'")
    assert first.endswith("did you mean 'second'? [step.unknown]")
    assert fix == "  the steps are first, second"


def test_ignored_codes_are_not_reported(app: Path) -> None:
    app.write_text(APP.replace("Next(self.second)", "Done(None)"))
    assert run("check", app).exit_code == 1
    assert run("check", app, "--ignore", "step.unreachable").exit_code == 0
    unknown = run("check", app, "--ignore", "step.unreachabel")
    assert (unknown.exit_code, unknown.stdout) == (2, "")
    assert "'step.unreachabel' is not one of" in unknown.stderr


def test_notices_do_not_fail_the_check(app: Path) -> None:
    app.write_text(APP.replace("Next(self.second)", "Next(ctx.state)"))
    done = run("check", app, "--json")
    assert [each["code"] for each in json.loads(done.stdout)] == ["step.unread"]
    assert done.exit_code == 0


def test_file_that_cannot_be_imported_is_a_failure(app: Path) -> None:
    app.write_text("import nothing_of_this_name")
    assert run("check", app).exit_code == 2


def test_refused_definition_has_its_place(app: Path) -> None:
    app.write_text(
        APP.replace("    @step\n    async def second", '    @step(undo="gone")\n    async def second')
    )
    done = run("check", app)
    assert done.exit_code == 1
    first, fix, *_ = done.stdout.splitlines()
    assert first.startswith(f"{app}:4: problem: ")
    assert first.endswith("[step.unknown]")
    assert fix.endswith("; then check again: nothing after it was checked")
    (found,) = json.loads(run("check", app, "--json").stdout)
    assert found["facts"] == {"file": str(app), "line": 4}


def test_hint_for_a_name_is_a_machine(app: Path) -> None:
    app.write_text(APP + "class Nopes: ...\n")
    assert "did you mean" not in run("check", f"{app}:Nope").stderr
    assert "did you mean 'Checkout'" in run("check", f"{app}:Chekout").stderr
