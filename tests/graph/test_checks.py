"""`check` finds the mistakes of broken machines, and none in machines that work."""

from __future__ import annotations

import ast
import contextlib
import json
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gen_durable import Done, Machine, Next, UsageError, check, step
from gen_durable._core import compatibility
from gen_durable._graph import checks
from gen_durable.cli.root import root
from gen_durable.demo import machines as demo
from gen_durable.jobs import Job
from tests.docs.pages import PAGES
from tests.graph import machines
from tests.graph.broken import BROKEN, HEADER

ROOT = Path(__file__).parents[2]
DEFINITIONS = (ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
VALUES = {"Signal", "timedelta", "Backoff"}
# Pages that show a step which only operators move instances to, and findings themselves.
EXPECTED = {
    "docs/guides/repairing.md": {"step.unreachable"},
    "docs/guides/graph.md": {"step.unknown", "signal.undeclared", "step.unreachable", "loop.busy"},
}


@pytest.mark.clause("GRAPH-3")
@pytest.mark.parametrize("name", BROKEN)
def test_broken_machine_is_found(name: str, tmp_path: Path) -> None:
    source, expected = BROKEN[name]
    file = tmp_path / "broken.py"
    file.write_text(HEADER + source)
    done = CliRunner().invoke(root, ["check", str(file), "--json"])
    found = json.loads(done.stdout)
    assert [(each["code"], each["facts"].get("step")) for each in found] == expected
    assert done.exit_code == 1
    for each in found:
        assert each["fix"]
        if "line" in each["facts"]:
            assert each["facts"]["file"] == str(file)
            line = file.read_text().splitlines()[each["facts"]["line"] - 1]
            assert re.search(r"self|return|class M|ctx", line)


def test_matrix_has_twenty_broken_machines() -> None:
    assert len(BROKEN) >= 20


def is_constant(node: ast.stmt) -> bool:
    calls = [each.func for each in ast.walk(node) if isinstance(each, ast.Call)]
    return (
        isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and all(isinstance(each, ast.Name) and each.id in VALUES for each in calls)
    )


def machines_in(source: str, file: Path) -> list[Any]:
    """Execute the definitions of a program, without what it does, and return its machines and jobs."""
    tree = compile(source, str(file), "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    tree.body = [node for node in tree.body if isinstance(node, DEFINITIONS) or is_constant(node)]
    file.write_text(ast.unparse(tree))
    module = types.ModuleType(f"checked_{file.stem}")
    sys.modules[module.__name__] = module
    for node in ast.parse(file.read_text()).body:
        with contextlib.suppress(Exception):  # it needs something that the program does
            exec(compile(ast.Module([node], []), str(file), "exec"), vars(module))
    return [
        value
        for value in vars(module).values()
        if (isinstance(value, type) and issubclass(value, Machine) and "__definition__" in vars(value))
        or isinstance(value, Job)
    ]


@pytest.mark.clause("GRAPH-3")
def test_machines_of_examples_and_demo_have_no_findings(tmp_path: Path) -> None:
    files = [path for path in sorted((ROOT / "examples").rglob("*.py")) if "(Machine" in path.read_text()]
    assert len(files) >= 5
    for index, path in enumerate(files):
        found = machines_in(path.read_text(), tmp_path / f"example_{index}.py")
        assert found, path
        assert check(*found) == [], path
    assert check(demo.Checkout, demo.Shipment) == []


@pytest.mark.clause("GRAPH-3")
def test_machines_of_the_docs_have_no_findings(tmp_path: Path) -> None:
    checked = 0
    for index, page in enumerate(PAGES):
        blocks = [block.text for block in page.blocks if block.language == "python"]
        source = "\n".join(text for text in blocks if _is_program(text))
        found = machines_in(source, tmp_path / f"page_{index}.py")
        checked += len(found)
        codes = {finding.code for finding in check(*found)} if found else set()
        assert codes == EXPECTED.get(page.name, set()), page.name
    assert checked >= 40


def _is_program(text: str) -> bool:
    try:
        compile(text, "", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except SyntaxError:
        return False
    return True


def test_computed_target_is_a_notice() -> None:
    (found,) = check(machines.Computed)
    assert (found.code, found.severity, found.facts["step"]) == ("step.unread", "notice", "first")


@pytest.mark.clause("GRAPH-3")
def test_source_that_is_not_available_is_a_notice() -> None:
    source = """
class Made(Machine[int, None]):
    @step
    async def first(self, ctx): return Next(self.second)
    @step(to=["first"])
    async def second(self, ctx): return Next(self.first)
    @step
    async def third(self, ctx): return Done(None)
"""
    names: dict[str, Any] = {"Machine": Machine, "step": step, "Next": Next, "Done": Done, "__name__": "made"}
    exec(source, names)
    (found,) = check(names["Made"])
    assert (found.code, found.severity, found.facts["step"]) == ("step.unread", "notice", "first")
    assert found.what == (
        "the source of Made.first, Made.third is not available, so the targets of 'first', 'third' of machine 'Made' "
        "cannot be read"
    )


@pytest.mark.clause("GRAPH-3")
def test_children_of_an_unknown_machine_are_a_notice() -> None:
    found = check(machines.Delegating)
    assert [(each.code, each.severity, each.facts["step"]) for each in found] == [
        ("children.unread", "notice", "first"),
        ("children.unread", "notice", "second"),
    ]


def test_correct_machines_and_jobs_have_no_findings() -> None:
    assert check(machines.Every, machines.Parcel, machines.send, machines.Derived, machines.Handled) == []


def test_every_code_is_documented() -> None:
    page = (ROOT / "docs/guides/graph.md").read_text()
    assert re.findall(r"^\| `(\w+\.\w+)` \|", page, re.MULTILINE) == [*checks.CODES, *compatibility.CODES]


def test_check_without_a_machine_is_an_error() -> None:
    with pytest.raises(UsageError, match="check got no machine"):
        check()


def test_finding_names_the_machine() -> None:
    (found,) = check(machines.Computed)
    assert (
        found.what
        == "the target of this Next of step 'first' of machine 'Computed' cannot be read from the code"
    )
