"""Prometheus metrics of a worker."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import sys
import urllib.request
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from gen_durable import Spec, Worker, telemetry
from gen_durable.contrib.prometheus import Metrics
from gen_durable.telemetry import Event
from tests.telemetry.machines import QUICK, Leg, Trip

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "docs" / "reference" / "grafana" / "gen_durable.json"
PATIENCE = 20.0
AN_HOUR = timedelta(hours=1)
EVENTS = [
    kind
    for name in telemetry.__all__
    if isinstance(kind := getattr(telemetry, name), type) and issubclass(kind, Event) and kind is not Event
]


def read(registry: CollectorRegistry) -> dict[str, float]:
    """Return `name{labels}` → value of a scrape."""
    lines = generate_latest(registry).decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[0] != "#"}


def some(kind: type[Event]) -> Event:
    """Make an event of this kind with a value in every field."""
    values: dict[type, Any] = {int: 3, str: "x", timedelta: timedelta(seconds=2)}
    fields = msgspec.structs.fields(kind)
    return kind(**{field.name: values.get(field.type, (1, 2, 3)) for field in fields})


@pytest.mark.clause("OBS-1")
async def test_worker_metrics(durable_dsn: str) -> None:
    worker, registry = Worker([Trip, Leg], dsn=durable_dsn, settings=QUICK), CollectorRegistry()
    Metrics(worker, registry)
    assert read(registry)["gen_durable_database_up"] == 0, "it is not open yet"
    async with worker, asyncio.timeout(PATIENCE):
        await worker.wait(await worker.insert(Trip), until="parked")
        while (await worker.list(Trip))[0].step != "end":
            await asyncio.sleep(0.02)
        await worker.set_queue("elsewhere", concurrency=3)
        await worker.insert_all([Spec(Leg, 1, queue="elsewhere"), Spec(Leg, 1, schedule_in=AN_HOUR)])
        await worker.insert_all([Spec(Leg, 1, queue=f"from a request {n}") for n in range(3)])
        found = await asyncio.to_thread(read, registry)
    assert found['gen_durable_steps_total{machine="Trip",outcome="schedule_children",step="start"}'] == 1
    assert found['gen_durable_steps_total{machine="Leg",outcome="done",step="walk"}'] == 2
    assert found['gen_durable_step_seconds_count{machine="Leg",step="walk"}'] == 3
    assert found['gen_durable_picked_total{queue="default"}'] >= 2
    assert found['gen_durable_concurrency{queue="default"}'] == 10
    assert found['gen_durable_queue_due{queue="elsewhere"}'] == 1
    assert found['gen_durable_queue_future{queue="default"}'] == 1
    assert found['gen_durable_queue_due{queue="(unknown)"}'] == 3
    assert found['gen_durable_queue_oldest_seconds{queue="(unknown)"}'] < PATIENCE
    assert not [name for name in found if "from a request" in name]
    assert found["gen_durable_database_up"] == 1


@pytest.mark.clause("OBS-1")
@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.name)
def test_every_event_changes_a_metric(kind: type[Event]) -> None:
    worker, registry = Worker([Leg]), CollectorRegistry()
    metrics = Metrics(worker, registry)
    before = read(registry)
    metrics._counts.count(some(kind))
    after = read(registry)
    assert {name for name in after if after[name] != before.get(name)} - {"gen_durable_database_up"}


@pytest.mark.parametrize("kind", [telemetry.StepStop, telemetry.OutcomeStale, telemetry.HandlerMissing])
def test_unregistered_names_are_labelled_unknown(kind: type[Event]) -> None:
    worker, registry = Worker([Leg]), CollectorRegistry()
    metrics = Metrics(worker, registry)
    for fsm, step in [("Leg", "walk"), ("Leg", "step from a row"), ("machine from a row", "walk")]:
        named = {"fsm": fsm, "step": step}
        fields = {name: value for name, value in named.items() if name in kind.__struct_fields__}
        metrics._counts.count(msgspec.structs.replace(some(kind), **fields))
    found = read(registry)
    assert not [name for name in found if "from a row" in name]
    assert [name for name in found if 'machine="(unknown)"' in name]
    assert [name for name in found if 'machine="Leg"' in name]


@pytest.mark.clause("OBS-3")
def test_dashboard_metrics_exist() -> None:
    worker, registry = Worker([Leg]), CollectorRegistry()
    metrics = Metrics(worker, registry)
    for kind in EVENTS:
        metrics._counts.count(some(kind))
    text = generate_latest(registry).decode()
    there = {found[1] for found in re.finditer(r"^(?:# TYPE )?(gen_durable_\w+)", text, re.MULTILINE)}
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    expressions += [variable["query"] for variable in dashboard["templating"]["list"]]
    named = {name for expression in expressions for name in re.findall(r"gen_durable_\w+", expression)}
    assert named <= there
    families = {re.sub(r"_(total|bucket|count|sum|created)$", "", name) for name in there}
    shown = {re.sub(r"_(total|bucket|count|sum)$", "", name) for name in named}
    assert shown == families, "and every metric is shown"


async def test_asgi_app_on_the_loop_of_the_worker(durable_dsn: str) -> None:
    worker, registry = Worker([Leg], dsn=durable_dsn, settings=QUICK), CollectorRegistry()
    metrics = Metrics(worker, registry)
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async with worker, asyncio.timeout(PATIENCE):
        await worker.wait(await worker.insert(Leg, 1))
        await worker.set_queue("elsewhere", concurrency=3)
        await worker.insert(Leg, 1, queue="elsewhere")
        await metrics.asgi({"type": "http"}, None, send)
        assert read(registry)['gen_durable_queue_due{queue="elsewhere"}'] == 1, "on the loop: the last answer"
    assert sent[0]["status"] == 200
    assert b'gen_durable_queue_due{queue="elsewhere"} 1.0' in sent[1]["body"]


def test_command_line_serves_metrics(durable_dsn: str) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "gen_durable", "worker", "tests.telemetry.machines:Leg"]
    command += ["--dsn", durable_dsn, "--metrics", f"127.0.0.1:{port}"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as worker:
        try:
            assert worker.stdout is not None
            assert b"runs Leg v1" in worker.stdout.readline()
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
                assert b"gen_durable_database_up 1.0" in answer.read()
            again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            message = f"gen-durable: --metrics 127.0.0.1:{port}: Address already in use\n"
            assert (again.returncode, again.stderr) == (2, message)
        finally:
            worker.terminate()
    assert worker.returncode == 0
