"""docs/workers.md does what it says: its file is written, its workers started, its snippets run."""

from __future__ import annotations

import ast
import asyncio
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docs.test_jobs import BLOCK, PROMISE, Block, worker

PAGE = Path(__file__).parents[2] / "docs" / "workers.md"
BLOCKS = [Block(*found) for found in BLOCK.findall(PAGE.read_text(encoding="utf-8"))]
COMMANDS = [block.text.strip() for block in BLOCKS if block.language == "sh"]
SNIPPETS = [block.text for block in BLOCKS if block.language == "python" and not block.file]


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable_dsn: str) -> Iterator[None]:
    (file,) = [block for block in BLOCKS if block.file]
    (tmp_path / file.file).write_text(file.text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("GEN_DURABLE_DSN", durable_dsn)
    monkeypatch.setenv("GEN_DURABLE_POLL_INTERVAL", "100ms")
    monkeypatch.delenv("WORKER_TYPE_PREFIXES", raising=False)
    yield
    sys.modules.pop("media", None)


async def test_two_processes_run_what_the_snippets_insert() -> None:
    checked: list[str] = []

    def check(value: object, said: str) -> None:
        assert repr(value) == said
        checked.append(said)

    space: dict[str, Any] = {"check": check}
    async with worker(COMMANDS[0]) as told:
        assert told.rstrip().endswith("queues default=10, media=10, in 2 processes")
        for snippet in SNIPPETS:
            lines = [_checking(line) for line in snippet.splitlines()]
            code = compile("\n".join(lines), str(PAGE), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            async with asyncio.timeout(50):
                running = eval(code, space)
                if inspect.iscoroutine(running):
                    await running
    assert checked == ["328350", "'hello ada'", "2"]


async def test_a_queue_is_fed_from_the_command_line() -> None:
    async with worker(COMMANDS[1]) as told:
        assert "queues media=4" in told


def _checking(line: str) -> str:
    found = PROMISE.match(line)
    return line if found is None else f"{found[1]}check({found[2]}, {found[3]!r})"
