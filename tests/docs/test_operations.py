"""docs/operations.md does what it says."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import shlex
from pathlib import Path
from typing import Any

import asyncpg
import click
import pytest
from click.testing import CliRunner

from gen_durable import Context, Done, Machine, Outcome, Settings, Worker, step
from gen_durable.cli.root import root
from tests.docs.test_jobs import BLOCK, PROMISE
from tests.scenarios.support import CALM, PATIENCE, holds

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = BLOCK.findall(TEXT)
COMMANDS = [line for language, _, text in BLOCKS if language == "sh" for line in text.splitlines()]


class Checkout(Machine[int, int]):
    @step
    async def run(self, ctx: Context[int]) -> Outcome[int]:
        return Done(ctx.state)


async def test_the_snippets_give_what_they_say(durable_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEN_DURABLE_DSN", durable_dsn)
    checked: list[str] = []

    def check(value: object, said: str) -> None:
        assert repr(value) == said
        checked.append(said)

    space: dict[str, Any] = {"check": check, "Checkout": Checkout, "print": lambda _: None}
    db = await asyncpg.connect(durable_dsn)
    async with Worker([Checkout], dsn=durable_dsn, settings=CALM):
        await holds(db, "select count(*) = 1 from gen_durable.workers")
        for language, _, text in BLOCKS:
            if language != "python":
                continue
            checking = "\n".join(
                line
                if (found := PROMISE.match(line)) is None
                else f"{found[1]}check(({found[2]}), {found[3]!r})"
                for line in text.splitlines()
            )
            code = compile(checking, str(PAGE), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            async with asyncio.timeout(PATIENCE.total_seconds()):
                running = eval(code, space)
                if inspect.iscoroutine(running):
                    await running
    await db.close()
    assert len(checked) == 7
    assert (space["lean"].reaper, space["lean"].gc) == (False, False)
    async with space["keeper"] as keeper:
        assert await keeper.count() == 1


@pytest.mark.parametrize("line", [line for line in COMMANDS if " worker " not in line])
def test_the_commands_run(line: str, durable_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEN_DURABLE_DSN", durable_dsn)
    result = CliRunner().invoke(root, shlex.split(line)[1:], prog_name="gen-durable")
    missing = line == "gen-durable explain 42"
    assert (result.exit_code, "cannot explain" in result.output) == (2 if missing else 0, missing), (
        result.output
    )


@pytest.mark.parametrize("line", [line for line in COMMANDS if " worker " in line])
def test_the_options_of_workers_exist(line: str) -> None:
    command = root.commands["worker"]
    with click.Context(command) as context:
        command.make_parser(context).parse_args(shlex.split(line)[2:])


def test_the_defaults_are_what_the_page_says() -> None:
    settings = Settings()
    for name, said in re.findall(r"^\| `(\w+)` \| (\d+ \w+) \|", TEXT, re.MULTILINE):
        number, unit = said.split()
        seconds = int(number) * {"day": 86400, "days": 86400, "minute": 60}[unit]
        assert getattr(settings, name).total_seconds() == seconds, name
