"""Signals against concurrent changes of their target."""

from __future__ import annotations

from gen_durable._db.lease import expire
from gen_durable._db.pick import Picked
from gen_durable._db.plan import Plan, Statement
from gen_durable._db.signals import Delivery, claim, deliver
from gen_durable.errors import MessageReusedError
from tests.interleavings.actions import lease_some, put, reap, send
from tests.interleavings.invariants import require
from tests.interleavings.product import SCHEMA, Change
from tests.interleavings.scenario import End, Scenario
from tests.interleavings.session import Session, Work, autocommit, callers, flush, refusable, transaction
from tests.interleavings.world import LIVE, PAST, QUEUE, instance, leased, new, outcome, signal

PARK = outcome(1, "await", awaits=("go",))
DONE_WITH_INBOX = outcome(1, "done", has_inbox=True)
PAUSE_BETWEEN_LOOKS = Change(
    SCHEMA,
    "exit when target.id is not null or target_id is not null;",
    "exit when target.id is not null or target_id is not null; perform gen_durable.pause(1);",
)
PAUSE_AFTER_REFUSAL = Change(
    SCHEMA, "exit when refused = '{}';", "exit when refused = '{}'; perform gen_durable.pause(2);"
)
_STATUS = Statement(
    "status", "select status::text as status from gen_durable.gen_durable where id = :id::bigint"
)


def park_and_deliver() -> Scenario:
    return Scenario(
        name="park × deliver",
        setup=[leased(1)],
        sessions={"P": [flush(PARK)], "D": [send()]},
        check=_woken_once,
    )


def park_and_two_senders() -> Scenario:
    """The inbox is not empty, so a delivery does not update the row; only its lock is visible."""
    return Scenario(
        name="park × deliver × deliver(other name)",
        setup=[leased(1, has_signals=True), signal(1, 1, "old")],
        sessions={"P": [flush(PARK)], "D": [send()], "E": [send(name="other")]},
        check=_woken_once,
    )


def park_and_sender_in_a_transaction(isolation: str) -> Scenario:
    return Scenario(
        name=f"park × deliver × deliver(in a {isolation} transaction of the caller)",
        setup=[leased(1, has_signals=True), signal(1, 1, "old")],
        sessions={
            "P": [flush(PARK)],
            "D": [callers(isolation, lambda _: deliver(1, "go", "{}", None))],
            "E": [callers(isolation, lambda _: deliver(1, "other", "{}", None))],
        },
        check=_woken_once,
        may_meet=frozenset({"40001"}),
    )


def park_deliver_and_reap() -> Scenario:
    def check(end: End) -> None:
        is_parked = bool(end.result("P").committed())
        require(is_parked != (1 in end.result("R").ids), "outcome and reaper both won")
        require(end.after.status(1) == "runnable", "not runnable")

    return Scenario(
        name="park × deliver × reap",
        setup=[leased(1)],
        sessions={"P": [flush(PARK)], "D": [send()], "R": [reap()]},
        check=check,
        never_wait=frozenset({"R"}),
    )


def park_a_pack_and_deliver() -> Scenario:
    return Scenario(
        name="park with a pack × deliver",
        setup=_pack(),
        sessions={"P": [flush(_PARK_WITH_PACK)], "D": [send()]},
        check=_woken_once,
    )


def park_a_pack_and_redeliver() -> Scenario:
    """No new signal: the collecting step stays parked."""

    def check(end: End) -> None:
        require(not end.result("D").is_new, "a duplicate was taken for new")
        require(end.after.status(1) == "awaiting_signal", "woken by what it had seen")

    return Scenario(
        name="park with a pack × redeliver",
        setup=_pack(),
        sessions={"P": [flush(_PARK_WITH_PACK)], "D": [send(dedup_key="d")]},
        check=check,
    )


def park_and_redeliver_what_was_consumed() -> Scenario:
    """A consumed signal rejects duplicates, and they wake no step."""

    def check(end: End) -> None:
        require(not end.result("D").is_new, "the same event twice")
        require(end.after.status(1) == "awaiting_signal", "woken by what it had seen")

    return Scenario(
        name="park × redeliver of a consumed signal",
        setup=[leased(1, has_signals=True), signal(1, 1, "go", "d", consumed_seq=0)],
        sessions={"P": [flush(PARK)], "D": [send(dedup_key="d")]},
        check=check,
    )


