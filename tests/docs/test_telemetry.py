"""docs/reference/telemetry.md lists what there is."""

from __future__ import annotations

import re

from prometheus_client import CollectorRegistry, generate_latest

from gen_durable import Worker, telemetry
from gen_durable.contrib.prometheus import Metrics
from gen_durable.telemetry import Event
from tests.docs.pages import ROOT
from tests.telemetry.machines import Leg

PAGE = (ROOT / "docs" / "reference" / "telemetry.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| (.+) \|$", re.MULTILINE)


def test_every_event_is_listed_with_its_fields_and_metrics() -> None:
    kinds = [getattr(telemetry, name) for name in telemetry.__all__]
    defined = {
        kind.name: list(kind.__struct_fields__)
        for kind in kinds
        if isinstance(kind, type) and issubclass(kind, Event) and kind is not Event
    }
    rows = [[re.findall(r"`([^`]+)`", cell) for cell in row.split(" | ")] for row in ROW.findall(PAGE)]
    assert {row[0][0]: row[1] for row in rows if row[0] and "." in row[0][0]} == defined


def test_documented_metrics_exist() -> None:
    registry = CollectorRegistry()
    Metrics(Worker([Leg]), registry)
    there = set(re.findall(r"^# TYPE (gen_durable_\w+)", generate_latest(registry).decode(), re.MULTILINE))
    assert set(re.findall(r"`(gen_durable_\w+)`", PAGE)) <= there
