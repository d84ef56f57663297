"""docs/outbox.md does what it says: its file is written, its snippets and its commands are run."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gen_durable.cli.root import root

PAGE = (Path(__file__).parents[2] / "docs" / "outbox.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r'^```(\w+)(?: title="(.*?)")?\n(.*?)^```$', PAGE, re.MULTILINE | re.DOTALL)
PROMISE = re.compile(r"^(\s*)(\S.*?)\s+# → (.+)$", re.MULTILINE)


@pytest.mark.clause("EVT-1", "EVT-9")
async def test_the_page(durable_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEN_DURABLE_DSN", durable_dsn)
    monkeypatch.syspath_prepend(tmp_path)
    names: dict[str, Any] = {"asyncio": asyncio, "kept": []}
    promises = 0
    try:
        for language, file, text in BLOCKS:
            if file:
                (tmp_path / file).write_text(text, encoding="utf-8")
            elif language == "python":
                promises += len(PROMISE.findall(text))
                # A promise is an expression; what it gives is kept beside what was promised.
                source = PROMISE.sub(
                    lambda found: f"{found[1]}kept.append((repr({found[2]}), {found[3]!r}))", text
                )
                code = compile(source, "outbox.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
                running = eval(code, names)
                if inspect.isawaitable(running):
                    await running
    finally:
        sys.modules.pop("shop", None)
    assert len(names["kept"]) == promises >= 5
    assert all(given == promised for given, promised in names["kept"]), names["kept"]


def test_the_commands(durable_dsn: str) -> None:
    commands = [line for language, _, text in BLOCKS if language == "sh" for line in text.splitlines()]
    assert commands
    for line in commands:
        _, *arguments = shlex.split(line)
        answer = CliRunner().invoke(root, [*arguments, "--dsn", durable_dsn])
        assert answer.exit_code == 0, answer.output
