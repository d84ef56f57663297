"""The documentation pages, and the runner for one page.

The blocks of a page run in order, in one namespace, on a new database; `GEN_DURABLE_DSN` names it:

- `python`: top-level await works. `expression  # → repr` must have that repr, and `call  # ✗ text` must raise an error with that
  text; `…` matches anything. Functions `test_…` are called with their fixtures.
- `python title="shop.py"` is part of a file that exists from the start; `test_….py` runs at the end.
- `sh`: each line is a `gen-durable` command and must succeed; its output must contain the text of a `# → text` line below it. A
  worker runs in this process until the next worker or the end of the page.
- `sql`: see `statements`.
- `toml title="settings.toml"` is a file.

A block in an HTML comment runs, but readers do not see it. A block that cannot run has a comment above it:
`<!-- not run: reason -->`.
"""

from __future__ import annotations

import ast
import asyncio
import functools
import inspect
import os
import re
import secrets
import shlex
import sys
import types
from collections.abc import Callable, Generator, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import psycopg
import pytest
from click.testing import CliRunner

from gen_durable import Worker
from gen_durable.cli.root import root
from gen_durable.testing import AsyncHarness, Harness
from gen_durable.testing._databases import Databases
from tests.docs.statements import examples, promised, roles_of, run_examples

__all__ = ["PAGES", "ROOT", "RUN", "SHOWN", "Block", "Page", "Reading"]

ROOT: Final = Path(__file__).parents[2]
RUN: Final = ("python", "sh", "sql", "toml")
SHOWN: Final = ("text", "mermaid", "js")
_FENCE: Final = re.compile(
    r'(?:^<!-- not run: (?P<reason>[^\n]+) -->\n)?^```(?P<language>\w*)(?: title="(?P<file>[^"\n]+)")?\n'
    r"(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_PROMISE: Final = re.compile(r"^(\s*)(\S.*?)\s+# → (.+)$")
_REFUSAL: Final = re.compile(r"^(\s*)(\S.*?)\s+# ✗ (.+)$")
_PATIENCE: Final = 30.0


class Block(NamedTuple):
    language: str
    file: str
    text: str
    reason: str
    """Why the block does not run; empty if it runs."""
    line: int

    @property
    def runs(self) -> bool:
        return self.language in RUN and not self.reason


class Page:
    """A Markdown file."""

    def __init__(self, path: Path, text: str | None = None) -> None:
        self.path = path
        self.name = path.relative_to(ROOT).as_posix()
        self.text = path.read_text(encoding="utf-8") if text is None else text

    @functools.cached_property
    def blocks(self) -> list[Block]:
        return [
            Block(
                found["language"],
                found["file"] or "",
                found["text"],
                found["reason"] or "",
                self.text.count("\n", 0, found.start("text")),
            )
            for found in _FENCE.finditer(self.text)
        ]

    def files(self) -> dict[str, str]:
        """Return the files of the page, each joined from its blocks."""
        files: dict[str, str] = {}
        for block in self.blocks:
            if block.file and block.runs:
                files[block.file] = "\n\n".join(filter(None, (files.get(block.file), block.text)))
        return files


PAGES: Final = [Page(path) for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))]


