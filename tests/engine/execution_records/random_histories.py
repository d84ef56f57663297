"""Random histories of instances, run by the engine's own plans: leases, valid and stale outcomes, ends."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
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
from tests.support.engine_plans import entry, inserted, new, picked
from tests.support.ledger import BOOK, commit_with_effect

KINDS: Final = ("continue", "next", "retry", "await", "schedule_children", "done", "stop")
EVENTS: Final = ("lease", "lose", "release", "cancel", "signal", "begin", "wait", "finish", "again")
CRASH_LIMIT: Final = 3
_ENDED: Final = {"COMMITTED", "DONE"}

Happening = tuple[str, int, bool, bool]
"""A kind of outcome or an event; of which execution; with an effect? and does the effect fail?"""


def histories() -> st.SearchStrategy[list[Happening]]:
    which = st.integers(0, 5)
    outcomes = st.tuples(
        st.sampled_from(KINDS), which, st.booleans(), st.integers(0, 4).map(lambda n: n == 0)
    )
    events = st.tuples(st.sampled_from(EVENTS), which, st.just(False), st.just(False))
    leasing = st.just(("lease", 0, False, False))
    return st.lists(st.one_of(outcomes, leasing, outcomes, events), min_size=5, max_size=25)


def _of(*names: str) -> list[Happening]:
    """`done 2 +`: an outcome of the third leased execution, with an effect; `-`: with a failing effect."""
    made: list[Happening] = []
    for text in names:
        name, which, *sign = text.split()
        made.append((name, int(which), bool(sign), sign == ["-"]))
    return made


ENDS: Final = _of(
    "lease 0", "continue 0 +", "next 0 +", "done 2 -", "done 2 +", "stop 1", "again 1", "lease 0"
)
LOSSES: Final = _of(
    "lease 0", "begin 0", "lose 0", "wait 0", "lease 0", "cancel 0", "next 2 +", "done 0 +", "release 3"
)


class History:
    """Two instances, their children, and every execution leased of them."""

    def __init__(self, database: Database, db: Any, level: RecordLevel) -> None:
        self._database = database
        self._db = db
        self._recorder = commits.Recorder("worker", level)
        self._level = level
        self._first = 0
        self._held: list[Execution] = []
        self._keys = itertools.count(1)
        self.booked: list[str] = []
        """The effects that were acknowledged as committed."""
        self.seen: Counter[str] = Counter()
        """What happened, for those who want to know that it did."""

    async def begin(self) -> None:
        await self._db.execute("truncate ledger")
        await self._db.execute("delete from gen_durable.gen_durable")
        self._first, _ = await inserted(self._database, new(), new(concurrency_key="k"))

    async def happen(self, what: Happening) -> None:
        name, which, has_effect, is_bad = what
        if name in KINDS or name == "release":
            if self._held:
                await self._commit(self._held[which % len(self._held)], name, has_effect, is_bad)
        else:
            await getattr(self, f"_{name}")(which)

    async def _lease(self, _: int) -> None:
        self._held += await picked(self._database)

    async def _lose(self, _: int) -> None:
        await self._db.execute(
            "update gen_durable.gen_durable set lease_expires_at = now() - interval '1 s' where status = 'executing'"
        )
        plan = leases.reap(timedelta(milliseconds=1), CRASH_LIMIT, self._level)
        reaped = await self._database.run_in_transaction(plan)
        self.seen.update(lost=len(reaped.ids), poisoned=len(reaped.capped))

    async def _cancel(self, which: int) -> None:
        await self._db.execute(
            "update gen_durable.gen_durable set cancel_requested_at = now() where id = $1 and finished_at is null",
            self._first + which % 2,
        )

    async def _again(self, which: int) -> None:
        """Retry a failed or cancelled instance."""
        await self._database.run(
            control.retry([self._first + which % 2], None, "mended", "ann", autocommit=True)
        )

    async def _signal(self, which: int) -> None:
        await self._database.run(deliver(self._first + which % 2, "go", "1", None))

    async def _begin(self, _: int) -> None:
        begun = {((one.id, one.lease_token), one.step_seq): one.leased_at for one in self._held[-3:]}
        await self._database.run(leases.mark_started(begun))

    async def _wait(self, _: int) -> None:
        """Let delays and deadlines pass."""
        await self._db.execute(
            """update gen_durable.gen_durable
                  set eligible_at = now(), await_deadline = case when await_deadline is not null then now() end"""
        )
        await self._database.run(leases.expire())

    async def _finish(self, _: int) -> None:
        await self._database.run(commits.finish_abandoned(timedelta(0)))

    async def _commit(self, execution: Execution, kind: str, has_effect: bool, is_bad: bool) -> None:
        key = f"{next(self._keys)}"
        with_effect = has_effect and kind not in ("retry", "release")
        one = entry(
            execution,
            kind,
            payload=None if kind in ("stop", "release") else f'"{key}"',
            error="no" if kind == "stop" else None,
            awaits=("go",) if kind == "await" else None,
            timeout=timedelta(hours=1) if kind == "await" else None,
            children=(new("B"),) if kind == "schedule_children" else (),
            effect=Sql("select 1/0" if is_bad else BOOK, *(() if is_bad else (key, "")))
            if with_effect
            else None,
        )
        result = await self._send(one)
        self.seen[type(result).__name__] += 1
        if not isinstance(result, Committed):
            return
        self.seen[result.status] += 1
        if with_effect and result.status != "cancelled":
            self.booked.append(key)
        if result.status == "executing":
            chained = msgspec.structs.replace(
                execution, step_seq=execution.step_seq + 1, attempt=0, leased_at=result.leased_at
            )
            # Keep the old execution: its outcome may be committed a second time.
            self._held.append(chained)

    async def _send(self, one: CommitEntry) -> CommitResult | EffectError:
        if one.effect is not None:
            try:
                return await commit_with_effect(self._database, one, self._recorder)
            except EffectError as error:
                return error
        if commits.is_one_statement([one]):
            report = await self._database.run(commits.commit_plain([one], self._recorder))
        else:
            report = await self._database.run_in_transaction(commits.commit([one], self._recorder))
        return report.results[0]

    async def check(self) -> None:
        """Check every invariant of jobs and executions."""
        jobs = await self._db.fetch(
            """select g.id, g.status::text, g.step_seq, g.execution, j.state
                 from gen_durable.gen_durable g join gen_durable.gen_durable_job_state j on j.job_id = g.id"""
        )
        rows = await self._db.fetch(
            "select * from gen_durable.gen_durable_executions order by job_id, attempt"
        )
        records: dict[int, list[ExecutionRecord]] = {job["id"]: [] for job in jobs}
        for row in rows:
            if row["job_id"] in records:
                records[row["job_id"]].append(record_of(row))
        for job in jobs:
            expected = state_by_status(Status(job["status"]), job["step_seq"])
            if expected is JobState.SUCCEEDED and any(
                one.status == "COMMITTED" and one.outcome == "done" for one in records[job["id"]]
            ):
                self.seen["committed, not done"] += 1
                expected = JobState.RUNNING
            assert job["state"] == expected, (dict(job), records[job["id"]])
            self._check_records(job, records[job["id"]], expected)
        lines = await self._db.fetch("select key from ledger order by id")
        assert [line["key"] for line in lines] == self.booked

    def _check_records(self, job: Any, records: Sequence[ExecutionRecord], expected: JobState) -> None:
        live = [one for one in records if one.finished_at is None]
        assert len(live) == (job["status"] == "executing")
        assert all(one.status in (ExecutionStatus.LEASED, ExecutionStatus.IN_PROGRESS) for one in live)
        if self._level != "all":
            return
        assert job_state(records) is expected, (dict(job), records)
        assert [one.attempt for one in records] == list(range(1, job["execution"] + 1)), (
            "numbered without gap"
        )
        transitions = [one.step_seq for one in records if one.status in _ENDED]
        assert transitions == list(range(1, job["step_seq"] + 1)), "each made once, in order"
        for one in records:
            if one.status is ExecutionStatus.ABORTED:
                assert one.outcome in ("retry", "shutdown", "lease", "poison", "cancelled")


def state_by_status(status: Status, step_seq: int) -> JobState:
    """The state of a job, derived from the instance alone."""
    match status:
        case Status.DONE:
            return JobState.SUCCEEDED
        case Status.FAILED:
            return JobState.FAILED
        case Status.CANCELLED:
            return JobState.CANCELLED
        case Status.EXECUTING:
            return JobState.RUNNING
        case _:
            return JobState.RUNNING if step_seq else JobState.PENDING
