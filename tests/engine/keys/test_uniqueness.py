"""Unique keys and correlation keys: scopes, holders, lookups."""

from __future__ import annotations

from typing import Any

import pytest

from gen_durable import (
    Await,
    Context,
    Delivered,
    Done,
    Duplicate,
    Inserted,
    KeyTakenError,
    Next,
    NoTargetError,
    Outcome,
    Status,
)
from gen_durable.instance import LIVE_STATUSES
from gen_durable.testing import Harness
from tests.support.machines import Fail, Say, probe
from tests.support.rows import SqlConnection
from tests.support.settings import AN_HOUR


def is_new(durable: Harness, **options: Any) -> bool:
    return isinstance(durable.insert(Say, "again", schedule_in=AN_HOUR, **options), Inserted)


@pytest.mark.clause("UNQ-1")
def test_unique_key_is_stored_as_given(durable: Harness, sql: SqlConnection) -> None:
    for key, stored in ((b"\x00\xff raw", b"\x00\xff raw"), ("größe: 1", "größe: 1".encode())):
        ref = durable.insert(Say, "hi", unique_key=key)
        assert sql.columns(ref.id, "unique_key") == (stored,)
    assert isinstance(durable.insert(Say, "hi", unique_key="größe: 1".encode()), Duplicate)


@pytest.mark.clause("UNQ-3")
def test_inserts_without_a_key_are_not_deduplicated(durable: Harness) -> None:
    assert [type(durable.insert(Say, "hi")) for _ in range(3)] == [Inserted] * 3


@pytest.mark.clause("UNQ-4")
def test_commit_that_leaves_the_scope_frees_the_key(durable: Harness, sql: SqlConnection) -> None:
    seen: list[Any] = []

    def look(ctx: Context[int], outcome: Outcome[Any]) -> Outcome[Any]:
        seen.append((sql.columns(ctx.id, "status")[0], is_taken()))
        return outcome

    def is_taken() -> bool:
        return isinstance(durable.insert(machine, 7, unique_key="u", schedule_in=AN_HOUR), Duplicate)

    machine = probe(
        lambda ctx: look(ctx, Await("go", then="two")),
        lambda ctx: look(ctx, Done(0) if ctx.step_seq == 4 else Next("two")),
    )
    ref = durable.insert(machine, 7, unique_key="u", unique_scope=LIVE_STATUSES)
    durable.drain()
    assert sql.columns(ref.id, "status") == ("awaiting_signal",)
    assert is_taken()
    durable.signal(ref, "go")
    durable.drain()
    assert seen == [("executing", True)] * 4
    assert sql.columns(ref.id, "status unique_key") == ("done", b"u")
    assert is_new(durable, unique_key="u")


@pytest.mark.clause("UNQ-7")
def test_scope_includes_all_live_statuses_unless_empty(durable: Harness, sql: SqlConnection) -> None:
    scopes: list[Any] = [["executing"], ["runnable", "failed"], []]
    refs = [
        durable.insert(Say, "hi", unique_key=f"u{n}", unique_scope=scope) for n, scope in enumerate(scopes)
    ]
    stored = [
        sql.value("select unique_scope::text[] from gen_durable.gen_durable where id = %s", ref.id)
        for ref in refs
    ]
    assert stored == [list(LIVE_STATUSES), [*LIVE_STATUSES, "failed"], []]
    assert is_new(durable, unique_key="u2", unique_scope=[])
    assert is_new(durable, unique_key="u2")


@pytest.mark.clause("UNQ-8")
@pytest.mark.parametrize("kind", ["unique_key", "correlation_key"])
def test_keys_are_shared_by_all_machines(durable: Harness, kind: str) -> None:
    key: Any = {kind: "k"}
    holder = durable.insert(Say, "hi", **key)
    with pytest.raises(KeyTakenError, match=f"Say {holder.id}"):
        durable.insert(Fail, "no", **key)


@pytest.mark.clause("UNQ-9")
def test_unique_window_rounds_the_time_in_the_key(durable: Harness) -> None:
    assert [is_new(durable, unique_key=f"report:{hour}") for hour in (9, 9, 10, 9)] == [
        True,
        False,
        True,
        False,
    ]


@pytest.mark.clause("COR-1", "COR-2")
def test_correlation_key_is_unique_among_live_instances(durable: Harness) -> None:
    parked = durable.insert(probe(lambda ctx: Await("go", then="two")), 7, correlation_key="order:42")
    with pytest.raises(KeyTakenError):
        is_new(durable, correlation_key="order:42")
    durable.drain()
    assert durable.signal("order:42", "go") == Delivered(parked.id, is_awaited=True)
    durable.drain()
    durable.assert_done(parked)
    with pytest.raises(NoTargetError):
        durable.signal("order:42", "go")
    assert is_new(durable, correlation_key="order:42")
    assert not is_new(durable, correlation_key="order:42")


@pytest.mark.clause("COR-3")
@pytest.mark.parametrize(("machine", "end"), [(Say, "done"), (Fail, "failed")])
def test_correlation_scope_may_include_ended_statuses(
    durable: Harness, sql: SqlConnection, machine: Any, end: Status
) -> None:
    ref = durable.insert(machine, "hi", correlation_key="order:42", correlation_scope=[end])
    durable.drain()
    assert sql.columns(ref.id, "status correlation_key") == (end, "order:42")
    assert isinstance(durable.insert(machine, "again", correlation_key="order:42"), Duplicate)
    with pytest.raises(NoTargetError):
        durable.signal("order:42", "go")


@pytest.mark.clause("COR-5")
def test_instance_without_a_key_is_found_by_id_only(durable: Harness, sql: SqlConnection) -> None:
    ref = durable.insert(Say, "hi")
    assert isinstance(durable.insert(Say, "hi"), Inserted)
    with pytest.raises(NoTargetError):
        durable.signal(str(ref.id), "go")
    durable.signal(ref.id, "go")
    assert sql.inbox(ref.id) == ["go"]
