"""Registrations of a machine by workers that run different code of the same version, during a rolling deploy."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

import msgspec

from gen_durable import Context, Done, Machine, Outcome, Settings, step
from gen_durable._core.registry import Registry
from gen_durable._db import machines
from gen_durable._db.plan import Plan
from gen_durable._runtime.database_status import DatabaseStatus
from gen_durable._runtime.registration import Registration
from tests.interleavings.invariants import require
from tests.interleavings.scenario import End, Scenario
from tests.interleavings.session import Session, Work, autocommit, transaction
from tests.support.worker_rows import WORKER_ROW


class OldCode(Machine[int, None], name="F"):
    @step
    async def old(self, ctx: Context[int]) -> Outcome[None]:
        return Done()


class NewCode(Machine[int, None], name="F"):
    @step
    async def new(self, ctx: Context[int]) -> Outcome[None]:
        return Done()


_LOST: Final = "the code of the worker that started last is not registered"
_SETTINGS: Final = Settings(lease=timedelta(hours=3), heartbeat=timedelta(hours=1))


def _registration(worker: str, code: type[Machine[int, None]]) -> Registration:
    row = msgspec.structs.replace(WORKER_ROW, name=worker, fsms=["F"])
    described = Registry([code]).descriptions
    database: Any = None  # its plans run in the session
    return Registration(database, _SETTINGS, DatabaseStatus(), row, described, (), lambda: 0)


def start(worker: str, code: type[Machine[int, None]] = NewCode) -> Work:
    """Start a worker."""
    return transaction(lambda _: _registration(worker, code).begin())


def renewal(worker: str, code: type[Machine[int, None]] = OldCode) -> list[Work]:
    """Renew the registration of a worker, as it does once per heartbeat."""
    registration = _registration(worker, code)

    def take_over(session: Session) -> Plan[None] | None:
        return registration.take_over() if session.result.is_orphaned else None

    return [autocommit(lambda _: registration.announce()), transaction(take_over)]


def _digest(code: type[Machine[int, None]]) -> str:
    return machines.digests(Registry([code]).descriptions)[0]


_OLD_WORKER: Final = (
    # A registration that no live worker has, so that the old worker takes it over at its next renewal.
    "insert into gen_durable.machines (fsm, fsm_version, digest, initial_step, queue, steps, former_steps)"
    """ values ('F', 1, 'of ended workers', 'gone', 'default', '["gone"]', '[]')""",
    "insert into gen_durable.workers (name, host, pid, version, schema_version, seen_at, expires_at, queues, prefixes,"
    " leaves_unknown, fsms, fsm_versions, fsm_digests) values ('old', 'h', 1, '1', 1, statement_timestamp(),"
    f" statement_timestamp() + interval '1 hour', '{{}}', '{{}}', false, '{{F}}', '{{1}}', '{{{_digest(OldCode)}}}')",
)


def _check_is_new(end: End) -> None:
    (machine,) = end.after.machines
    require(
        machine["digest"] == _digest(NewCode), "the code of the worker that started last is not registered"
    )


def start_and_renewal() -> Scenario:
    """A worker with new code starts while one with old code renews its registration."""
    return Scenario(
        name="start of new code × renewal of old code",
        setup=_OLD_WORKER,
        sessions={"N": [start("new")], "O": renewal("old")},
        check=_check_is_new,
    )


def two_starts() -> Scenario:
    """Two workers with new code start while one with old code renews its registration."""
    sessions: Mapping[str, list[Work]] = {
        "N": [start("new")],
        "M": [start("newer")],
        "O": renewal("old"),
    }
    return Scenario(
        name="two starts of new code × a renewal of old code",
        setup=_OLD_WORKER,
        sessions=sessions,
        check=_check_is_new,
        sample=60,
    )


def first_starts() -> Scenario:
    """Workers with different code start, and no worker has registered the machine before."""

    def check(end: End) -> None:
        (machine,) = end.after.machines
        last = NewCode if end.trace[-1].startswith("N ") else OldCode
        require(machine["digest"] == _digest(last), _LOST)

    return Scenario(
        name="first start of new code × first start of old code",
        setup=(),
        sessions={"N": [start("new")], "O": [start("old", OldCode)]},
        check=check,
    )


SCENARIOS = [start_and_renewal(), two_starts(), first_starts()]