class Reading:
    """The run of one page."""

    def __init__(self, page: Page, directory: Path, databases: Databases, patch: pytest.MonkeyPatch) -> None:
        self._page = page
        self._directory = directory
        self._databases = databases
        self._patch = patch
        self._direct_dsn = ""
        self._given_dsn = os.environ.get("GEN_DURABLE_DSN")
        self._token = secrets.token_hex(6)
        self._module = types.ModuleType(f"page_{page.path.stem.replace('-', '_')}")
        self._worker = AsyncExitStack()
        self.promise_count = 0

    async def run(self, dsn: str, direct_dsn: str) -> None:
        """Run the page on this database. SQL bypasses the pooler, because it may need a session."""
        self._direct_dsn = direct_dsn
        with self._surroundings(dsn):
            try:
                for block in self._page.blocks:
                    if block.runs and not block.file:
                        async with asyncio.timeout(_PATIENCE):
                            await getattr(self, f"_{block.language}")(block)
            finally:
                await self._worker.aclose()
            with self._env_of_tests():
                for file in self._page.files():
                    if file.startswith("test_"):
                        await self._test(vars(__import__(file.removesuffix(".py"))), ())

    @contextmanager
    def _surroundings(self, dsn: str) -> Iterator[None]:
        for file, text in self._page.files().items():
            (self._directory / file).write_text(text, encoding="utf-8")
        self._patch.chdir(self._directory)
        self._patch.syspath_prepend(self._directory)
        self._patch.setenv("GEN_DURABLE_DSN", dsn)
        self._patch.setenv("GEN_DURABLE_POLL_INTERVAL", "100ms")
        for variable in ("GEN_DURABLE_PREFIXES", "WORKER_TYPE_PREFIXES"):
            self._patch.delenv(variable, raising=False)
        known = set(sys.modules)
        sys.modules[self._module.__name__] = self._module
        try:
            yield
        finally:
            # Another page may have a file of that name.
            for name in set(sys.modules) - known:
                if str(getattr(sys.modules[name], "__file__", "")).startswith(str(self._directory)):
                    del sys.modules[name]
            del sys.modules[self._module.__name__]
            self._drop_roles()

    @contextmanager
    def _env_of_tests(self) -> Iterator[None]:
        """Choose the server for databases of tests; it may differ from the one that a snippet names."""
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("GEN_DURABLE_DSN")
            if self._given_dsn is not None:
                patch.setenv("GEN_DURABLE_DSN", self._given_dsn)
            yield

    async def _python(self, block: Block) -> None:
        space = vars(self._module)
        space.update(_check=self._check, _refused=self._refused)
        source = "\n" * block.line + "\n".join(map(_checking, block.text.splitlines()))
        code = compile(
            source, self._page.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True
        )
        before = set(space)
        if "asyncio.run(" in block.text:
            await asyncio.to_thread(exec, code, space)
        else:
            running = eval(code, space)
            if inspect.iscoroutine(running):
                await running
        await self._test(space, before)

    async def _test(self, space: dict[str, Any], before: Any) -> None:
        for name in [name for name in space if name.startswith("test_") and name not in before]:
            function: Callable[..., Any] = space[name]
            wanted = inspect.signature(function).parameters
            with self._databases.clean() as dsn:
                if inspect.iscoroutinefunction(function):
                    async with AsyncHarness(dsn) as harness:
                        await function(**dict.fromkeys(wanted, harness))
                else:
                    await asyncio.to_thread(_in_harness, function, wanted, dsn)
            self.promise_count += 1

    async def _sh(self, block: Block) -> None:
        output = ""
        for line in block.text.replace("\\\n", " ").splitlines():
            if line.startswith("# → "):
                assert re.search(promised(line[4:]), output), f"{line}\n{output}"
                self.promise_count += 1
            elif line and not line.startswith("#"):
                output = await self._command(line)

    async def _command(self, line: str) -> str:
        words = shlex.split(line, comments=True)
        program = words.index("gen-durable") if "gen-durable" in words else -1
        assert program >= 0, f"{line}: only gen-durable is run here; say why not: <!-- not run: reason -->"
        setting = dict(word.split("=", 1) for word in words[:program])
        started: list[Worker] = []

        def begin(worker: Worker, *, processes: int | None, on_ready: Callable[[], None]) -> None:
            started.append(worker)
            on_ready()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Worker, "run", begin)
            answer = await asyncio.to_thread(
                CliRunner(env=setting).invoke, root, words[program + 1 :], prog_name="gen-durable"
            )
        assert answer.exit_code == 0, f"{line}\n{answer.output}"
        if started:
            await self._worker.aclose()
            await self._worker.enter_async_context(started[0])
        return answer.output

    async def _sql(self, block: Block) -> None:
        given = examples(block.text, self._roles)
        self.promise_count += sum(len(each.rows) + bool(each.error) for each in given)
        run_examples(self._connection, given)

    @functools.cached_property
    def _roles(self) -> dict[str, str]:
        return roles_of((block.text for block in self._page.blocks if block.language == "sql"), self._token)

    @functools.cached_property
    def _connection(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self._direct_dsn, autocommit=True)

    def _drop_roles(self) -> None:
        if "_connection" not in vars(self):
            return
        self._connection.execute("reset role")
        for name in self._roles.values():
            if self._connection.execute("select from pg_roles where rolname = %s", [name]).fetchone():
                self._connection.execute(f"drop owned by {name}; drop role {name}".encode())
        self._connection.close()

    def _check(self, value: object, expected: str) -> None:
        assert re.fullmatch(promised(expected), repr(value)), f"{value!r} is not {expected}"
        self.promise_count += 1

    @contextmanager
    def _refused(self, expected: str) -> Generator[None]:
        with pytest.raises(Exception, match=promised(expected)) as raised:
            yield
        assert not isinstance(raised.value, AssertionError)
        self.promise_count += 1


def _checking(line: str) -> str:
    if found := _PROMISE.match(line):
        return f"{found[1]}_check(({found[2]}), {found[3]!r})"
    if found := _REFUSAL.match(line):
        return f"{found[1]}with _refused({found[3]!r}): {found[2]}"
    return line


def _in_harness(function: Callable[..., Any], wanted: Any, dsn: str) -> None:
    with Harness(dsn) as harness:
        function(**dict.fromkeys(wanted, harness))
