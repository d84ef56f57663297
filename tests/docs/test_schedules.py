"""docs/schedules.md does what it says: its files load, its snippets and commands run, its tests pass."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gen_durable import AsyncClient, Schedule, Spec
from gen_durable._db.insert import register
from gen_durable.cli.root import root
from gen_durable.cli.targets import load
from gen_durable.definition import definition_of
from gen_durable.testing import Harness

PAGE = Path(__file__).parents[2] / "docs" / "schedules.md"
BLOCK = re.compile(r'^```(\w+)(?: title="(.*?)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
PROMISE = re.compile(r"^(\S.*?)  # → (.+)$")
BLOCKS = BLOCK.findall(PAGE.read_text(encoding="utf-8"))


@pytest.fixture
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable_dsn: str) -> Iterator[Any]:
    """The files of the page, as modules; and its database in the environment."""
    for _, file, text in BLOCKS:
        if file:
            (tmp_path / file).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("GEN_DURABLE_DSN", durable_dsn)
    monkeypatch.delitem(sys.modules, "reports", raising=False)  # another test's file may have had that name
    yield importlib.import_module("reports")
    for name in ("reports", "test_reports"):
        sys.modules.pop(name, None)


def test_the_file_holds_a_job_and_two_schedules(reports: Any) -> None:
    found = load("reports")
    assert isinstance(found, list)
    assert [each.name for each in found if isinstance(each, Schedule)] == ["nightly", "often"]
    assert len(found) == 3


async def test_the_snippet_runs_and_keeps_its_promises(reports: Any, durable_dsn: str) -> None:
    (text,) = [text for language, file, text in BLOCKS if language == "python" and not file]
    async with AsyncClient(durable_dsn) as client:
        names = {"client": client, "sales": reports.sales, "Schedule": Schedule, "Spec": Spec}
        for line in text.splitlines():
            promise = PROMISE.match(line)
            code = compile(
                promise[1] if promise else line,
                PAGE.name,
                "eval",
                flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
            )
            value = eval(code, names)
            if inspect.isawaitable(value):
                value = await value
            if promise:
                assert repr(value) == promise[2], line


def test_the_commands_run(reports: Any, durable: Harness) -> None:
    durable._database.run(register([definition_of(reports.sales)]))
    commands = [line for language, _, text in BLOCKS if language == "sh" for line in text.splitlines()]
    assert len(commands) == 8
    for command in commands:
        done = CliRunner().invoke(root, shlex.split(command)[1:])
        assert done.exit_code == 0, (command, done.output)


@pytest.mark.parametrize("name", ["test_every_quarter_of_an_hour", "test_after_an_outage"])
def test_its_tests_pass(reports: Any, durable: Harness, name: str) -> None:
    getattr(importlib.import_module("test_reports"), name)(durable)
