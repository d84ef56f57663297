"""One instance is one trace, whichever processes run its steps."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased

from gen_durable import AsyncClient, Client, Worker, job
from gen_durable._tracing import tracing
from gen_durable.contrib import opentelemetry
from gen_durable.embedded.keeper import _bound_to_us
from gen_durable.errors import UsageError
from tests.telemetry.machines import QUICK, Leg, Line, Trip, line_of

ROOT = Path(__file__).parents[2]
PATIENCE = 20.0
GIVEN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Traces:
    """The spans of this process."""

    def __init__(self, provider: TracerProvider) -> None:
        self._memory = InMemorySpanExporter()
        provider.add_span_processor(SimpleSpanProcessor(self._memory))
        self.tracer = provider.get_tracer("test")

    @property
    def lines(self) -> list[Line]:
        return [line_of(span) for span in self._memory.get_finished_spans()]


@pytest.fixture
def traces() -> Iterator[Traces]:
    provider = TracerProvider()
    end = opentelemetry.instrument(provider)
    yield Traces(provider)
    end()
    assert tracing() is None


@asynccontextmanager
async def process(dsn: str, file: Path) -> AsyncIterator[None]:
    """A worker process that writes its spans to a file."""
    popen = subprocess.Popen(
        [sys.executable, "-m", "tests.telemetry.machines", dsn, str(file)],
        cwd=ROOT,
        preexec_fn=_bound_to_us(signal.SIGKILL),
    )
    try:
        yield
    finally:
        popen.terminate()
        assert await asyncio.to_thread(popen.wait, PATIENCE) == 0


@pytest.mark.clause("OBS-4")
async def test_instance_is_one_trace_across_processes(
    durable_dsn: str, tmp_path: Path, traces: Traces
) -> None:
    file = tmp_path / "spans"
    async with AsyncClient(durable_dsn, settings=QUICK) as client, asyncio.timeout(PATIENCE):
        with traces.tracer.start_as_current_span("request") as request:
            trip = await client.insert(Trip)
        async with process(durable_dsn, file):
            while (await client.wait(trip, until="parked")).step != "end":
                await asyncio.sleep(0.02)
        with traces.tracer.start_as_current_span("payment") as payment:
            await client.signal(trip, Trip.go, 1)
        async with process(durable_dsn, file):
            await client.wait(trip)
    lines = [msgspec.json.decode(line, type=Line) for line in file.read_bytes().splitlines()]
    assert {line.trace for line in lines} == {request.get_span_context().trace_id}
    assert len({line.pid for line in lines}) == 2
    spans = {line.name: line for line in lines}
    above = request.get_span_context().span_id
    assert {name: line.parent == above for name, line in spans.items()} == {
        "Trip.plan": True,
        "Trip.start": True,
        "Trip.rest": True,
        "Trip.end": True,
        "Leg.walk": False,
    }
    legs = [line for line in lines if line.name == "Leg.walk"]
    assert {line.parent for line in legs} == {spans["Trip.start"].span}
    assert sorted((line.attributes["gen_durable.outcome"], line.error) for line in legs) == [
        ("done", None),
        ("done", None),
        ("retry", "ValueError: a stone in the shoe"),
    ]
    assert [line.events for line in legs if line.error] == [["exception"]]
    end = spans["Trip.end"]
    assert end.links == [payment.get_span_context().span_id]
    assert (end.error, end.attributes["gen_durable.outcome"]) == ("far enough", "stop")
    assert end.attributes["gen_durable.instance"] == trip.id
    assert [spans[name].attributes["gen_durable.execution"] for name in ("Trip.plan", "Trip.end")] == [1, 4]


@pytest.mark.clause("OBS-4")
async def test_insert_without_a_span_starts_a_trace(durable_dsn: str, traces: Traces) -> None:
    async with Worker([Leg], dsn=durable_dsn, settings=QUICK) as worker:
        refs = [await worker.insert(Leg, 2), await worker.insert(Leg, 2)]
        await worker.wait_all(refs)
    roots = [line for line in traces.lines if line.name == "insert Leg"]
    assert [line.parent for line in roots] == [None, None]
    for root in roots:
        below = [line for line in traces.lines if line.trace == root.trace and line is not root]
        assert [line.parent for line in below if line.name == "Leg.walk"] == [root.span, root.span]


@pytest.mark.clause("OBS-5")
async def test_traceparent_option(durable_dsn: str, traces: Traces) -> None:
    sql = await asyncpg.connect(durable_dsn)
    async with Worker([Leg], dsn=durable_dsn, settings=QUICK) as worker:
        ref = await worker.insert(Leg, 1, traceparent=GIVEN)
        id = await sql.fetchval("select id from gen_durable.insert('Leg', '1', traceparent => $1)", GIVEN)
        await worker.wait(ref)
        await worker.wait(id)
        with pytest.raises(UsageError, match="traceparent is 'mine'; give 00-<32 hex digits>"):
            await worker.insert(Leg, 1, traceparent="mine")
        with pytest.raises(asyncpg.InvalidParameterValueError, match="traceparent 'mine' is not of the form"):
            await sql.execute("select gen_durable.insert('Leg', '1', traceparent => 'mine')")
        with pytest.raises(asyncpg.InvalidParameterValueError, match="traceparent 'mine' is not of the form"):
            await sql.execute("select gen_durable.signal(1, 'go', '1', traceparent => 'mine')")
    await sql.close()
    walks = [line for line in traces.lines if line.name == "Leg.walk"]
    assert {(f"{line.trace:032x}", f"{line.parent:016x}") for line in walks} == {tuple(GIVEN.split("-")[1:3])}


@pytest.mark.clause("OBS-4")
async def test_steps_without_a_stored_context_are_one_trace(durable_dsn: str, traces: Traces) -> None:
    sql = await asyncpg.connect(durable_dsn)
    async with Worker([Leg], dsn=durable_dsn, settings=QUICK) as worker:
        rows = await sql.fetch("select id from gen_durable.insert_all($1)", '[{"fsm": "Leg", "state": 2}]')
        await worker.wait(rows[0]["id"])
    await sql.close()
    first, second = traces.lines
    assert (first.trace, first.parent) == (second.trace, second.parent)
    assert first.span != second.span


async def test_sampler_decides_on_derived_contexts(durable_dsn: str) -> None:
    provider = TracerProvider(sampler=ParentBased(ALWAYS_OFF))
    end = opentelemetry.instrument(provider)
    traces = Traces(provider)
    sql = await asyncpg.connect(durable_dsn)
    async with Worker([Leg], dsn=durable_dsn, settings=QUICK) as worker:
        await worker.wait(await sql.fetchval("select id from gen_durable.insert('Leg', '1')"))
        await worker.wait(await worker.insert(Leg, 1))
    await sql.close()
    end()
    assert traces.lines == []


def test_blocking_client_stores_its_context(durable_dsn: str, traces: Traces) -> None:
    with Client(durable_dsn) as client, traces.tracer.start_as_current_span("request") as request:
        client.insert(Leg, 1)
        context = request.get_span_context()
        ref = client.insert(Leg, 1)

    async def stored() -> str:
        sql = await asyncpg.connect(durable_dsn)
        found: str = await sql.fetchval(
            "select traceparent from gen_durable.gen_durable where id = $1", ref.id
        )
        await sql.close()
        return found

    assert asyncio.run(stored())[:-3] == f"00-{context.trace_id:032x}-{context.span_id:016x}"


async def test_step_span_is_current_in_thread_and_dead_letter(durable_dsn: str, traces: Traces) -> None:
    seen: list[int] = []

    @job("shop.letters.v1")
    async def letters(letter: dict[str, Any]) -> None:
        seen.append(trace.get_current_span().get_span_context().trace_id)

    @job("shop.fails.v1", max_attempts=1, dead_letter=letters)
    def fails(state: int) -> None:
        seen.append(trace.get_current_span().get_span_context().trace_id)
        raise ValueError(state)

    async with Worker([fails, letters], dsn=durable_dsn, settings=QUICK) as worker, asyncio.timeout(PATIENCE):
        await worker.insert(fails, 1)
        while len(seen) < 2:
            await asyncio.sleep(0.01)
    assert seen[0] == seen[1] != 0
