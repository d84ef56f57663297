"""Random histories of a few instances: leases, outcomes with and without effects, crashes, and all control verbs."""

from __future__ import annotations

import itertools
from collections import Counter
from datetime import timedelta
from typing import Any, Final

import msgspec
from hypothesis import strategies as st

from gen_durable import ExecutionRecord, ExecutionStatus, JobState, Sql, Status
from gen_durable._core.model import CommitEntry, CommitResult, Committed, Execution
from gen_durable._core.records import job_state, record_of
from gen_durable._db import commit as commits
from gen_durable._db import control
from gen_durable._db import lease as leases
from gen_durable._db.pool import Database
from gen_durable._db.signals import deliver
from gen_durable._runtime.effects import EffectError
from gen_durable.config import RecordLevel
from gen_durable.errors import UsageError
from tests.support.engine_plans import entry, inserted, new, picked
from tests.support.ledger import BOOK, booked, commit_with_effect

KINDS: Final = (
    "continue",
    "next",
    "retry",
    "await",
    "schedule_children",
    "done",
    "stop",
    "cancel",
    "release",
)
EVENTS: Final = ("lose", "signal", "begin", "wait", "finish", "insert")
VERBS: Final = ("CANCEL", "FORCE", "DELETE", "RESTORE", "RETRY")
_CRASH_LIMIT: Final = 2
_LOSE = (
    "update gen_durable.gen_durable set lease_expires_at = now() - interval '1 s' where status = 'executing'"
)
_PASS = """
update gen_durable.gen_durable
   set eligible_at = now(), await_deadline = case when await_deadline is not null then now() end
 where finished_at is null"""
_ROWS = """
select g.*, g.status::text as status, j.state as job_state
  from gen_durable.gen_durable g join gen_durable.gen_durable_job_state j on j.job_id = g.id order by g.id"""
_RECORDS = "select * from gen_durable.gen_durable_executions where job_id = any ($1::bigint[]) order by job_id, attempt"

Happening = tuple[str, int, str]
"""A kind of outcome, an event or a verb; of which execution or instance; `+`: with an effect, `-`: with a failing one."""


def histories() -> st.SearchStrategy[list[Happening]]:
    which = st.integers(0, 7)
    outcomes = st.tuples(st.sampled_from(KINDS), which, st.sampled_from(("", "", "+", "-")))
    events = st.tuples(st.sampled_from(EVENTS), which, st.just(""))
    verbs = st.tuples(st.sampled_from(VERBS), which, st.just(""))
    leasing = st.just(("lease", 0, ""))
    return st.lists(st.one_of(leasing, outcomes, events, verbs), min_size=8, max_size=30)


def of(text: str) -> list[Happening]:
    """`lease 0, done 0 +, CANCEL 1`: outcomes and events in lower case, control verbs in upper case."""
    made = [part.split() for part in text.split(",")]
    return [(name, int(which), "".join(effect)) for name, which, *effect in made]