def done_and_deliver(*, has_signals: bool) -> Scenario:
    """A signal is accepted by a live instance or rejected; none is accepted after the end."""

    def send_and_look() -> Plan[tuple[Delivery | None, str]]:
        arrival = yield from deliver(1, "go", "{}", None)
        rows = yield _STATUS(id=1)
        return arrival, rows[0]["status"]

    def check(end: End) -> None:
        arrival, status = end.result("D")
        require(end.after.status(1) == "done", "not done")
        require(arrival is None or status == "executing", "accepted after the end")

    return Scenario(
        name="done × deliver" + (" (inbox in use)" if has_signals else ""),
        setup=[leased(1, has_signals=has_signals), *([signal(1, 1, "old")] if has_signals else [])],
        sessions={
            "F": [flush(DONE_WITH_INBOX if has_signals else outcome(1, "done"))],
            "D": [transaction(lambda _: send_and_look())],
        },
        check=check,
    )


def done_deliver_and_reap() -> Scenario:
    """A stale end deletes no signal."""

    def check(end: End) -> None:
        is_done = bool(end.result("F").committed())
        require(is_done != (1 in end.result("R").ids), "outcome and reaper both won")
        require(end.after.status(1) == ("done" if is_done else "runnable"), "neither done nor runnable")

    return Scenario(
        name="done × deliver × reap",
        setup=[leased(1, has_signals=True), signal(1, 1, "old")],
        sessions={"F": [flush(DONE_WITH_INBOX)], "D": [send()], "R": [reap()]},
        check=check,
        never_wait=frozenset({"R"}),
    )


def consume_and_redeliver() -> Scenario:
    def check(end: End) -> None:
        require(not end.result("D").is_new, "the same event twice")
        require(not end.after.unread(1), "the same event twice")

    return Scenario(
        name="consume × redeliver",
        setup=_pack(),
        sessions={"F": [flush(_CONSUME)], "D": [send(dedup_key="d")]},
        check=check,
    )


def consume_deliver_and_reap() -> Scenario:
    """Consuming takes what the step received and nothing else; an outcome that comes too late takes nothing."""

    def check(end: End) -> None:
        is_committed = bool(end.result("F").committed())
        require(is_committed != (1 in end.result("R").ids), "outcome and reaper both won")
        require(bool(end.result("D").is_new), "not delivered")

    return Scenario(
        name="consume × deliver × reap",
        setup=_pack(),
        sessions={"F": [flush(_CONSUME)], "D": [send()], "R": [reap()]},
        check=check,
        never_wait=frozenset({"R"}),
    )


def take_and_deliver() -> Scenario:
    """A step takes the signal that it has received and waits for the next one: only a later one wakes it."""

    def check(end: End) -> None:
        require(end.after.status(1) == "runnable", "lost wake-up")
        is_woken_by_flush = QUEUE in end.result("F").report.queues
        require(is_woken_by_flush != end.result("D").has_woken, "not woken exactly once")
        is_early = end.is_before("F", "D") and is_woken_by_flush
        require(not is_early, "woken by what it had taken")

    return Scenario(
        name="take and park × deliver",
        setup=[leased(1, has_signals=True), signal(1, 1, "go", "d")],
        sessions={"F": [flush(_TAKE)], "D": [send()]},
        check=check,
    )


def deadline_deliver_and_pick(*, has_signals: bool = False) -> Scenario:
    """A signal that is there when the step runs has come in time, before or after the deadline has woken the instance."""

    def check(end: End) -> None:
        expired = [row.id for row in end.result("E")]
        require((expired == [1]) != end.result("D").has_woken, "not woken exactly once")
        picked: Picked = end.result("K")
        for execution in picked.executions:
            require(
                execution.timed_out == (bool(expired) and not execution.awaited),
                "woken by the clock or by a signal?",
            )
            if end.is_before("D", "K"):
                require(len(execution.awaited) == 1, "picked without its signal")
        if not picked.executions:
            require(not end.after.instances[1]["timed_out"], "woken by the clock or by a signal?")

    return Scenario(
        name="deadline × deliver × pick" + (" (inbox in use)" if has_signals else ""),
        setup=[
            instance(1, "awaiting_signal", awaits=("go",), await_deadline=PAST, has_signals=has_signals),
            *([signal(1, 1, "other")] if has_signals else []),
        ],
        sessions={"E": [autocommit(lambda _: expire())], "D": [send()], "K": [lease_some(8)]},
        check=check,
        never_wait=frozenset({"E", "K"}),
    )


