"""docs/jobs.md does what it says: its files are written, its workers started, its snippets run, its tests pass."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import pytest

from gen_durable import AsyncClient, Worker, job
from gen_durable.instance import Status

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "jobs.md"
BLOCK = re.compile(r'^```(\w+)(?: title="(.*?)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
# A value that the page promises: `expression  # → what repr() says of it`.
PROMISE = re.compile(r"^(\s*)(\S.*?)\s+# → (.+)$")
PATIENCE = 30.0


class Block(NamedTuple):
    language: str
    file: str
    text: str


BLOCKS = [Block(*found) for found in BLOCK.findall(PAGE.read_text(encoding="utf-8"))]
COMMANDS = [line for block in BLOCKS if block.language == "sh" for line in block.text.splitlines()]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable_dsn: str) -> Iterator[Path]:
    """The files of the page in a directory of their own, and a database in the environment."""
    for file in {block.file for block in BLOCKS if block.file}:
        text = "\n\n".join(block.text for block in BLOCKS if block.file == file)
        (tmp_path / file).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("GEN_DURABLE_DSN", durable_dsn)
    monkeypatch.setenv("GEN_DURABLE_POLL_INTERVAL", "100ms")
    monkeypatch.delenv("WORKER_TYPE_PREFIXES", raising=False)
    yield tmp_path
    for name in ("billing", "grown"):
        sys.modules.pop(name, None)


@asynccontextmanager
async def worker(command: str) -> AsyncIterator[str]:
    """A worker by a command of the page, in a process of its own; the line that says that it works."""
    words = shlex.split(command)
    setting = dict(word.split("=", 1) for word in words[: words.index("gen-durable")])
    arguments = words[words.index("gen-durable") + 1 :]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gen_durable.cli", *arguments),
        env={**os.environ, **setting, "PYTHONPATH": str(ROOT / "src")},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE):
            told = ""
            while " runs " not in told:
                line = await process.stdout.readline()
                assert line, f"{command} ended: {told}"
                told += line.decode()
        yield told
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE):
            await process.stdout.read()
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def test_there_is_something_of_everything() -> None:
    assert {block.language for block in BLOCKS} == {"python", "sh"}
    assert len(COMMANDS) == 5
    assert sum(len(PROMISE.findall(line)) for block in BLOCKS for line in block.text.splitlines()) >= 10


async def test_the_snippets_give_what_they_say(project: Path, durable_dsn: str) -> None:
    space: dict[str, Any] = {}
    checked: list[str] = []

    def check(value: object, said: str) -> None:
        assert repr(value) == said
        checked.append(said)

    space["check"] = check
    async with worker(COMMANDS[0]):
        for block in BLOCKS:
            if block.language == "python" and not block.file:
                text = "\n".join(_checking(line) for line in block.text.splitlines())
                code = compile(text, str(PAGE), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
                async with asyncio.timeout(PATIENCE):
                    running = eval(code, space)
                    if inspect.iscoroutine(running):
                        await running
    assert len(checked) >= 10


def _checking(line: str) -> str:
    found = PROMISE.match(line)
    return line if found is None else f"{found[1]}check({found[2]}, {found[3]!r})"


async def test_an_effect_is_written_with_the_result(project: Path, durable_dsn: str) -> None:
    db = await asyncpg.connect(durable_dsn)
    await db.execute("create table settled (number int)")
    import billing  # type: ignore[import-not-found]

    async with Worker([billing], dsn=durable_dsn) as running:
        ref = await running.insert(billing.settle, billing.Invoice(7, 1000))
        assert (await running.wait(ref)).result == 1000
    assert await db.fetchval("select array_agg(number) from settled") == [7]
    await db.close()


@pytest.mark.parametrize("command", COMMANDS[1:])
async def test_the_workers_of_the_page_run_what_it_says(
    project: Path, durable_dsn: str, command: str
) -> None:
    import billing

    @job("billing.unheard_of.v1")
    def unheard_of() -> None: ...

    async with worker(command) as told, AsyncClient(durable_dsn) as client:
        assert "billing.invoice_charge.v1 v1" in told
        unknown = await client.insert(unheard_of, priority=-1)
        ref = await client.insert(billing.invoice_charge, billing.Invoice(7, 1000))
        async with asyncio.timeout(PATIENCE):
            assert (await client.wait(ref)).status is Status.DONE
            if "prefix" in command.lower() and "leave" not in command:
                assert (await client.wait(unknown)).last_error == "no_handler_registered"
        found = await client.get(unknown)
        assert found is not None
        assert found.status is (Status.FAILED if found.last_error else Status.RUNNABLE)


def test_the_tests_of_the_page_pass(project: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_billing.py"],
        cwd=project,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
