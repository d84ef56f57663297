"""Machines of the telemetry tests, and a process that runs them."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import msgspec
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from gen_durable import (
    Await,
    Context,
    Done,
    Machine,
    Next,
    Outcome,
    Retry,
    ScheduleChildren,
    Settings,
    Signal,
    Spec,
    Stop,
    Worker,
    step,
)
from gen_durable.contrib import opentelemetry

QUICK = Settings(
    poll_interval=timedelta(milliseconds=50),
    min_poll_interval=timedelta(milliseconds=50),
    drain_timeout=timedelta(seconds=5),
)
log = logging.getLogger("shop")


class Leg(Machine[int, int]):
    @step
    def walk(self, ctx: Context[int]) -> Outcome[int]:
        log.info("walking")
        if ctx.state == 2 and ctx.attempt == 0:
            raise ValueError("a stone in the shoe")
        return Done(ctx.state)

    def handle(self, error: Exception, ctx: Context[int]) -> Outcome[int]:
        return Retry()


class Trip(Machine[None, None]):
    go = Signal("go", int)

    @step
    async def plan(self, ctx: Context[None]) -> Outcome[None]:
        log.info("planning")
        return Next(self.start)

    @step
    async def start(self, ctx: Context[None]) -> Outcome[None]:
        return ScheduleChildren([Spec(Leg, 1), Spec(Leg, 2)], then=self.rest)

    @step
    async def rest(self, ctx: Context[None]) -> Outcome[None]:
        return Await(self.go, then=self.end)

    @step
    async def end(self, ctx: Context[None]) -> Outcome[None]:
        return Stop("far enough")


class Line(msgspec.Struct):
    """A recorded span."""

    name: str
    trace: int
    span: int
    parent: int | None
    links: list[int]
    attributes: dict[str, str | int]
    error: str | None
    events: list[str]
    pid: int


class Lines(SpanExporter):
    """Appends spans to a file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with self._file.open("ab") as file:
            file.write(b"".join(msgspec.json.encode(line_of(span)) + b"\n" for span in spans))
        return SpanExportResult.SUCCESS


def line_of(span: ReadableSpan) -> Line:
    context = span.get_span_context()
    assert context is not None
    return Line(
        name=span.name,
        trace=context.trace_id,
        span=context.span_id,
        parent=span.parent.span_id if span.parent else None,
        links=[link.context.span_id for link in span.links],
        attributes=dict(span.attributes or {}),  # type: ignore[arg-type]  # ours are texts and numbers
        error=None if span.status.is_ok or span.status.is_unset else span.status.description,
        events=[event.name for event in span.events],
        pid=os.getpid(),
    )


def main(dsn: str, file: str) -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Lines(Path(file))))
    opentelemetry.instrument(provider)
    Worker([Trip, Leg], dsn=dsn, settings=QUICK).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