def fill_and_consume() -> Scenario:
    """Two senders, a step that consumes, and an inbox that has room for two signals of this size."""

    def small(name: str) -> Work:
        return refusable(autocommit(lambda _: deliver(1, name, '"four"', None, max_inbox=12)))

    def check(end: End) -> None:
        delivered = [end.result(name) is not None for name in "DE"]
        require(sum(row["size"] for row in end.after.unread(1)) <= 12, "the inbox is over its limit")
        if end.is_before("F", "D") or end.is_before("F", "E"):
            require(any(delivered), "consumed signals fill the inbox")
        require(any(delivered), "there was room for one of them")
        if end.is_before("D", "F") and end.is_before("E", "F"):
            require(not all(delivered), "the inbox is over its limit")

    return Scenario(
        name="deliver × deliver × consume, in an inbox that is nearly full",
        setup=[
            leased(1, awaits=("go",), has_signals=True, inbox_count=1, inbox_bytes=6),
            signal(5, 1, "go", payload='"four"'),
        ],
        sessions={
            "D": [small("note")],
            "E": [small("other")],
            "F": [flush(outcome(1, "next", consumed=(5,), has_inbox=True))],
        },
        check=check,
    )


def done_insert_and_deliver_by_key() -> Scenario:
    """A key passes from an ending instance to a new one during a send to the key."""

    def check(end: End) -> None:
        (answer,) = end.result("I")
        arrival: Delivery | None = end.result("D")
        require(answer.is_new or answer.id == 1, "refused without a holder")
        if answer.is_new and end.is_before("I", "D"):
            require(arrival is not None and arrival.id == answer.id, "the holder of the key was overlooked")
        if end.began("D") < end.began("F"):
            require(arrival is not None and arrival.id == 1, "the holder of the key was overlooked")

    return Scenario(
        name="done × insert × deliver(by key)",
        setup=[leased(1, correlation_key="c", correlation_scope=LIVE)],
        sessions={
            "F": [flush(outcome(1, "done"))],
            "I": [put(new(correlation_key="c"))],
            "D": [send("c")],
        },
        check=check,
        pauses=[PAUSE_BETWEEN_LOOKS, PAUSE_AFTER_REFUSAL],
    )


def pass_a_key_on_and_deliver_by_key() -> Scenario:
    """One flush ends the holder of a key and inserts the next: the key always has a target."""
    spawn = outcome(2, "schedule_children", children=(new(correlation_key="c"),))

    def check(end: End) -> None:
        require(end.result("D") is not None, "the holder of the key was overlooked")

    return Scenario(
        name="done and spawn of the next holder × deliver(by key)",
        setup=[leased(1, correlation_key="c", correlation_scope=LIVE), leased(2)],
        sessions={"F": [flush(outcome(1, "done"), spawn)], "D": [send("c")]},
        check=check,
    )


_PARK_WITH_PACK = outcome(1, "await", awaits=("go",), presented=(1,), was_awaiting=True)
_CONSUME = outcome(1, "next", consumed=(1,), was_awaiting=True)
_TAKE = outcome(1, "await", awaits=("go",), consumed=(1,), has_inbox=True)


def _pack() -> list[str]:
    """A step that collects signals, with one that it has seen."""
    return [leased(1, awaits=("go",), has_signals=True), signal(1, 1, "go", "d")]


def _woken_once(end: End) -> None:
    require(end.after.status(1) == "runnable", "lost wake-up")
    is_said_by_flush = QUEUE in end.result("P").report.queues
    require(is_said_by_flush != end.result("D").has_woken, "not woken exactly once")


def receive_and_receive() -> Scenario:
    """One message is delivered to two targets at once: it counts for one of them."""

    def receive(key: str) -> Work:
        def plan(_: Session) -> Plan[Delivery | str | None]:
            try:
                is_new = yield from claim("message", key, "go")
            except MessageReusedError:
                return "reused"
            return (yield from deliver(key, "go", "{}", "message")) if is_new else "known"

        return transaction(plan)

    def check(end: End) -> None:
        require(len(end.after.signals) == 1, "delivered to two targets")
        require("reused" in [end.sessions[name].results[0] for name in ("A", "B")], "not refused")

    return Scenario(
        name="receive × receive(another target)",
        setup=[
            instance(1, correlation_key="one", correlation_scope=LIVE),
            instance(2, correlation_key="two", correlation_scope=LIVE),
        ],
        sessions={"A": [receive("one")], "B": [receive("two")]},
        check=check,
    )


SCENARIOS = [
    receive_and_receive(),
    park_and_deliver(),
    park_and_two_senders(),
    park_and_sender_in_a_transaction("repeatable read"),
    park_and_sender_in_a_transaction("serializable"),
    park_deliver_and_reap(),
    park_a_pack_and_deliver(),
    park_a_pack_and_redeliver(),
    park_and_redeliver_what_was_consumed(),
    done_and_deliver(has_signals=False),
    done_and_deliver(has_signals=True),
    done_deliver_and_reap(),
    consume_and_redeliver(),
    consume_deliver_and_reap(),
    take_and_deliver(),
    fill_and_consume(),
    deadline_deliver_and_pick(),
    deadline_deliver_and_pick(has_signals=True),
    done_insert_and_deliver_by_key(),
    pass_a_key_on_and_deliver_by_key(),
]
