"""docs/guides/frameworks.md does what it says: its file is written, its snippets and its commands are run."""

from __future__ import annotations

import ast
import asyncio
import re
import shlex
import sys
from inspect import CO_COROUTINE
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.adapters import site
from tests.support.asgi import served

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "frameworks.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r'^```(\w+)(?: title="(.*?)")?\n(.*?)^```$', PAGE, re.MULTILINE | re.DOTALL)
PROMISE = re.compile(r"^(\s*)(\S.*?)\s+# → (.+)$", re.MULTILINE)


def _run(text: str, names: dict[str, Any]) -> int:
    """Run a snippet; a promise is an expression, and what it gives is kept beside what was promised."""
    source = PROMISE.sub(lambda found: f"{found[1]}kept.append((repr({found[2]}), {found[3]!r}))", text)
    code = compile(source, "adapters.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    running: Any = eval(code, names)
    if code.co_flags & CO_COROUTINE:
        asyncio.run(running)
    return len(PROMISE.findall(text))


async def _asked(app: Any, path: str) -> str:
    async with served(app) as requests:
        return (await requests.post(path)).text


@pytest.mark.clause("ADAPT-1", "ADAPT-5", "ADAPT-11")
def test_snippets_of_the_page_run(durable_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEN_DURABLE_DSN", durable_dsn)
    monkeypatch.syspath_prepend(tmp_path)
    names: dict[str, Any] = {
        "kept": [],
        "__name__": "page",
    }
    promises = 0
    try:
        with site.on(durable_dsn):
            for language, file, text in BLOCKS:
                if file:
                    (tmp_path / file).write_text(text, encoding="utf-8")
                elif language == "python":
                    promises += _run(text, names)
        assert asyncio.run(_asked(names["app"], "/orders/7")) == '"order 7 charged"'
        assert asyncio.run(_asked(names["starlette_app"], "/")) == "placed"
    finally:
        sys.modules.pop("shop", None)
    assert len(names["kept"]) == promises == 5
    assert all(given == promised for given, promised in names["kept"]), names["kept"]


@pytest.mark.clause("ADAPT-8", "ADAPT-10")
def test_settings_and_commands_of_the_page_work(
    durable_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.core.management import call_command
    from django.test import override_settings

    for name in ("DSN", "DSN_SOURCE", "SCHEMA", "LEASE"):
        monkeypatch.setenv(f"GEN_DURABLE_{name}", "")  # the command lends them
    monkeypatch.syspath_prepend(tmp_path)
    served: list[Any] = []
    monkeypatch.setattr("gen_durable.worker.Worker.run", lambda worker, **_: served.append(worker))
    files = {file: text for _, file, text in BLOCKS if file}
    (tmp_path / "shop.py").write_text(files["shop.py"], encoding="utf-8")
    configured: dict[str, Any] = {}
    with monkeypatch.context() as patch:
        patch.setenv("GEN_DURABLE_DSN", durable_dsn)
        exec(files["settings.py"], configured)
    assert configured["DATABASES"]["default"]["NAME"] == urlsplit(durable_dsn).path.removeprefix("/")
    assert set(configured["INSTALLED_APPS"]) == {"gen_durable.contrib.django"}
    lines = [line for language, _, text in BLOCKS if language == "sh" for line in text.splitlines()]
    commands = [line for line in lines if line.startswith("python manage.py")]
    assert len(commands) == 5
    try:
        with (
            site.on(durable_dsn),
            override_settings(GEN_DURABLE=configured["GEN_DURABLE"], MIGRATION_MODULES=site.AT_ONCE),
        ):
            call_command("migrate", run_syncdb=True, verbosity=0)
            for line in commands:
                python, manage, command, *arguments = shlex.split(line)
                assert (python, manage) == ("python", "manage.py")
                call_command(command, *arguments)
    finally:
        sys.modules.pop("shop", None)
    assert [machine.name for worker in served for machine in worker.machines] == ["Checkout"]
