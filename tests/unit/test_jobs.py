# mypy: ignore-errors
# ruff: noqa: ANN001, ANN003, ANN202 - written as by a user without types
"""Job definitions: accepted and rejected functions."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Never, NoReturn, TypedDict

import msgspec
import pytest

from gen_durable.context import Context
from gen_durable.definition import definition_of
from gen_durable.errors import OptionError, StateTypeError, StepSignatureError, UsageError
from gen_durable.instance import Status
from gen_durable.jobs import STEP, Job, job
from gen_durable.machine import Machine, step
from gen_durable.outcome import Await, Done, Next, Outcome, Retry, ScheduleChildren, Stop
from gen_durable.refs import Ref, Spec
from gen_durable.retry import Backoff, backoff

if TYPE_CHECKING:
    from decimal import Decimal


class Order(msgspec.Struct):
    id: int


class Receipt(msgspec.Struct):
    order: int


def context(state: Any = None, attempt: int = 0, **more: Any) -> Context[Any]:
    return Context(id=1, machine="m", version=1, step="run", attempt=attempt, step_seq=1, state=state, **more)


def made(function: Callable[..., Any], **options: Any) -> Job[Any, Any]:
    return job("m.made", **options)(function)


def run(which: Job[Any, Any], state: Any = None) -> Any:
    """The outcome of its step."""
    only = which.__definition__.steps[STEP]
    value = only.function(which, context(state))
    return asyncio.run(value) if only.is_async else value


# Definitions


def test_job_definition_is_read_once() -> None:
    @job("shop.ship.v1", version=3, queue="ships", lease=timedelta(minutes=2))
    async def ship(order: Order, ctx: Context[Order]) -> Receipt:
        """Sends it."""

    definition = ship.__definition__
    assert definition_of(ship) is definition
    assert (definition.name, definition.version, definition.queue) == ("shop.ship.v1", 3, "ships")
    assert (definition.state_type, definition.result_type, definition.initial) == (Order, Receipt, "run")
    assert definition.location.endswith("test_jobs.test_job_definition_is_read_once.<locals>.ship")
    (only,) = definition.steps.values()
    assert (only.name, only.is_async, only.is_initial, only.to) == ("run", True, True, ())
    assert (only.retry, only.lease) == (backoff, timedelta(minutes=2))
    assert (ship.name, ship.__doc__, ship.__module__) == ("shop.ship.v1", "Sends it.", __name__)
    assert definition.dead_letter is None


def _none(): ...
def _payload(order: Order): ...
def _both(order: Order, ctx: Context[Order]): ...
def _bare(order: Order, ctx: Context): ...
def _any(order: Any, ctx: Any): ...
def _untyped(order, ctx): ...
def _default(order: Order | None = None): ...
def _own(order: Order, factor: int = 2): ...
def _keyword(order: Order, *, factor: int = 2): ...
def _keywords(order: Order, **more): ...
def _only_keywords(*, factor: int = 2): ...
def _three(order: Order, ctx: Context[Order], factor: int = 2): ...
def _optional(order: Order, ctx: Context[Order] = None): ...


@pytest.mark.parametrize(
    ("function", "payload", "takes"),
    [
        (_none, None, 0),
        (_payload, Order, 1),
        (_both, Order, 2),
        (_bare, Order, 2),
        (_any, Any, 2),
        (_untyped, Any, 2),
        (_default, Order | None, 1),
        (_own, Order, 1),
        (_keyword, Order, 1),
        (_keywords, Order, 1),
        (_only_keywords, None, 0),
        (_three, Order, 2),
        (_optional, Order, 2),
    ],
)
def test_payload_and_context_are_passed_if_declared(function: Any, payload: Any, takes: int) -> None:
    given: list[tuple[Any, ...]] = []

    @functools.wraps(function)
    def listening(*args: Any) -> None:
        given.append(args)

    definition = made(listening).__definition__
    assert definition.state_type == payload
    state = Order(7)
    ctx = context(state)
    definition.steps[STEP].function(None, ctx)
    assert given == [(state, ctx)[:takes]]


def _returns(annotation: Any) -> Any:
    def function(): ...

    function.__annotations__["return"] = annotation
    return made(function).__definition__.result_type


@pytest.mark.parametrize(
    ("annotation", "result"),
    [
        (Receipt, Receipt),
        (None, None),
        (Done, Any),
        (Done[Receipt], Receipt),
        (Done[None], None),
        (Done[Receipt] | None, Receipt | None),
        (Done[Receipt] | int, Receipt | int),
        (NoReturn, None),
        (Never, None),
        (list[int], list[int]),
        ("Receipt", Receipt),
        (Any, Any),
    ],
)
def test_result_type_is_the_return_type_or_that_of_done(annotation: Any, result: Any) -> None:
    assert _returns(annotation) == result


def test_unannotated_job_takes_any_json() -> None:
    definition = made(lambda order: order).__definition__
    assert (definition.state_type, definition.result_type) == (Any, Any)


def test_job_types_may_be_local() -> None:
    @dataclass
    class Local:
        n: int

    class Fields(TypedDict):
        n: int

    @job("m.local")
    def local(given: Local, ctx: Context[Local]) -> list[Fields]: ...

    definition = local.__definition__
    assert (definition.state_type, definition.result_type) == (Local, list[Fields])


def test_return_value_becomes_done() -> None:
    assert run(made(lambda: 7)) == Done(7)
    assert run(made(lambda: None)) == Done(None)
    assert run(made(lambda: Done(7))) == Done(7)
    assert run(made(lambda n: n + 1), 7) == Done(8)

    async def later(n):
        return n * 2

    assert run(made(later), 7) == Done(14)


@pytest.mark.parametrize(
    "outcome", [Retry(), Stop("no"), Next("run"), Await("go", then="run"), ScheduleChildren([], then="run")]
)
def test_other_outcomes_are_rejected_as_results(outcome: Any) -> None:
    with pytest.raises(UsageError, match=f"job 'm' returned {type(outcome).__name__}; return the result"):
        run(made(lambda: outcome))


# Retries


def test_retry_policy_takes_max_attempts_of_the_job() -> None:
    policy = Backoff(max_attempts=9, base=timedelta(minutes=1), jitter=0)

    def of(**options: Any) -> Backoff | None:
        return made(lambda: None, **options).__definition__.steps[STEP].retry

    assert of() == backoff == Backoff(max_attempts=3)
    assert of(max_attempts=5) == Backoff(max_attempts=5)
    assert of(retry=policy) == policy
    assert of(retry=policy, max_attempts=2) == Backoff(max_attempts=2, base=timedelta(minutes=1), jitter=0)


@pytest.mark.parametrize(
    ("attempt", "limit", "outcome"),
    [
        (0, None, Retry(timedelta(seconds=1))),
        (1, None, Retry(timedelta(seconds=2))),
        (2, None, Stop("ValueError: no")),
        (7, None, Stop("ValueError: no")),
        (0, 1, Stop("ValueError: no")),
        (3, 5, Retry(timedelta(seconds=8))),
        (4, 5, Stop("ValueError: no")),
    ],
)
def test_job_handle_counts_executions(attempt: int, limit: int | None, outcome: Outcome) -> None:
    which = made(lambda: None, retry=Backoff(jitter=0))
    assert which.handle(ValueError("no"), context(attempt=attempt, max_attempts=limit)) == outcome


# Rejected definitions


def _generator():
    yield 1


async def _async_generator():
    yield 1


def _swapped(ctx: Context[Order], order: Order): ...
def _lonely(ctx: Context): ...
def _crowded(order: Order, ctx: Context, more: int): ...
def _needs(order: Order, *, factor: int): ...
def _strange(order: Order, ctx: Receipt): ...
def _unknown(order: Decimal): ...
def _unknown_result(order: Order) -> Decimal: ...
def _misspelt(order: "Ordre"): ...  # noqa: F821, UP037 - the fault that is looked for
def _nonsense(order: "Order["): ...  # noqa: F722 - the fault that is looked for
def _unstorable(order: Order | Receipt): ...
def _unstorable_result(order: Order) -> Order | Receipt: ...


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (
            _generator,
            StepSignatureError,
            r"job 'm\.made' is a generator; write a function that returns its result",
        ),
        (_async_generator, StepSignatureError, "is a generator"),
        (
            _swapped,
            StateTypeError,
            r"its first parameter is a Context; write \(payload, ctx\)",
        ),
        (_lonely, StateTypeError, "its first parameter is a Context"),
        (
            _crowded,
            StepSignatureError,
            r"write _crowded\(payload\), _crowded\(payload, ctx\) or _crowded\(\)",
        ),
        (_needs, StepSignatureError, r"is _needs\(order: 'Order', \*, factor: 'int'\)"),
        (_strange, StepSignatureError, r"write _strange\(payload\), _strange\(payload, ctx\)"),
        (
            _unknown,
            StateTypeError,
            "its annotations name 'Decimal', which is not defined at run time; define it before",
        ),
        (_unknown_result, StateTypeError, "import it outside `if TYPE_CHECKING:`"),
        (_misspelt, StateTypeError, "its annotations name 'Ordre'"),
        (_nonsense, StateTypeError, "its annotations cannot be evaluated"),
        (_unstorable, StateTypeError, r"the payload of job 'm\.made'.* cannot be read from JSON"),
        (_unstorable_result, StateTypeError, r"the result of job 'm\.made'.* cannot be read from JSON"),
        (print, StepSignatureError, "is on <built-in function print>; write @job"),
        (Order, StepSignatureError, r"write @job\(name\) directly above `def`"),
        (functools.partial(_payload), StepSignatureError, "write @job"),
        (staticmethod(_payload), StepSignatureError, "write @job"),
        (job("m.first")(lambda: None), StepSignatureError, r"is on <job m\.first>"),
    ],
)
def test_invalid_job_function_is_rejected(function: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        made(function)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("", {}, "the name of a job is empty"),
        ("x" * 256, {}, "the name of a job is 256 bytes long"),
        ("a\0", {}, "the name of a job contains a NUL"),
        (7, {}, "the name of a job is of type int"),
        (_payload, {}, r"@job above '_payload' has no name; write @job\(\"_payload\"\)"),
        ("m", {"version": 0}, "the version of machine 'm' is 0"),
        ("m", {"queue": ""}, "the queue of machine 'm' is empty"),
        ("m", {"max_attempts": 0}, "max_attempts of this Backoff is 0"),
        ("m", {"max_attempts": "3"}, "max_attempts of this Backoff is '3'"),
        ("m", {"max_attempts": True}, "max_attempts of this Backoff is True"),
        ("m", {"retry": 5}, r"retry of job 'm' is of type int; give a Backoff\(…\)"),
        ("m", {"lease": 60}, "lease of job 'm' is a number without a unit, got 60; use "),
        ("m", {"lease": timedelta(0)}, "lease of job 'm' is 0s"),
        ("m", {"dead_letter": ""}, "dead_letter is empty"),
        (
            "m",
            {"dead_letter": "m"},
            "job 'm' is its own dead_letter; name another job",
        ),
    ],
)
def test_invalid_job_option_is_rejected(name: Any, options: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        job(name, **options)(_payload)


def test_dead_letter_is_a_name_or_a_job() -> None:
    class Archive(Machine, name="ops.archive"):
        @step
        def file(self, ctx): ...

    other = job("ops.dead.v1")(_payload)
    letters = [
        made(_payload, dead_letter=each).__definition__.dead_letter
        for each in ("a.b", other, Archive, Archive())
    ]
    assert letters == ["a.b", "ops.dead.v1", "ops.archive", "ops.archive"]
    with pytest.raises(UsageError, match="int is neither a machine nor a job"):
        made(_payload, dead_letter=7)


def test_unknown_options_are_rejected() -> None:
    with pytest.raises(OptionError, match="job 'm' has no option 'max_attemps'; did you mean 'max_attempts'"):
        job("m", max_attemps=3)


# Use


def test_job_works_in_specs_and_refs() -> None:
    which = made(_payload, queue="q")
    spec = Spec(which, Order(1), priority=2, max_attempts=4)
    assert (spec.values.step, spec.values.queue, spec.values.priority, spec.values.max_attempts) == (
        "run",
        "q",
        2,
        4,
    )
    assert repr(spec) == f"Spec(m.made, {Order(1)!r}, priority=2, max_attempts=4)"
    assert repr(Ref(which, 7)) == "Ref(m.made, 7)"
    assert Ref(which, 7) == Ref(made(_payload), 7)
    assert Spec(which, Order(1), idempotency_key="k").values.unique_scope == tuple(Status)


def test_job_is_callable() -> None:
    def add(n, m=2):
        return n + m

    assert made(add)(1) == 3
    assert made(add)(1, m=4) == 5
