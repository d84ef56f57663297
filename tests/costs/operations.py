"""The database operations whose cost is recorded. `./run bench --operations` measures the processor time of the same ones."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from msgspec.structs import replace

from gen_durable._core.model import CommitEntry, Committed, EventRow
from gen_durable._db.commit import Recorder
from gen_durable._db.plan import Plan, Script, only
from gen_durable._db.pool import Database
from gen_durable._db.signals import deliver
from gen_durable._runtime.database_status import DatabaseStatus
from gen_durable._runtime.flusher import Flusher
from gen_durable._runtime.wake import Wakes
from tests.support.engine_plans import RECORDER, entry, inserted, new, picked

__all__ = ["OPERATIONS", "Operation", "Run"]

Run: TypeAlias = Callable[[], Awaitable[object]]
Prepare: TypeAlias = Callable[[Database, int], Awaitable[Run]]

_EVENT: Final = EventRow("sink", "paid", "order", "{}")


class Operation(NamedTuple):
    """What is measured: `prepare` creates rows and returns what to run, which handles `rows` of them in `calls` calls."""

    title: str
    rows: int
    prepare: Prepare
    calls: int = 1


async def _single_inserts(database: Database, rows: int) -> Run:
    async def run() -> None:
        for _ in range(rows):
            await inserted(database, new())

    return run


def _insert(**values: Any) -> Prepare:
    async def prepare(database: Database, rows: int) -> Run:
        return lambda: inserted(database, *[new(**_numbered(values, n)) for n in range(rows)])

    return prepare


def _pick(**values: Any) -> Prepare:
    async def prepare(database: Database, rows: int) -> Run:
        await inserted(database, *[new(**_numbered(values, n)) for n in range(rows)])
        return lambda: _all_picked(database, rows)

    return prepare


def _commit(
    kind: str, recorder: Recorder = RECORDER, row: dict[str, Any] | None = None, **fields: Any
) -> Prepare:
    async def prepare(database: Database, rows: int) -> Run:
        await inserted(database, *[new(**_numbered(row or {}, n)) for n in range(rows)])
        entries = [entry(one, kind, **fields) for one in await _all_picked(database, rows)]
        return lambda: _flushed(database, entries, recorder)

    return prepare


def _commit_chained_with(recorder: Recorder) -> Prepare:
    """The second commit of a chain: before the first one, insert and pick have left no space in the pages."""

    async def prepare(database: Database, rows: int) -> Run:
        await inserted(database, *[new() for _ in range(rows)])
        executions = await _all_picked(database, rows)
        await _vacuum(database)
        await _flushed(database, [entry(one, "continue", payload="1") for one in executions], recorder)
        entries = [entry(replace(one, step_seq=1), "continue", payload="1") for one in executions]
        return lambda: _flushed(database, entries, recorder)

    return prepare


async def _signal(database: Database, rows: int) -> Run:
    ids = await _awaiting(database, rows)

    async def run() -> None:
        for id in ids:
            await database.run(deliver(id, "paid", "{}", None))

    return run


async def _pick_signalled(database: Database, rows: int) -> Run:
    ids = await _awaiting(database, rows)
    await _vacuum(database)

    def signals() -> Plan[None]:
        for id in ids:
            yield from deliver(id, "paid", "{}", None)

    await database.run_in_transaction(signals())
    return lambda: _all_picked(database, rows)


async def _awaiting(database: Database, rows: int) -> list[int]:
    ids = await inserted(database, *[new() for _ in range(rows)])
    entries = [entry(one, "await", awaits=("paid",)) for one in await _all_picked(database, rows)]
    await _flushed(database, entries)
    return ids


async def _fan_out(database: Database, rows: int) -> Run:
    await inserted(database, new())
    (parent,) = await _all_picked(database, 1)
    children = tuple(new("B") for _ in range(rows))
    return lambda: _flushed(database, [entry(parent, "schedule_children", children=children)])


async def _end_children(database: Database, rows: int) -> Run:
    await (await _fan_out(database, rows))()
    entries = [entry(child, "done", payload="1") for child in await _all_picked(database, rows)]
    return lambda: _flushed(database, entries)


async def _join(database: Database, rows: int) -> Run:
    await (await _end_children(database, rows))()
    return lambda: _all_picked(database, 1)


async def _flushed(database: Database, entries: Sequence[CommitEntry], recorder: Recorder = RECORDER) -> None:
    """Commit in one batch, as a worker does: without a task per outcome."""
    flusher = Flusher(database, database, database, recorder, Wakes(), DatabaseStatus())
    flushing = asyncio.get_running_loop().create_task(flusher.run())
    acknowledged: list[object] = []

    def acknowledge(_: CommitEntry, result: object) -> None:
        acknowledged.append(result)
        if len(acknowledged) == len(entries):
            flushing.cancel()

    for one in entries:
        flusher.submit(one, acknowledge)
    await asyncio.wait([flushing])
    assert all(isinstance(result, Committed) for result in acknowledged)


def _numbered(values: dict[str, Any], number: int) -> dict[str, Any]:
    return {name: value.format(number) if isinstance(value, str) else value for name, value in values.items()}


async def _all_picked(database: Database, rows: int) -> Any:
    executions = await picked(database)
    assert len(executions) == rows
    return executions


async def _vacuum(database: Database) -> None:
    """Remove dead rows, so that the space in the pages does not depend on other transactions of the server."""
    await database.run(only(Script("vacuum (index_cleanup on, truncate off) gen_durable.gen_durable")))


_FEW: Final = 50
_MANY: Final = 500
_ALL: Final = frozenset({"A", "B"})
_KEYED: Final = {"concurrency_key": "key {}"}
_CORRELATED: Final = {"correlation_key": "key {}", "priority": 5}
OPERATIONS: Final = (
    Operation("insert, one row per call", _FEW, _single_inserts, calls=_FEW),
    Operation("insert", _MANY, _insert()),
    Operation("insert, a correlation key and a priority each", _MANY, _insert(**_CORRELATED)),
    Operation("pick", _MANY, _pick()),
    Operation("pick, a correlation key each", _MANY, _pick(**_CORRELATED)),
    Operation("pick, a concurrency key each", _MANY, _pick(**_KEYED)),
    Operation("commit `Next`, chained", _MANY, _commit_chained_with(RECORDER)),
    Operation("commit `Next`, not chained", _MANY, _commit("next", payload="1")),
    Operation("commit `Retry`", _MANY, _commit("retry", error="no")),
    Operation("commit `Done`", _MANY, _commit("done", payload="1")),
    Operation("commit `Done`, records off", _MANY, _commit("done", Recorder("worker", "off"), payload="1")),
    Operation(
        "commit `Next`, chained, with history",
        _MANY,
        _commit_chained_with(Recorder("worker", "all", histories=_ALL)),
    ),
    Operation("commit `Done`, `keep=False`", _MANY, _commit("done", keep=False, payload="1")),
    Operation("commit `Done`, an event each", _MANY, _commit("done", payload="1", events=(_EVENT,))),
    Operation("commit `Done`, a concurrency key each", _MANY, _commit("done", row=_KEYED, payload="1")),
    Operation("commit `Await`", _MANY, _commit("await", awaits=("paid",))),
    Operation("signal", _FEW, _signal, calls=_FEW),
    Operation("pick, a signal each", _FEW, _pick_signalled),
    Operation("commit `ScheduleChildren`, per child", _MANY, _fan_out),
    Operation("commit `Done` of children, with the join", _MANY, _end_children),
    Operation("pick of their parent, per child", _MANY, _join),
)
