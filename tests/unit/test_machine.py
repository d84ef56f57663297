# mypy: ignore-errors
# ruff: noqa: ANN001, ANN002, ANN202 - written as by a user without types
"""Machine definitions: accepted and rejected classes."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeVar

import msgspec
import pytest

from gen_durable import errors
from gen_durable.context import Context
from gen_durable.definition import MachineDef, StepDef, definition_of
from gen_durable.errors import OptionError, StateTypeError, StepSignatureError, UnknownStepError
from gen_durable.machine import BoundStep, Machine, Step, check_annotations, step
from gen_durable.outcome import Done, Next, Outcome, Retry, Stop
from gen_durable.retry import Backoff
from gen_durable.signals import Signal


class Order(msgspec.Struct):
    id: int


class Other(msgspec.Struct):
    x: int


class Receipt(msgspec.Struct, tag=True):
    order: int


class Refund(msgspec.Struct, tag=True):
    order: int


T = TypeVar("T")


class Checkout(Machine[Order, Receipt], version=2, queue="checkout", retry=Backoff(max_attempts=5, jitter=0)):
    payment = Signal("payment_confirmed", Other)
    withdrawn = Signal("withdrawn")

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix

    @step
    async def start(self, ctx: Context[Order]) -> Outcome:
        """Begin."""
        return Next(self.ship)

    @step(retry=Backoff(max_attempts=1), to=["start"])
    def ship(self, ctx: Context[Order]) -> Outcome[Receipt]:
        return Stop(f"{self.prefix}{ctx.state.id}")

    def helper(self, ctx: Context[Order]) -> Outcome[Receipt]:
        return Stop("")


def context(name: str, attempt: int = 0, state: Any = None) -> Context[Any]:
    return Context(id=1, machine="M", version=1, step=name, attempt=attempt, step_seq=1, state=state)


# Definitions


def test_machine_definition_is_read_once() -> None:
    definition = Checkout.__definition__
    assert (definition.name, definition.version, definition.queue) == ("Checkout", 2, "checkout")
    assert list(definition.steps) == ["start", "ship"]
    assert definition.initial == "start"
    assert (definition.state_type, definition.result_type) == (Order, Receipt)
    assert definition.signals == {"payment_confirmed": Other, "withdrawn": None}
    assert definition.location == f"{__name__}.Checkout"
    assert definition_of(Checkout) is definition_of(Checkout()) is definition


def test_steps_have_kind_and_retry_policy() -> None:
    start, ship = Checkout.__definition__.steps.values()
    assert (start.is_async, ship.is_async) == (True, False)
    assert (start.retry.max_attempts, ship.retry.max_attempts) == (5, 1)
    assert (start.to, ship.to) == (None, ("start",))


def test_initial_step_can_be_marked() -> None:
    class M(Machine):
        @step
        def a(self, ctx): ...

        @step(initial=True)
        def b(self, ctx): ...

    assert M.__definition__.initial == "b"


def test_untyped_machine_has_a_dict_state_and_any_result() -> None:
    class M(Machine):
        @step
        def a(self, ctx: Context) -> Outcome: ...

    assert (M.__definition__.state_type, M.__definition__.result_type) == (dict[str, Any], Any)
    assert (M.__definition__.name, M.__definition__.version, M.__definition__.queue) == ("M", 1, "default")


def test_nested_state_class_is_the_state_type() -> None:
    class M(Machine):
        @dataclass
        class State:
            n: int

        @step
        def a(self, ctx: Context[State]) -> Outcome: ...

    assert M.__definition__.state_type is M.State


def test_types_are_resolved_through_generic_bases() -> None:
    class Batch(Machine[list[T], T]):
        pass

    class Numbers(Batch[int]):
        @step
        def a(self, ctx: Context[list[int]]) -> Outcome[int]: ...

    class Special(Numbers):
        pass

    class Both(Machine[T], Generic[T]):
        pass

    class One(Both[Order]):
        @step
        def a(self, ctx: Context[Order]) -> Outcome: ...

    for machine in (Numbers, Special):
        assert (machine.__definition__.state_type, machine.__definition__.result_type) == (list[int], int)
    assert (One.__definition__.state_type, One.__definition__.result_type) == (Order, Any)


def test_subclass_inherits_queue_and_retry_only() -> None:
    class Base(Machine[Order], name="b", version=7, queue="billing", retry=Backoff(max_attempts=5)):
        pass

    class Charge(Base):
        @step
        def go(self, ctx: Context[Order]) -> Outcome: ...

    definition = Charge.__definition__
    assert (definition.name, definition.version, definition.queue) == ("Charge", 1, "billing")
    assert definition.steps["go"].retry.max_attempts == 5


def test_step_may_be_overridden_and_called_by_super() -> None:
    class Base(Machine[int]):
        @step
        def a(self, ctx: Context[int]) -> Outcome:
            return Done(ctx.state)

        @step
        def b(self, ctx: Context[int]) -> Outcome: ...

    class Twice(Base):
        @step
        def a(self, ctx: Context[int]) -> Outcome:
            return Done(super().a(ctx).result * 2)

        b = None

    machine = Twice()
    assert [machine.a(context("a", state=4)).result for _ in range(2)] == [8, 8]
    assert list(Twice.__definition__.steps) == ["a"]
    assert list(Base.__definition__.steps) == ["a", "b"]


# Steps by reference


def test_step_is_bound_once() -> None:
    one, other = Checkout("a"), Checkout("b")
    assert one.ship is one.ship
    assert one.ship is not other.ship
    assert isinstance(one.ship, BoundStep)
    assert isinstance(Checkout.ship, Step)
    assert Checkout.ship.name == one.ship.name == "ship"
    assert Checkout.start.__doc__ == "Begin."
    assert (repr(one.ship), repr(Checkout.ship)) == ("<step Checkout.ship>", "<step ship>")


def test_bound_step_can_be_called() -> None:
    machine = Checkout("#")
    assert machine.ship(context("ship", state=Order(7))) == Stop("#7")
    assert asyncio.run(machine.start(context("start"))) == Next("ship")


# The default `handle`


def test_default_handle_stops_without_a_retry_policy() -> None:
    class M(Machine):
        @step
        def a(self, ctx): ...

    assert M().handle(ValueError("no"), context("a")) == Stop("ValueError: no")


def test_default_handle_retries_up_to_max_attempts() -> None:
    error, machine = ValueError("no"), Checkout()
    delays = [Retry(timedelta(seconds=seconds)) for seconds in (1, 2, 4, 8)]
    assert [machine.handle(error, context("start", attempt)) for attempt in range(5)] == [
        *delays,
        Stop(error),
    ]
    assert machine.handle(error, context("ship", 0)) == Stop(error)


def test_default_handle_stops_at_an_unknown_step() -> None:
    error = UnknownStepError("Checkout", "old", ("start",))
    assert Checkout().handle(error, context("old")) == Stop(error)


# Rejected definitions


def test_two_steps_of_one_name_are_rejected() -> None:
    expected = r"machine 'M' defines step 'a' twice \(lines \d+ and \d+\)"
    with pytest.raises(errors.DuplicateStepError, match=expected):

        class M(Machine):
            @step
            def a(self, ctx): ...

            @step
            def a(self, ctx): ...  # noqa: F811

    with pytest.raises(errors.DuplicateStepError, match=expected):

        class M(Machine):
            @step
            def a(self, ctx): ...

            @step(initial=True)
            def a(self, ctx): ...  # noqa: F811


def test_two_initial_steps_are_rejected() -> None:
    with pytest.raises(errors.InitialStepError, match=r"machine 'M' has 2 initial steps \(a, b\)"):

        class M(Machine):
            @step(initial=True)
            def a(self, ctx): ...

            @step(initial=True)
            def b(self, ctx): ...


def test_class_without_steps_is_not_a_machine() -> None:
    class Empty(Machine[Order]):
        pass

    with pytest.raises(errors.InitialStepError, match="machine 'Empty' has no steps"):
        definition_of(Empty)


@pytest.mark.parametrize("parameters", ["self", "self, ctx, more", "self, *, ctx", "", "self, ctx, *, more"])
@pytest.mark.parametrize("decorator", ["@step", "@step()"])
def test_step_with_other_parameters_is_rejected(parameters: str, decorator: str) -> None:
    source = f"class M(Machine):\n  {decorator}\n  def s({parameters}): ...\n"
    with pytest.raises(StepSignatureError, match=r"step 'M\.s' is s\(.*\); write s\(self, ctx\)"):
        exec(source, {"Machine": Machine, "step": step})


def test_step_parameter_with_a_default_is_accepted() -> None:
    class M(Machine):
        @step
        def s(self, ctx, more=1): ...

    assert list(M.__definition__.steps) == ["s"]


def test_step_without_context_is_rejected() -> None:
    expected = r"is s\(self, order: Order\); write s\(self, order: Context\[Order\]\)"
    with pytest.raises(StepSignatureError, match=expected):

        class M(Machine[Order]):
            @step
            def s(self, order: Order) -> Outcome: ...


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_generator_step_is_rejected(kind: str) -> None:
    source = f"class M(Machine):\n  @step\n  {kind} s(self, ctx):\n    yield 1\n"
    with pytest.raises(
        StepSignatureError, match=r"step 'M\.s' is a generator; write a function that returns"
    ):
        exec(source, {"Machine": Machine, "step": step})


@pytest.mark.parametrize("kind", [staticmethod, classmethod])
def test_static_or_class_method_step_is_rejected(kind: Any) -> None:
    with pytest.raises(
        StepSignatureError, match=f"step 's' of machine 'M' is a {kind.__name__}; write @step alone"
    ):

        class M(Machine):
            @kind
            @step
            def s(self, ctx): ...

    with pytest.raises(StepSignatureError, match=f"@step on a {kind.__name__} is not on a function"):

        class M(Machine):
            @step
            @kind
            def s(self, ctx): ...


def test_decorated_step_is_rejected() -> None:
    def logged(function):
        @functools.wraps(function)
        def wrapper(*args): ...

        wrapper.__wrapped__ = function
        return wrapper

    with pytest.raises(StepSignatureError, match="write @step alone, on a plain method"):

        class M(Machine):
            @logged
            @step
            def s(self, ctx): ...


def test_step_with_two_names_is_rejected() -> None:
    with pytest.raises(OptionError, match="'b' of machine 'M' is an alias of step 'a'"):

        class M(Machine):
            @step
            def a(self, ctx): ...

            b = a


def test_handle_as_a_step_is_rejected() -> None:
    with pytest.raises(StepSignatureError, match="is named like the error handler; write another name"):

        class M(Machine):
            @step
            def handle(self, ctx): ...


@pytest.mark.parametrize(
    "source", ["def handle(self, error): ...", "handle = 5", "def handle(self, e, c): yield 1"]
)
def test_handle_with_other_parameters_is_rejected(source: str) -> None:
    source = f"class M(Machine):\n  @step\n  def s(self, ctx): ...\n  {source}\n"
    with pytest.raises(StepSignatureError, match=r"'M\.handle' is .*; write"):
        exec(source, {"Machine": Machine, "step": step})


def test_step_of_another_state_type_is_rejected() -> None:
    expected = (
        r"step 's' of machine M: it takes Context\[Other\], but the state of the machine is Order; "
        r"write `class M\(Machine\[Other\]\)`, or Context\[Order\]"
    )
    with pytest.raises(StateTypeError, match=expected):

        class M(Machine[Order]):
            @step
            def s(self, ctx: Context[Other]) -> Outcome: ...


def test_typed_step_in_an_untyped_machine_is_rejected() -> None:
    with pytest.raises(StateTypeError, match=r"write `class M\(Machine\[Order\]\)`"):

        class M(Machine):
            @step
            def s(self, ctx: Context[Order]) -> Outcome: ...


def test_step_of_another_result_type_is_rejected() -> None:
    with pytest.raises(StateTypeError, match="its result is int, but the result of the machine is str"):

        class M(Machine[Order, str]):
            @step
            def s(self, ctx: Context[Order]) -> Outcome[int]: ...

    with pytest.raises(StateTypeError, match="its result is int"):

        class M(Machine[Order, str]):
            @step
            async def s(self, ctx: Context[Order]) -> Next | Done[int]: ...


def test_step_may_have_a_narrower_result_type() -> None:
    class M(Machine[Order, Receipt | Refund]):
        @step
        def a(self, ctx: Context[Order]) -> Outcome[Receipt]: ...

        @step
        def b(self, ctx: Context[Order]) -> Done[Refund] | Stop: ...

        @step
        def c(self, ctx: Context[Order]) -> Outcome: ...

    assert len(M.__definition__.steps) == 3


class Later(Machine[Order]):
    @step
    def s(self, ctx: Context[DefinedBelow]) -> Outcome: ...


class DefinedBelow(msgspec.Struct):
    x: int


def test_forward_references_are_checked_at_registration() -> None:
    with pytest.raises(StateTypeError, match=r"it takes Context\[DefinedBelow\], but the state .* is Order"):
        check_annotations(Later)


def test_invalid_annotations_are_rejected() -> None:
    with pytest.raises(StateTypeError, match="its annotations cannot be evaluated"):

        class M(Machine[Order]):
            @step
            def s(self, ctx: Context[Order, Other, Other]) -> Outcome: ...  # type: ignore[type-arg]


class Card(msgspec.Struct):
    number: str


class Cash(msgspec.Struct):
    amount: int


@pytest.mark.parametrize("where", ["state", "result", "signal"])
def test_ambiguous_union_is_rejected(where: str) -> None:
    types = {
        "state": (Card | Cash, int, int),
        "result": (int, Card | Cash, int),
        "signal": (int, int, Card | Cash),
    }
    state, result, payload = types[where]
    with pytest.raises(StateTypeError, match=rf"the .*{where}.* cannot be read from JSON .*must be tagged"):

        class M(Machine[state, result]):
            paid = Signal("paid", payload)

            @step
            def s(self, ctx): ...


class Plain:
    def __init__(self, number: int) -> None:
        self.number = number


@pytest.mark.parametrize("type_", [Plain, list[Plain], dict[str, Plain | None], complex])
def test_class_without_json_form_is_rejected(type_: Any) -> None:
    name, advice = "Plain", r"make \S*Plain a dataclass, a msgspec.Str"
    if type_ is complex:
        name, advice = "complex", "use another type"
    message = rf"the state of machine 'M'.*no JSON form is known for class \S*{name}\); {advice}"
    with pytest.raises(StateTypeError, match=message):

        class M(Machine[type_]):
            @step
            def s(self, ctx): ...


@pytest.mark.parametrize("type_", [object, dict[str, object], Sequence[object], object | None])
def test_object_is_treated_as_any(type_: Any) -> None:
    class M(Machine[type_, object]):
        @step
        def s(self, ctx): ...

    assert M.__definition__.state_type == type_


def test_two_payload_types_of_one_signal_are_rejected() -> None:
    with pytest.raises(
        StateTypeError, match="machine 'M': it declares the signal 'paid' with two payload types"
    ):

        class M(Machine):
            a = Signal("paid", Order)
            b = Signal("paid", Other)

            @step
            def s(self, ctx): ...


def test_one_signal_may_be_two_attributes() -> None:
    class M(Machine):
        a = Signal("paid", Order)
        b = Signal("paid", Order)

        @step
        def s(self, ctx): ...

    assert M.__definition__.signals == {"paid": Order}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": ""}, "the name of machine .*M is empty"),
        ({"name": "x" * 256}, "is 256 bytes long; give at most 255"),
        ({"name": "a\0b"}, "contains a NUL character"),
        ({"name": "\ud800"}, "contains a lone surrogate"),
        ({"name": 7}, "is of type int; give a str"),
        ({"version": 0}, "the version of machine 'M' is 0; give a number from 1 to 2147483647"),
        ({"version": 2**31}, "the version of machine 'M' is 2147483648"),
        ({"version": "1"}, "the version of machine 'M' is of type str"),
        ({"queue": ""}, "the queue of machine 'M' is empty"),
        ({"retry": 3}, r"retry of machine 'M' is of type int; give a Backoff\(…\)"),
        ({"priority": 2**15}, "machine 'M': the priority is 32768; give a number from -32768 to 32767"),
        ({"max_attempts": 0}, "machine 'M': max_attempts is 0; give a number from 1"),
        ({"concurrency_key": ""}, "machine 'M': concurrency_key is empty"),
        ({"concurrency_key": lambda: "k"}, "concurrency_key is a function that does not take one argument"),
        ({"rate_limit": ("a:b", 1)}, "the name in rate_limit contains ':'"),
        (
            {"rate_limit": 7},
            r"rate_limit is of type int; give a text, or \(name, .* or a function of the state",
        ),
    ],
)
def test_invalid_machine_option_is_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):

        class M(Machine, **options):
            @step
            def s(self, ctx): ...


def test_misspelt_option_is_rejected_with_a_hint() -> None:
    with pytest.raises(OptionError, match="machine 'M' has no option 'versoin'; did you mean 'version'"):

        class M(Machine, versoin=2): ...

    with pytest.raises(OptionError, match="@step has no option 'initail'; did you mean 'initial'"):
        step(initail=True)


def test_invalid_retry_policy_is_rejected() -> None:
    with pytest.raises(OptionError, match=r"retry of step '.*M\.s' is of type int"):

        class M(Machine):
            @step(retry=3)
            def s(self, ctx): ...


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("on", "TimeoutError", "on of this Backoff contains 'TimeoutError', which is not an exception class"),
        ("on", (TimeoutError, int), "on of this Backoff contains <class 'int'>"),
        ("on", [TimeoutError], "on of this Backoff contains"),
        ("on", KeyboardInterrupt, "give a subclass of Exception, or a tuple of them"),
        ("on", (), "on of this Backoff is empty; name at least one exception class"),
        ("never", TimeoutError("x"), "never of this Backoff contains TimeoutError"),
    ],
)
def test_retry_policy_takes_exception_classes(option: str, value: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Backoff(**{option: value})


def test_retry_policy_selects_exceptions() -> None:
    policy = Backoff(on=(OSError, LookupError), never=(ConnectionError, KeyError))
    retried = [
        TimeoutError(),
        IndexError(),
        FileNotFoundError(),
        ExceptionGroup("", [OSError(), IndexError()]),
    ]
    refused = [ValueError(), ConnectionResetError(), KeyError(), ExceptionGroup("", [OSError(), KeyError()])]
    assert [policy.retries(error) for error in retried] == [True] * 4
    assert [policy.retries(error) for error in refused] == [False] * 4
    assert Backoff().retries(ValueError())
    assert Backoff(on=ExceptionGroup).retries(ExceptionGroup("", [ValueError()]))


def test_invalid_on_failure_is_rejected() -> None:
    expected = r"on_failure= of step 'a': machine 'M' has no step 'bb'; did you mean 'b'\?"
    with pytest.raises(UnknownStepError, match=expected):

        class M(Machine):
            @step(on_failure="bb")
            def a(self, ctx): ...

            @step
            def b(self, ctx): ...

    with pytest.raises(OptionError, match="on_failure= of step 'a' is the step itself"):

        class N(Machine):
            @step(on_failure="a")
            def a(self, ctx): ...

    with pytest.raises(
        OptionError, match=r"on_failure of step '.*P\.b' is of type function; give a method with @step"
    ):

        class P(Machine):
            def a(self, ctx): ...

            @step(on_failure=a)
            def b(self, ctx): ...


def test_unknown_declared_target_is_rejected() -> None:
    expected = r"to= of step 'a': machine 'M' has no step 'bb'; did you mean 'b'\? Use one of its steps \(a, b\), or add it\."
    with pytest.raises(UnknownStepError, match=expected):

        class M(Machine):
            @step(to="bb")
            def a(self, ctx): ...

            @step
            def b(self, ctx): ...


def test_step_name_is_bounded_in_bytes() -> None:
    source = f"class M(Machine):\n  @step\n  def {'ü' * 128}(self, ctx): ...\n"
    with pytest.raises(OptionError, match="a step name of machine 'M' is 256 bytes long"):
        exec(source, {"Machine": Machine, "step": step})


def test_manual_definition_is_checked() -> None:
    one = StepDef(name="a", function=print, is_async=False)
    given = {
        "name": "m",
        "version": 1,
        "queue": "q",
        "state_type": int,
        "result_type": int,
        "steps": {"a": one},
    }
    assert MachineDef(**given, initial="a").signals == {}
    with pytest.raises(errors.InitialStepError):
        MachineDef(**given, initial="b")
    with pytest.raises(OptionError, match="a signal name of machine 'm' is empty"):
        MachineDef(**given, initial="a", signals={"": None})
