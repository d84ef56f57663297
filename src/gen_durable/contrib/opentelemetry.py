"""OpenTelemetry tracing: one instance is one trace, whichever processes its steps run in.

    from gen_durable.contrib import opentelemetry

    opentelemetry.instrument()                   # in producers and workers, before the first insert

An insert stores a trace context with the instance: that of the current span, or of a new span `insert M`. Every
execution of a step is a child span of it. Children of an instance, and instances that a step inserts, are below the
span of that step. A step that a signal woke has a link to the span of the sender. Needs the extra `otel`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from .._running import Running
from .._tracing import set_tracing, tracing
from .._version import VERSION

__all__ = ["instrument"]

_W3C: Final = TraceContextTextMapPropagator()


def instrument(provider: trace.TracerProvider | None = None) -> Callable[[], None]:
    """Start tracing in this process: the steps of one instance are one trace.

        instrument()

    Args:
        provider: the tracer provider; default: the global one.

    Returns:
        A function that stops tracing.
    """
    ours = _OpenTelemetry(trace.get_tracer_provider() if provider is None else provider)
    set_tracing(ours)

    def end() -> None:
        if tracing() is ours:
            set_tracing(None)

    return end


class _OpenTelemetry:
    def __init__(self, provider: trace.TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("gen_durable", VERSION)

    def insert(self, machine: str) -> str | None:
        if (current := self.signal()) is not None:
            return current
        span = self._tracer.start_span(
            f"insert {machine}", kind=SpanKind.PRODUCER, attributes={"gen_durable.machine": machine}
        )
        span.end()
        return _traceparent(trace.set_span_in_context(span))

    def signal(self) -> str | None:
        return _traceparent(None)

    @contextmanager
    def step(self, execution: Running) -> Iterator[_Span]:
        name = f"{execution.fsm}.{execution.step}"
        with self._tracer.start_as_current_span(
            name,
            context=self._parent(execution, name),
            kind=SpanKind.CONSUMER,
            attributes={
                "gen_durable.instance": execution.id,
                "gen_durable.machine": execution.fsm,
                "gen_durable.version": execution.version,
                "gen_durable.step": execution.step,
                "gen_durable.step_seq": execution.step_seq + 1,
                "gen_durable.execution": execution.number,
                "gen_durable.attempt": execution.attempt,
                "gen_durable.queue": execution.queue,
            },
            links=[
                Link(
                    trace.get_current_span(_W3C.extract({"traceparent": sent.traceparent})).get_span_context()
                )
                for sent in execution.awaited
                if sent.traceparent is not None
            ],
        ) as span:
            yield _Span(span)

    def _parent(self, execution: Running, name: str) -> Context:
        if execution.traceparent is not None:
            return _W3C.extract({"traceparent": execution.traceparent}, Context())
        # Inserted without tracing. Every process derives the same context from the row, so the steps are one trace. The
        # sampler decides on it as on any root span.
        seed = f"{execution.fsm} {execution.id} {execution.inserted_at}".encode()
        trace_id = int.from_bytes(hashlib.blake2b(seed, digest_size=16).digest())
        span_id = int.from_bytes(hashlib.blake2b(seed, digest_size=8).digest())
        sampler = getattr(self._provider, "sampler", None)
        is_sampled = sampler is None or sampler.should_sample(None, trace_id, name).decision.is_sampled()
        flags = TraceFlags(TraceFlags.SAMPLED if is_sampled else TraceFlags.DEFAULT)
        parent = trace.NonRecordingSpan(SpanContext(trace_id, span_id, is_remote=True, trace_flags=flags))
        return trace.set_span_in_context(parent, Context())


class _Span:
    def __init__(self, span: trace.Span) -> None:
        self._span = span

    def failed(self, error: BaseException) -> None:
        self._span.record_exception(error)

    def ended(self, kind: str, error: str | None) -> None:
        self._span.set_attribute("gen_durable.outcome", "next" if kind == "continue" else kind)
        if error is not None:
            self._span.set_status(Status(StatusCode.ERROR, error))


def _traceparent(context: Context | None) -> str | None:
    carrier: dict[str, str] = {}
    _W3C.inject(carrier, context)
    return carrier.get("traceparent")
