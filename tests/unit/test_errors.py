"""Errors pickle, and say what failed and what to do."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from datetime import timedelta

import pytest

from gen_durable import errors
from gen_durable.errors import GenDurableError

SAMPLES: list[tuple[GenDurableError, str]] = [
    (
        errors.InboxFullError("the inbox of instance 7 is full", "wait"),
        "the inbox of instance 7 is full; wait",
    ),
    (
        errors.MessageReusedError("msg_1"),
        "a message with this id has been delivered to another target; send each message with its own id",
    ),
    (
        errors.DuplicateStepError("Checkout", "ship", 18, 27),
        "machine 'Checkout' defines step 'ship' twice (lines 18 and 27); rename one of them",
    ),
    (
        errors.InitialStepError("Checkout", ()),
        "machine 'Checkout' has no steps; mark at least one method with @step",
    ),
    (
        errors.InitialStepError("Checkout", ("start", "resume")),
        "machine 'Checkout' has 2 initial steps (start, resume); keep initial=True on one of them",
    ),
    (
        errors.StepSignatureError("step 'Checkout.ship'", "ship(self)", "ship(self, ctx)"),
        "step 'Checkout.ship' is ship(self); write ship(self, ctx)",
    ),
    (
        errors.StateTypeError("step 'a'", "it takes a Cart", "take an Order"),
        "step 'a': it takes a Cart; take an Order",
    ),
    (
        errors.OptionError("the queue is empty", "give 1 to 255 bytes"),
        "the queue is empty; give 1 to 255 bytes",
    ),
    (
        errors.UnknownStepError("Checkout", "chrage", ["charge", "ship"], "shop.py:31"),
        "shop.py:31: machine 'Checkout' has no step 'chrage'; did you mean 'charge'? Use one of its steps "
        "(charge, ship), or add it.",
    ),
    (
        errors.UnknownMachineError("Checkout", 3, [("Checkout", 2), ("Checkout", 1), ("Refund", 1)]),
        "version 3 of machine 'Checkout' is not registered (registered: 1, 2); "
        "also pass the class of that version to the worker",
    ),
    (
        errors.UnknownMachineError("Chekout", 1, [("Checkout", 1)]),
        "machine 'Chekout' version 1 is not registered; did you mean 'Checkout'? (registered: Checkout); "
        "pass its class to the worker",
    ),
    (
        errors.UnknownMachineError("Checkout", 1, []),
        "machine 'Checkout' version 1 is not registered; pass its class to the worker",
    ),
    (
        errors.DuplicateMachineError("Checkout", 1, "a.Checkout", "b.Checkout"),
        "two machines are named 'Checkout' version 1: a.Checkout and b.Checkout; "
        "change name= or version= of one of them",
    ),
    (
        errors.SettingsError("settings.lease", "must be at least 1, got 0"),
        "settings.lease must be at least 1, got 0",
    ),
    (errors.UsageError("a pool was given", "give a connection"), "a pool was given; give a connection"),
    (
        errors.BatchCountError("cancel", 10, 30),
        "cancel would change 30 instances now, and 10 at the preview; preview it again, and pass the new count as "
        "expected=",
    ),
    (errors.NoBatchError(7), "there is no batch 7; list batches with `gen-durable batches`"),
    (
        errors.SearchError("x:1 (position 3): there is no term 'x'", "the terms are a, b", 2, 5),
        "x:1 (position 3): there is no term 'x'; the terms are a, b",
    ),
    (
        errors.OutcomeError("Checkout", "ship", "NoneType"),
        "step 'ship' of machine 'Checkout' returned None, not an outcome; "
        "return Next, Retry, Await, ScheduleChildren, Done or Stop on every path",
    ),
    (
        errors.OutcomeError("Checkout", "ship", "coroutine"),
        "step 'ship' of machine 'Checkout' returned a coroutine, not an outcome; await it in an "
        "`async def`; to continue with another step, return Next(self.that_step)",
    ),
    (
        errors.DecodeError("the state of Checkout 42", "Order", "Expected `int`, got `str` - at `$.id`"),
        "the state of Checkout 42 does not match Order: Expected `int`, got `str` - at `$.id`",
    ),
    (
        errors.UpgradeError("the state of Checkout 42", 1, "the upgrade raised KeyError"),
        "the state of Checkout 42 cannot be upgraded from version 1 to version 2: the upgrade raised KeyError; "
        "correct the function, then retry the instance",
    ),
    (
        errors.EncodeError("the result of Checkout", "Receipt", "it is of type dict"),
        "the result of Checkout cannot be stored as Receipt: it is of type dict",
    ),
    (
        errors.PayloadTooLargeError("the state of Checkout", "Order", 2000, 1000),
        "the state of Checkout cannot be stored as Order: it is 2000 bytes of JSON, 1000 are allowed; "
        "store large data elsewhere and keep its address here, or raise settings.max_payload",
    ),
    (
        errors.NotLoadedError(
            "the payload of signal 'note' (7, 2000000 bytes) is not loaded", "load it first"
        ),
        "the payload of signal 'note' (7, 2000000 bytes) is not loaded; load it first",
    ),
    (
        errors.ProcessStepError("Checkout", "ship", "ValueError: bad"),
        "step 'ship' of machine 'Checkout' raised ValueError: bad",
    ),
    (
        errors.StepTimeoutError("Checkout", "ship", timedelta(seconds=90)),
        "step 'ship' of machine 'Checkout' exceeded its timeout of 0:01:30",
    ),
    (
        errors.LeaseLostError(42, "Checkout", "ship", 3),
        "lease lost: Checkout 42, step ship, transition 3; nothing was written. Let the step end: its outcome is "
        "discarded",
    ),
    (
        errors.KeyTakenError("42", "Refund", "Checkout", 17),
        "cannot insert Refund: the key '42' is held by Checkout 17; keys are shared by all machines, "
        "so add a prefix: 'Refund:42'",
    ),
    (
        errors.LimitError("crm", 1, None),
        "there is no rate limit 'crm'; set it with client.set_limit(RateLimit('crm', …)) or Worker(…, limits=[…])",
    ),
    (
        errors.NoTargetError("42", "signal 'paid'"),
        "cannot signal 'paid': no live instance has correlation_key '42' (ids are integers: did you mean 42?); "
        "it has ended, or has not been inserted yet",
    ),
    (
        errors.NoTargetError("order:42", "signal 'paid'"),
        "cannot signal 'paid': no live instance has correlation_key 'order:42'; "
        "it has ended, or has not been inserted yet",
    ),
    (
        errors.NoTargetError("order:42", "stream 'tokens'"),
        "cannot stream 'tokens': no instance has correlation_key 'order:42'; "
        "it is not inserted yet, or retention or keep=False may have removed it",
    ),
    (
        errors.NoTargetError(42, "signal 'paid'"),
        "cannot signal 'paid': there is no live instance 42; it has ended, or was never inserted",
    ),
    (
        errors.NoTargetError(42, "wait"),
        "cannot wait: there is no instance 42; retention or keep=False may have removed it",
    ),
    (
        errors.NoScheduleError("nightly"),
        "there is no schedule 'nightly'; list schedules with `gen-durable schedules`",
    ),
    (
        errors.InstanceFailedError(42, "Checkout", "ship", "failed", "payment never came"),
        "instance 42 (Checkout) has no result: failed at step 'ship': payment never came",
    ),
    (
        errors.InstanceCollectedError(42, "Checkout", "ship", "done", None),
        "instance 42 (Checkout) is done, but its result has been removed; remove keep=False of the machine, "
        "or raise settings.retention_done, to keep results longer",
    ),
    (
        errors.InstanceUnfinishedError(42, "Checkout", "ship", "runnable", None),
        "instance 42 (Checkout) has no result: runnable at step 'ship'",
    ),
    (
        errors.InstanceCancelledError(42, "Checkout", "ship", "cancelled", None),
        "instance 42 (Checkout) has no result: cancelled at step 'ship'",
    ),
    (
        errors.PauseTimeoutError("mail", ("w-1", "w-2")),
        "queue 'mail' is paused, but not confirmed by w-1, w-2. Wait longer, or check whether these workers hang or have "
        "no connection to the database.",
    ),
    (
        errors.WorkerStoppedError("w-1", "KeyError: 'x'"),
        "worker w-1 stopped: KeyError: 'x'. Start a new one: other workers run its instances again when the leases "
        "expire.",
    ),
    (
        errors.NotConnectedError("AsyncClient", "async with"),
        "this AsyncClient is not open; use it inside `async with AsyncClient(...) as ...:`",
    ),
    (
        errors.UnreachableError("postgresql://app:***@db/shop", "connection refused", "is it running?"),
        "cannot reach PostgreSQL at postgresql://app:***@db/shop: connection refused\n  is it running?",
    ),
    (
        errors.SchemaVersionError("shop", None, 3),
        "schema 'shop' has no tables of gen_durable; run `gen-durable db migrate --schema shop`",
    ),
    (
        errors.SchemaVersionError("shop", 2, 3),
        "schema 'shop' is at version 2, but this gen_durable needs 3; run `gen-durable db migrate --schema shop`",
    ),
    (
        errors.SchemaVersionError("shop", 5, 3, 4),
        "schema 'shop' is at version 5, which needs code of version 4 or newer; this gen_durable is of version 3: "
        "upgrade the package",
    ),
]


@pytest.mark.parametrize(("error", "text"), SAMPLES, ids=lambda value: type(value).__name__)
def test_error_says_what_failed_and_what_to_do(error: GenDurableError, text: str) -> None:
    assert str(error) == text


@pytest.mark.parametrize("error", [error for error, _ in SAMPLES], ids=lambda error: type(error).__name__)
def test_error_can_be_pickled(error: GenDurableError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert copy.args == error.args
    assert vars(copy) == vars(error)
    assert str(copy) == str(error)


def _leaves(cls: type[GenDurableError]) -> Iterator[type[GenDurableError]]:
    for child in cls.__subclasses__():
        yield from _leaves(child)
    if not cls.__subclasses__():
        yield cls


def test_every_raised_error_has_a_sample() -> None:
    here = {cls for cls in _leaves(GenDurableError) if cls.__module__ == errors.__name__}
    assert {type(error) for error, _ in SAMPLES} >= here


def test_docstring_tree_names_every_error() -> None:
    tree = errors.__doc__ or ""
    assert [name for name in errors.__all__ if name.endswith("Error") and name not in tree] == []


@pytest.mark.parametrize(
    ("error", "base"),
    [
        (errors.SettingsError, ValueError),
        (errors.NoTargetError, LookupError),
        (errors.NoScheduleError, LookupError),
        (errors.UnreachableError, ConnectionError),
        (errors.OutcomeError, errors.UsageError),
        (errors.PayloadTooLargeError, errors.EncodeError),
        (errors.UnknownMachineError, errors.DefinitionError),
    ],
)
def test_errors_have_builtin_bases(error: type, base: type) -> None:
    assert issubclass(error, base)
