"""Rules for all commands that use the database."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from gen_durable import __version__
from gen_durable.cli.root import root
from gen_durable.testing import Harness
from tests.cli.conftest import Gd, output, parsed, refused

COMMANDS = [
    ["insert", "Checkout"],
    ["signal", "1", "paid"],
    ["ls"],
    ["show", "1"],
    ["wait", "1"],
    ["cancel", "1"],
    ["retry", "1"],
    ["delete", "1"],
    ["restore", "1"],
    ["workers"],
    ["queues"],
    ["limits"],
    ["schedules"],
    ["outbox"],
    ["audit"],
    ["explain", "1"],
    ["stats"],
    ["machines"],
]
LISTS = ["ls", "workers", "queues", "limits", "schedules", "outbox", "audit"]
every_command = pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])


@every_command
def test_unreachable_database(gd: Gd, command: list[str]) -> None:
    message = refused(gd(*command, "--dsn", "postgresql://app:s3:cret@127.0.0.1:1/shop"))
    assert message.startswith("cannot reach PostgreSQL at postgresql://app@127.0.0.1:1/shop")
    assert "cret" not in message


@every_command
def test_commands_do_not_create_tables(gd: Gd, command: list[str]) -> None:
    schema = f"cli_{uuid.uuid4().hex[:12]}"
    message = refused(gd(*command, "--schema", schema))
    where, _, problem = message.partition(": ")
    assert where.startswith("postgresql://")
    advice = f"gen-durable db migrate --schema {schema}"
    assert problem == f"schema '{schema}' has no tables of gen_durable; run `{advice}`"


@every_command
def test_commands_do_not_create_an_embedded_server(
    gd: Gd, command: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("GEN_DURABLE_DSN")
    monkeypatch.setenv("GEN_DURABLE_HOME", str(tmp_path / "home"))
    message = refused(gd(*command))
    assert message.startswith("cannot reach PostgreSQL at ")
    assert "no embedded server in this directory" in message
    assert "--dsn or GEN_DURABLE_DSN" in message
    assert not (tmp_path / "home").exists()


@pytest.mark.clause("CLI-1")
@every_command
def test_every_command_has_common_options(command: list[str]) -> None:
    found = root.commands[command[0]]
    listed = found.commands["ls"] if isinstance(found, click.Group) else found
    options = {name for parameter in listed.params for name in parameter.opts}
    assert {"--json", "--dsn", "--schema"} <= options


@pytest.mark.parametrize("name", LISTS)
def test_a_bare_call_lists(gd: Gd, shop: Harness, name: str) -> None:
    bare, as_json = gd(name), gd(name, "--json")
    assert (bare.exit_code, as_json.exit_code) == (0, 0)
    assert isinstance(parsed(as_json), list)
    if name in ("queues", "limits", "schedules", "outbox", "audit"):
        assert output(bare) == output(gd(name, "ls"))
        assert output(as_json) == output(gd(name, "ls", "--json"))


def test_the_package_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "gen_durable", "--version"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout == f"gen-durable, version {__version__}\n"


@pytest.mark.parametrize(
    ("words", "incomplete", "offered"),
    [
        (["queues"], "", {"ls", "pause", "resume", "set"}),
        (["queues"], "p", {"pause"}),
        (["queues"], "--j", {"--json"}),
        (["queues", "--json"], "--ds", {"--dsn"}),
        (["db"], "m", {"migrate"}),
    ],
)
def test_shell_completion_offers_commands_and_options(
    words: list[str], incomplete: str, offered: set[str]
) -> None:
    completion = ShellComplete(root, {}, "gen-durable", "_GEN_DURABLE_COMPLETE")
    assert {item.value for item in completion.get_completions(words, incomplete)} == offered
