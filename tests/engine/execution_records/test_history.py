"""History: each transition keeps the state that it wrote, in its execution record."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, get_args

import pytest

from gen_durable import (
    Await,
    Backoff,
    Context,
    Done,
    Machine,
    Next,
    NoTargetError,
    Outcome,
    Retry,
    ScheduleChildren,
    Settings,
    Signal,
    Spec,
    StateChange,
    Stop,
    Transition,
    job,
    step,
)
from gen_durable.config import HistoryLevel, RecordLevel
from gen_durable.errors import OptionError, SettingsError
from gen_durable.testing import AsyncHarness, Harness
from tests.support.machines import Plain

State = dict[str, Any]


class Order(Machine[State, str], history="all"):
    """Takes a payment, packs in two children, and ships at the second attempt."""

    paid: Signal[int] = Signal("paid", int)

    @step
    async def open(self, ctx: Context[State]) -> Outcome[str]:
        return Await(self.paid, then=self.pack, state={**ctx.state, "opened": True})

    @step
    async def pack(self, ctx: Context[State]) -> Outcome[str]:
        return ScheduleChildren(
            [Spec(Plain, n) for n in (1, 2)],
            then=self.ship,
            state={**ctx.state, "paid": ctx.awaited.get("paid")},
        )

    @step
    async def ship(self, ctx: Context[State]) -> Outcome[str]:
        if ctx.attempt == 0:
            return Retry(timedelta(0), {**ctx.state, "tried": True})
        return Next(self.thank, {"shipped": True})

    @step
    async def thank(self, ctx: Context[State]) -> Outcome[str]:
        return Done("thanks")


class Silent(Machine[State, str]):
    """Keeps the history that its settings say."""

    @step
    async def start(self, ctx: Context[State]) -> Outcome[str]:
        return Next(self.end, {"n": ctx.state["n"] + 1})

    @step
    async def end(self, ctx: Context[State]) -> Outcome[str]:
        return Stop("no") if ctx.state["n"] > 5 else Done("yes")


def _facts(transitions: Any) -> list[tuple[Any, ...]]:
    return [(one.step_seq, one.step, one.outcome, one.to, one.state) for one in transitions]


@pytest.mark.clause("HIS-1", "HIS-2")
async def test_history_has_every_transition_with_its_state(async_durable: AsyncHarness) -> None:
    ref = await async_durable.insert(Order, {"n": 1}, correlation_key="order")
    await async_durable.drain()
    async_durable.advance(hours=1)
    await async_durable.signal(ref, Order.paid, 7)
    await async_durable.drain()
    async_durable.assert_done(ref)
    found = await async_durable.history("order")
    opened: State = {"n": 1, "opened": True}
    assert _facts(found) == [
        (0, None, "insert", "open", {"n": 1}),
        (1, "open", "await", "pack", opened),
        (2, "pack", "schedule_children", "ship", {**opened, "paid": 7}),
        (3, "ship", "next", "thank", {"shipped": True}),
        (4, "thank", "done", None, {"shipped": True}),
    ]
    insert, wait, spawn, shipped, done = found
    assert wait.changes == (StateChange("$.opened", "added", None, True),)
    assert [change.kind for change in shipped.changes or ()] == ["removed", "removed", "removed", "added"]
    assert (insert.changes, done.changes) == (None, ())
    assert spawn.signals == ("paid",)
    assert spawn.children == tuple(child.id for child in await async_durable.children(ref, every=True))
    assert spawn.waited is not None
    assert spawn.waited >= timedelta(hours=1)
    assert [one.executions for one in found] == [0, 1, 1, 2, 1]
    assert all(one.worker is not None and one.duration is not None for one in found[1:])
    assert await async_durable.history(ref, after=1, limit=2) == [spawn, shipped]
    assert await async_durable.history(ref, after=4) == []


@pytest.mark.clause("HIS-1")
async def test_initial_state_is_kept_if_the_first_step_is_retried(async_durable: AsyncHarness) -> None:
    class Flaky(Machine[State, None], history="all"):
        @step(retry=Backoff(base=timedelta(0)))
        async def run(self, ctx: Context[State]) -> Outcome[None]:
            return Retry(timedelta(0), {"n": 2}) if ctx.attempt == 0 else Done(None)

    ref = await async_durable.insert(Flaky, {"n": 1})
    await async_durable.drain()
    assert (await async_durable.history(ref))[0].state == {"n": 1}


@pytest.mark.clause("HIS-3")
async def test_without_history_transitions_have_no_states(async_durable: AsyncHarness, db: Any) -> None:
    ref = await async_durable.insert(Silent, {"n": 1})
    assert _facts(await async_durable.history(ref)) == [(0, None, "insert", "start", {"n": 1})]
    await async_durable.drain()
    found = await async_durable.history(ref)
    assert _facts(found) == [
        (0, None, "insert", "start", None),
        (1, "start", "next", "end", None),
        (2, "end", "done", None, None),
    ]
    assert not any(one.has_state or one.changes for one in found)
    columns = "state, state_before, signals, awaits, await_deadline"
    rows = await db.fetch(f"select {columns} from gen_durable.executions")
    assert [tuple(row) for row in rows] == [(None,) * 5] * 2


async def test_edit_is_a_transition_with_states_before_and_after(async_durable: AsyncHarness) -> None:
    ref = await async_durable.insert(Silent, {"n": 1})
    await async_durable.edit(ref, state={"n": 4}, step="end", reason="wrong number")
    await async_durable.drain()
    found = await async_durable.history(ref)
    assert _facts(found) == [
        (0, None, "insert", "start", {"n": 1}),
        (1, "start", "edit", "end", {"n": 4}),
        (2, "end", "done", None, None),
    ]
    assert found[1].changes == (StateChange("$.n", "changed", 1, 4),)
    assert (found[1].worker, found[1].executions, found[1].duration) == (None, 0, None)


@pytest.mark.clause("HIS-1", "HIS-5")
async def test_initial_state_is_kept_if_the_first_step_is_cancelled(async_durable: AsyncHarness) -> None:
    class Parcel(Machine[State, None], history="all"):
        @step(on_cancel="recall")
        async def send(self, ctx: Context[State]) -> Outcome[None]:
            return Done(None)

        @step
        async def recall(self, ctx: Context[State]) -> Outcome[None]:
            ctx.state["recalled"] = True
            return Done(None)

    ref = await async_durable.insert(Parcel, {"n": 1}, schedule_in=timedelta(hours=1))
    await async_durable.drain(collapse=False)
    await async_durable.cancel(ref)
    await async_durable.drain()
    found = await async_durable.history(ref)
    assert [(one.outcome, one.state, one.version) for one in found] == [
        ("insert", {"n": 1}, 1),
        ("on_cancel", {"n": 1}, 1),
        ("done", {"n": 1, "recalled": True}, 1),
    ]


class TestSettings:
    @pytest.fixture(params=get_args(RecordLevel))
    def durable_settings(self, request: pytest.FixtureRequest) -> Settings:
        return Settings(history="all", executions=request.param)

    @pytest.mark.clause("HIS-3", "HIS-4")
    def test_setting_keeps_the_history_of_all_machines(self, durable: Harness) -> None:
        ref = durable.insert(Silent, {"n": 5})
        durable.drain()
        assert [one.state for one in durable.history(ref)] == [{"n": 5}, {"n": 6}, {"n": 6}]
        durable.retry(ref, step="start", state={"n": 1})
        durable.drain()
        assert [one.outcome for one in durable.history(ref)] == [
            "insert",
            "next",
            "stop",
            "edit",
            "next",
            "done",
        ]

    def test_machine_wins_over_the_setting(self, durable: Harness) -> None:
        @job("quiet", history="off")
        def quiet(n: int) -> int:
            return n

        ref = durable.insert(quiet, 1)
        durable.drain()
        assert not any(one.has_state for one in durable.history(ref))


def test_levels_are_checked() -> None:
    assert get_args(HistoryLevel) == ("off", "all")
    with pytest.raises(SettingsError, match="must be all or off"):
        Settings(history="some")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="history of machine 'Wrong' is 'some'"):

        class Wrong(Silent, history="some"):  # type: ignore[arg-type]
            pass


def test_subclasses_inherit_the_level() -> None:
    class Special(Order):
        pass

    assert Special.__definition__.history == "all"


def test_history_of_an_unknown_instance(durable: Harness) -> None:
    with pytest.raises(NoTargetError, match="there is no"):
        durable.history(999)


def test_duration_is_never_negative() -> None:
    from datetime import UTC, datetime

    now = datetime.now(UTC)
    one = Transition(
        step_seq=1, step="s", to=None, outcome="next", started_at=now + timedelta(1), finished_at=now
    )
    assert one.duration == timedelta(0)