class History:
    """Two instances with keys, their children, and every execution leased of them."""

    def __init__(self, database: Database, db: Any, level: RecordLevel) -> None:
        self._database = database
        self._db = db
        self._level = level
        self._recorder = commits.Recorder("worker", level)
        self._held: list[Execution] = []
        self._before: dict[int, Any] = {}
        self._keys = itertools.count(1)
        self._booked: list[str] = []
        self.seen: Counter[str] = Counter()

    async def begin(self) -> None:
        await self._db.execute(
            "delete from gen_durable.gen_durable; delete from gen_durable.executions; delete from gen_durable.signals;"
            "truncate ledger"
        )
        await self._insert(0)

    async def happen(self, what: Happening) -> None:
        name, which, effect = what
        if name in KINDS:
            if self._held:
                await self._commit(self._held[which % len(self._held)], name, effect)
        elif name in VERBS:
            await self._control(name, which)
        else:
            await getattr(self, f"_{name}")(which)
        await self._check(name)

    async def _insert(self, _: int) -> None:
        """Insert both again; ended instances have released their keys."""
        await inserted(
            self._database, new(correlation_key="c"), new(concurrency_key="k", correlation_key="d")
        )

    async def _lease(self, _: int) -> None:
        self._held += await picked(self._database)

    async def _lose(self, _: int) -> None:
        await self._db.execute(_LOSE)
        plan = leases.reap(timedelta(milliseconds=1), leases.CrashPolicy(_CRASH_LIMIT, self._level))
        self.seen["lost"] += len((await self._database.run_in_transaction(plan)).ids)

    async def _signal(self, which: int) -> None:
        await self._database.run(deliver(await self._id(which), "go", "1", None))

    async def _begin(self, _: int) -> None:
        begun = {((one.id, one.lease_token), one.step_seq): one.leased_at for one in self._held[-3:]}
        await self._database.run(leases.mark_started(begun))

    async def _finish(self, _: int) -> None:
        await self._database.run(commits.finish_abandoned(timedelta(0)))

    async def _wait(self, _: int) -> None:
        await self._db.execute(_PASS)
        await self._database.run(leases.expire())

    async def _control(self, name: str, which: int) -> None:
        ids = [await self._id(which)]
        plans = {
            "CANCEL": lambda: control.cancel(ids, "why", "who", force=False),
            "FORCE": lambda: control.cancel(ids, "why", "who", force=True),
            "DELETE": lambda: control.delete(ids, "why", "who"),
            "RESTORE": lambda: control.restore(ids, "why", "who"),
            "RETRY": lambda: control.retry(ids, '"again"', "why", "who"),
        }
        try:
            await self._database.run(plans[name]())
        except UsageError:
            self.seen["key taken"] += 1

    async def _commit(self, execution: Execution, kind: str, effect: str) -> None:
        key = f"{next(self._keys)}"
        has_effect = bool(effect) and kind not in ("retry", "release", "cancel")
        statement = Sql("select 1/0") if effect == "-" else Sql(BOOK, key, "")
        one = entry(
            execution,
            kind,
            payload=None if kind in ("stop", "release", "cancel") else '"x"',
            error="no" if kind in ("stop", "cancel") else None,
            awaits=("go",) if kind == "await" else None,
            timeout=timedelta(hours=1) if kind == "await" else None,
            children=(new("B"), new("B")) if kind == "schedule_children" else (),
            effect=statement if has_effect else None,
        )
        result = await self._send(one)
        self.seen[type(result).__name__] += 1
        if not isinstance(result, Committed):
            return
        if has_effect and result.status != "cancelled":
            self._booked.append(key)
        if result.status == "executing":
            # Keep the old execution: its outcome may be committed a second time.
            self._held.append(
                msgspec.structs.replace(
                    execution, step_seq=execution.step_seq + 1, attempt=0, leased_at=result.leased_at
                )
            )

    async def _send(self, one: CommitEntry) -> CommitResult | EffectError:
        if one.effect is not None:
            try:
                return await commit_with_effect(self._database, one, self._recorder)
            except EffectError as error:
                return error
        if commits.is_one_statement([one], self._recorder):
            report = await self._database.run(commits.commit_plain([one], self._recorder))
        else:
            report = await self._database.run_in_transaction(commits.commit([one], self._recorder))
        return report.results[0]

    async def _id(self, which: int) -> int:
        ids = [
            row["id"] for row in await self._db.fetch("select id from gen_durable.gen_durable order by id")
        ]
        return int(ids[which % len(ids)])

    async def _check(self, name: str) -> None:
        """Check every invariant of instances, barriers and executions."""
        rows = {row["id"]: row for row in await self._db.fetch(_ROWS)}
        records: dict[int, list[ExecutionRecord]] = {id: [] for id in rows}
        for found in await self._db.fetch(_RECORDS, list(rows)):
            records[found["job_id"]].append(record_of(found))
        for id, row in rows.items():
            self.seen[row["status"]] += 1
            _check_alive(row, [one for one in rows.values() if one["parent_id"] == id])
            self._check_change(name, row)
            self._check_state(row, records[id])
        await self._check_inboxes(rows)
        assert await booked(self._db) == self._booked, "each acknowledged effect once"
        self._before = rows

    def _check_change(self, name: str, row: Any) -> None:
        """An ended instance changes only by a retry; a deleted one that does not execute never changes."""
        had = self._before.get(row["id"])
        if had is None or Status(had["status"]).is_terminal is False:
            return
        if name != "RETRY":
            assert row["status"] == had["status"]
        elif row["status"] != had["status"]:
            self.seen["retried"] += 1
            assert had["status"] in ("failed", "cancelled")
            assert had["deleted_at"] is None
            assert (row["attempt"], row["crash_count"], row["step"]) == (0, 0, had["step"])

    def _check_state(self, row: Any, records: list[ExecutionRecord]) -> None:
        expected = _state_of(Status(row["status"]), row["step_seq"])
        if expected is JobState.SUCCEEDED and any(
            one.status is ExecutionStatus.COMMITTED and one.outcome == "done" for one in records
        ):
            self.seen["committed, not done"] += 1
            expected = JobState.RUNNING
        assert row["job_state"] == expected, (dict(row), records)
        live = [one.status for one in records if one.finished_at is None]
        assert len(live) == (row["status"] == "executing")
        assert set(live) <= {ExecutionStatus.LEASED, ExecutionStatus.IN_PROGRESS}
        if self._level != "all":
            return
        assert job_state(records) is expected, (dict(row), records)
        assert [one.attempt for one in records] == list(range(1, row["execution"] + 1)), "without a gap"
        made = [one.step_seq for one in records if one.status in ("COMMITTED", "DONE")]
        assert made == list(range(1, row["step_seq"] + 1)), "each made once, in order"
        aborted = {one.outcome for one in records if one.status is ExecutionStatus.ABORTED}
        assert aborted <= {"retry", "shutdown", "lease", "poison", "cancelled"}

    async def _check_inboxes(self, rows: dict[int, Any]) -> None:
        for found in await self._db.fetch("select distinct target_id from gen_durable.signals"):
            row = rows.get(found["target_id"])
            assert row is None or not Status(row["status"]).is_terminal, "the inbox of the ended is left"


def _check_alive(row: Any, children: list[Any]) -> None:
    """Parked instances can be woken; deleted instances do not continue."""
    live = [
        one["id"]
        for one in children
        if one["parent_round"] == row["spawn_round"] and not Status(one["status"]).is_terminal
    ]
    if row["status"] == "awaiting_children":
        assert row["children_pending"] == len(live) > 0
    else:
        assert row["children_pending"] == 0
    assert (row["status"] == "awaiting_signal") <= bool(row["awaits"])
    assert row["deleted_at"] is None or row["status"] in ("done", "failed", "cancelled", "executing")
    assert not (row["gated"] and row["status"] != "runnable")
    if row["deleted_at"] is not None and row["status"] == "executing":
        assert row["cancel_requested_at"] is not None


def _state_of(status: Status, step_seq: int) -> JobState:
    match status:
        case Status.DONE:
            return JobState.SUCCEEDED
        case Status.FAILED | Status.CANCELLED:
            return JobState(status.value.upper())
        case Status.EXECUTING:
            return JobState.RUNNING
        case _:
            return JobState.RUNNING if step_seq else JobState.PENDING
