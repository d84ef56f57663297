"""docs/telemetry.md and docs/deployment.md do what they say."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from gen_durable import AsyncClient, Worker, telemetry
from gen_durable.contrib.prometheus import Metrics
from gen_durable.telemetry import Event
from tests.telemetry.machines import Leg

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "telemetry.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# A value that the page promises: `expression  # → what repr() says of it`.
PROMISE = re.compile(r"^(\s*)(\S.*?)\s+# → (.+)$")
ROW = re.compile(r"^\| (.+) \|$", re.MULTILINE)


def _code(line: str) -> str:
    found = PROMISE.match(line)
    return line if found is None else f"{found[1]}check({found[2]}, {found[3]!r})"


async def _run(page: str, space: dict[str, Any]) -> None:
    for block in BLOCK.findall(page):
        text = "\n".join(map(_code, block.splitlines()))
        code = compile(text, "docs", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        running = eval(code, space)
        if inspect.iscoroutine(running):
            await running


async def test_the_snippets_give_what_they_say(durable_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEN_DURABLE_DSN", durable_dsn)
    checked: list[str] = []

    def check(value: object, said: str) -> None:
        assert repr(value) == said
        checked.append(said)

    await _run(PAGE, {"check": check, "__name__": "page"})
    assert len(checked) == 2


async def test_a_function_for_a_dsn() -> None:
    space: dict[str, Any] = {}
    await _run((DOCS / "deployment.md").read_text(encoding="utf-8"), space)
    assert isinstance(space["client"], AsyncClient)
    assert "s3cr3t%2F%2B%3D@db-a,db-b/" in space["dsn"]()


def test_every_event_is_listed_with_its_fields_and_metrics() -> None:
    kinds = [getattr(telemetry, name) for name in telemetry.__all__]
    told = {
        kind.name: list(kind.__struct_fields__)
        for kind in kinds
        if isinstance(kind, type) and issubclass(kind, Event) and kind is not Event
    }
    rows = [[re.findall(r"`([^`]+)`", cell) for cell in row.split(" | ")] for row in ROW.findall(PAGE)]
    assert {row[0][0]: row[1] for row in rows if row[0] and "." in row[0][0]} == told


def test_every_metric_that_is_named_exists() -> None:
    registry = CollectorRegistry()
    Metrics(Worker([Leg]), registry)
    there = set(re.findall(r"^# TYPE (gen_durable_\w+)", generate_latest(registry).decode(), re.MULTILINE))
    assert set(re.findall(r"`(gen_durable_\w+)`", PAGE)) <= there
