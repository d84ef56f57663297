"""A bad outcome fails its instance with a helpful error, keeps its state, and does not affect others."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

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
    Spec,
    Stop,
    Worker,
    step,
)
from tests.clients.assertions import assert_failed
from tests.clients.machines import Number

LONG = timedelta(seconds=30)


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


async def nothing() -> None: ...


# Return value of the step → last_error of the row.
OUTCOMES: dict[str, tuple[Callable[[], Any], str]] = {
    "an unknown step": (
        lambda: Next("edn"),
        "UnknownStepError: step 'bad': machine 'Bad' has no step 'edn'; did you mean 'end'? "
        "Use one of its steps (bad, worse, end), or add it.",
    ),
    "an unknown step after a signal": (
        lambda: Await("x", then="nowhere"),
        "machine 'Bad' has no step 'nowhere'",
    ),
    "an unknown step after children": (lambda: ScheduleChildren([], then="nowhere"), "has no step 'nowhere'"),
    "a step outside of to=": (
        lambda: Next("worse"),
        "went to 'worse'; its to= allows only end; add the step there",
    ),
    "nothing": (
        lambda: None,
        "OutcomeError: step 'bad' of machine 'Bad' returned None, not an outcome; "
        "return Next, Retry, Await, ScheduleChildren, Done or Stop on every path",
    ),
    "a coroutine of its own": (
        lambda: nothing(),
        "returned a coroutine, not an outcome; await it",
    ),
    "a text": (lambda: "done", "returned a value of type str, not an outcome; return Next, Retry"),
    "the class of an outcome": (lambda: Done, "returned a value of type type, not an outcome"),
    "a result of NaN": (
        lambda: Done(float("nan")),
        "NaN or infinity, which JSON does not have; use None",
    ),
    "an infinite result": (lambda: Done([1, float("inf")]), "NaN or infinity"),
    "a result with NUL": (
        lambda: Done({"a": "\0"}),
        "a NUL character, which PostgreSQL cannot store; remove it",
    ),
    "a result with half a pair": (
        lambda: Done("\udc00"),
        "a lone surrogate, which is not valid Unicode",
    ),
    "a result without JSON form": (lambda: Done(object()), "a value of type object has no form in JSON"),
    "a result that is too large": (lambda: Done("x" * 2000), "it is 2002 bytes of JSON, 2000 are allowed"),
    "a result that is too deep": (
        lambda: Done(nested(100)),
        "it is nested more than 100 levels deep; flatten it",
    ),
    "a result that has no end": (lambda: Done(nested(50_000)), "nested"),
    "a result of too many digits": (
        lambda: Done(10**400),
        "a number of more than 400 digits; store it as a string",
    ),
    "a state of another type": (
        lambda: Next("end", 5),
        "the state of Bad {id} cannot be stored as str: it is of type int",
    ),
    "a state with NUL": (lambda: Next("end", "\0"), "a NUL character"),
    "a state that is too large": (lambda: Await("x", then="end", state="x" * 2000), "2000 are allowed"),
    "a state of a retry": (lambda: Retry(state=5), "the state of Bad {id} cannot be stored as str"),
    "a negative delay": (
        lambda: Next("end", delay=timedelta(seconds=-1)),
        "UsageError: the delay of this Next is negative (-1s); give zero or more",
    ),
    "a negative delay of a retry": (
        lambda: Retry(timedelta(seconds=-1)),
        "the delay of this Retry is negative",
    ),
    "a bare number": (
        lambda: Retry(1000),  # type: ignore[arg-type]
        "the delay of this Retry is a number without a unit, got 1000; use timedelta(seconds=1000) or timedelta(milliseconds=1000)",
    ),
    "a negative timeout": (
        lambda: Await("x", then="end", timeout=timedelta(-1)),
        "the timeout of this Await is negative",
    ),
    "a naive deadline": (
        lambda: Await("x", then="end", deadline=datetime(2030, 1, 1)),  # noqa: DTZ001
        "the deadline of this Await has no time zone (2030-01-01 00:00:00); write datetime(…, tzinfo=UTC)",
    ),
    "an await of nothing": (lambda: Await(then="end"), "so it would never end; give one"),  # type: ignore[call-overload]
    "an await of a list": (lambda: Await(["x"], then="end"), "unpack it: Await(*signals, then=…)"),  # type: ignore[call-overload]
    "65 signals": (lambda: Await(*map(str, range(65)), then="end"), "names 65 signals; name at most 64"),
    "a signal without name": (
        lambda: Await("", then="end"),
        "the name of a signal is empty; give 1 to 255 bytes",
    ),
    "a signal of a long name": (
        lambda: Await("x" * 256, then="end"),
        "the name of a signal is 256 bytes long",
    ),
    "a long key": (
        lambda: Next("end", concurrency_key="k" * 1025),
        "concurrency_key is 1025 bytes long; give at most",
    ),
    "a step without name": (lambda: Next(""), "the name of a step is empty"),
    "too many children": (
        lambda: ScheduleChildren([Spec(Number, n) for n in range(4)], then="end"),
        "schedules 4 children; schedule at most 3 at once, or raise settings.max_children",
    ),
    "a child of another type": (
        lambda: ScheduleChildren([Spec(Number, 1), Spec(Number, "x")], then="end"),  # type: ignore[misc]  # that is the point
        "EncodeError: the state of Number cannot be stored as int: it is of type str",
    ),
    "children that are none": (
        lambda: ScheduleChildren([1], then="end"),  # type: ignore[list-item]
        "child 0 is of type int; wrap each one: Spec(",
    ),
    "a child with a bad option": (
        lambda: ScheduleChildren([Spec(Number, 1, priority=10**6)], then="end"),
        "the priority is 1000000; give a number from",
    ),
    "an exception": (lambda: 1 / 0, "ZeroDivisionError: division by zero"),
    "a stop that cannot be stored": (lambda: Stop("x\0y\ud800"), "x\\x00y\\ud800"),
}


class Bad(Machine[str, Any]):
    @step(to=["end"])
    async def bad(self, ctx: Context[str]) -> Outcome[Any]:
        if ctx.attempt:
            return Stop("it was retried without a Retry")
        returned: Outcome[Any] = OUTCOMES[ctx.state][0]()
        return returned

    @step
    def worse(self, ctx: Context[str]) -> Outcome[Any]:
        return nothing()  # type: ignore[return-value]  # a plain def that returns a coroutine

    @step
    async def end(self, ctx: Context[str]) -> Outcome[Any]:
        return Done("well")


class Handler(Machine[str, Any]):
    """Its `handle` is broken too."""

    @step
    async def only(self, ctx: Context[str]) -> Outcome[Any]:
        raise RuntimeError("the first")

    def handle(self, error: Exception, ctx: Context[str]) -> Outcome[Any]:
        if ctx.state == "raises":
            raise ValueError("the second")
        if ctx.state == "unknown":
            return Next("nowhere")
        if ctx.state == "nan":
            return Done(float("nan"))
        return None  # type: ignore[return-value]  # that is the point


# The state → what `handle` raises.
HANDLERS = {
    "raises": "ValueError: the second",
    "unknown": "UnknownStepError: step 'only': machine 'Handler' has no step 'nowhere'",
    "nan": "EncodeError: the result of Handler {id} cannot be stored as Any: it contains NaN",
    "none": "OutcomeError: step 'handle of only' of machine 'Handler' returned None, not an outcome",
}


async def test_bad_outcomes_fail_only_their_instance(durable_dsn: str) -> None:
    settings = Settings.load(max_payload=2000, max_children=3)
    async with Worker([Bad, Handler, Number], dsn=durable_dsn, settings=settings) as worker:
        good = await worker.insert_all([Spec(Number, n) for n in range(20)])
        bad = await worker.insert_all([Spec(Bad, name) for name in OUTCOMES])
        coroutine = await worker.insert(Bad, "a coroutine", step=Bad.worse)
        handled = await worker.insert_all([Spec(Handler, name) for name in HANDLERS])
        for instance in await worker.wait_all(bad, timeout=LONG):
            assert_failed(instance, instance.state, OUTCOMES[instance.state][1])
        for instance in await worker.wait_all(handled, timeout=LONG):
            error = f"RuntimeError: the first; then handle raised {HANDLERS[instance.state]}"
            assert_failed(instance, instance.state, error)
        plain_def = await worker.wait(coroutine, timeout=LONG)
        assert_failed(
            plain_def,
            "a coroutine",
            "returned a coroutine, not an outcome; await it in an `async def`",
        )
        assert [one.result for one in await worker.wait_all(good, timeout=LONG)] == list(range(20))
        assert await worker.count(Number) == 20, "no child of a refused outcome is there"
