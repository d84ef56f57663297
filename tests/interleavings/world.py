"""The database before and after an order: inserts and snapshots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, TypeAlias

import msgspec

from gen_durable._core.model import CommitEntry, Execution, NewInstance, SignalRow
from gen_durable._db.plan import in_schema

Row: TypeAlias = Mapping[str, Any]

QUEUE: Final = "default"
MACHINES: Final = (["F"], [1])
TOKEN: Final = 7
"""The lease token of every row that is leased when an order begins: one pick gives one token to all of its rows."""
WORKER: Final = "w1"
LEASE: Final = timedelta(minutes=1)
PAST: Final = timedelta(seconds=-1)
FUTURE: Final = timedelta(hours=1)
TERMINAL: Final = ("done", "failed", "cancelled")
LIVE: Final = ("runnable", "executing", "awaiting_signal", "awaiting_children")
KeyKind: TypeAlias = Literal["unique", "correlation"]
FIRST_NEW_ID: Final = 100
"""Rows that sessions insert are numbered from here."""

# One statement, so that what it sees is one committed state.
_LOOK: Final = """
select (select coalesce(jsonb_agg(to_jsonb(g) || jsonb_build_object(
                 'is_due', g.eligible_at <= statement_timestamp(),
                 'is_passed_over', (g.fsm, g.fsm_version, g.queue) in (select * from gen_durable.passed_over), 'eligible_at', extract(epoch from g.eligible_at),
                 'unique_key', convert_from(g.unique_key, 'UTF8'),
                 'is_holding', g.deleted_at is null or g.status = 'executing') order by g.id), '[]')
          from gen_durable.gen_durable g)::text as instances,
       (select coalesce(jsonb_agg(to_jsonb(s) order by s.id), '[]') from gen_durable.signals s)::text as signals,
       (select coalesce(jsonb_agg(to_jsonb(e) order by e.execution), '[]')
          from gen_durable.executions e)::text as executions,
       (select coalesce(jsonb_agg(to_jsonb(a) order by a.id), '[]') from gen_durable.audit_events a)::text as audit,
       (select coalesce(jsonb_agg(to_jsonb(o) order by o.id), '[]') from gen_durable.outbox o)::text as outbox,
       (select coalesce(jsonb_agg(to_jsonb(i) order by i.instance_id, i.stream, i.position), '[]')
          from gen_durable.stream_items i)::text as items,
       (select coalesce(jsonb_object_agg(job_id, state), '{}') from gen_durable.gen_durable_job_state)::text as states,
       (select coalesce(jsonb_agg(to_jsonb(s)), '[]') from gen_durable.schedules s)::text as schedules,
       (select coalesce(jsonb_agg(to_jsonb(b)), '[]') from gen_durable.batches b)::text as batches,
       (select coalesce(jsonb_agg(to_jsonb(m)), '[]') from gen_durable.machines m)::text as machines,
       (select coalesce(jsonb_object_agg(name, slots), '{}') from gen_durable.limits
         where kind = 'concurrency')::text as slots,
       (select coalesce(jsonb_object_agg(key, extract(epoch from full_at - statement_timestamp()) / 86400), '{}')
          from gen_durable.buckets where isfinite(full_at))::text as buckets,
       (select count(*) from gen_durable.effects) as effects"""


class World(msgspec.Struct, frozen=True):
    """A snapshot of all tables."""

    instances: Mapping[int, Row]
    signals: list[Row]
    executions: list[Row]
    """The records of what has ended, in the order of their numbers."""
    audit: list[Row]
    """Who did what to an instance, in order."""
    outbox: list[Row]
    items: list[Row]
    """The items of streams, by instance, stream and position."""
    states: Mapping[int, str]
    """What the view of job states says of each instance."""
    slots: Mapping[str, int]
    """The concurrency limits."""
    buckets: Mapping[str, float]
    """The tokens that are taken from each bucket, if its limit is one per day."""
    effects: int
    """How often the effect of an outcome has happened."""
    schedules: list[Row]
    batches: list[Row]
    machines: list[Row]
    """What workers have registered of their machines."""

    def unread(self, target: int) -> list[Row]:
        return [row for row in self.signals if row["target_id"] == target and row["consumed_seq"] is None]

    def records(self, id: int) -> list[Row]:
        return [record for record in self.executions if record["instance_id"] == id]

    def audit_of(self, id: int, event: str) -> list[Row]:
        """The audit of one kind of event of an instance."""
        return [row for row in self.audit if row["instance_id"] == id and row["event"] == event]

    def status(self, id: int) -> str:
        return str(self.instances[id]["status"])

    def holders(self, kind: KeyKind, key: str | bytes) -> set[int]:
        """The instances that occupy a unique or correlation key."""
        text = key.decode() if isinstance(key, bytes) else key
        return {
            id
            for id, row in self.instances.items()
            if row["is_holding"] and row[f"{kind}_key"] == text and row["status"] in row[f"{kind}_scope"]
        }


async def look(conn: Any, schema: str) -> World:
    found = await conn.fetchrow(in_schema(_LOOK, schema))
    instances: list[Row] = msgspec.json.decode(found["instances"])
    return World(
        {row["id"]: row for row in instances},
        msgspec.json.decode(found["signals"]),
        msgspec.json.decode(found["executions"]),
        msgspec.json.decode(found["audit"]),
        msgspec.json.decode(found["outbox"]),
        msgspec.json.decode(found["items"]),
        msgspec.json.decode(found["states"], type=dict[int, str]),
        msgspec.json.decode(found["slots"], type=dict[str, int]),
        msgspec.json.decode(found["buckets"], type=dict[str, float]),
        found["effects"],
        msgspec.json.decode(found["schedules"]),
        msgspec.json.decode(found["batches"]),
        msgspec.json.decode(found["machines"]),
    )


def reset(tables: Iterable[str], setup: Iterable[str]) -> str:
    """A function that empties the tables and inserts the rows of a scenario."""
    statements = (
        *(f"delete from gen_durable.{table}" for table in tables),
        f"perform setval('gen_durable.gen_durable_id_seq', {FIRST_NEW_ID}, false)",
        f"perform setval('gen_durable.signals_id_seq', {FIRST_NEW_ID}, false)",
        f"perform setval('gen_durable.outbox_id_seq', {FIRST_NEW_ID}, false)",
        "insert into gen_durable.settings (audit) values ('all')",
        *setup,
    )
    return (
        "create or replace function gen_durable.set_up() returns void language plpgsql as $set_up$ begin\n"
        + "".join(f"{statement};\n" for statement in statements)
        + "end $set_up$"
    )


def instance(id: int, status: str = "runnable", **columns: Any) -> str:
    """An instance of machine F. A `timedelta` is relative to now."""
    row = {"id": id, "fsm": "F", "step": "s", "status": status, **columns}
    if status not in ("runnable", "executing"):
        row["rest_step"] = row["step"]
    return _insert("gen_durable", row)


def leased(id: int, **columns: Any) -> str:
    """An instance that worker w1 executes on an expired lease: its outcome and the reaper race.

    Its crash_count makes the reaper's backoff 1 µs, so a pick may follow at once.
    """
    lease = {"lease_token": TOKEN, "locked_by": WORKER, "lease_expires_at": PAST, "execution": 1}
    return instance(id, "executing", **{**lease, "crash_count": -20, **columns})


def failed(id: int, **columns: Any) -> list[str]:
    """An instance that failed in its first step."""
    ended = instance(id, "failed", **{"step_seq": 1, "execution": 1, "finished_at": PAST, **columns})
    return [ended, record(id, "DONE", "stop")]


def done(id: int, **columns: Any) -> list[str]:
    """An instance that is done after its first step."""
    ended = instance(id, "done", **{"step_seq": 1, "execution": 1, "finished_at": PAST, **columns})
    return [ended, record(id, "DONE", "done")]


def cancelled(id: int, **columns: Any) -> list[str]:
    """An instance that was cancelled before its first step."""
    end = {"execution": 1, "finished_at": PAST, "cancel_requested_at": PAST, "cancel_reason": "by mistake"}
    seq: int = columns.get("step_seq", 0)
    return [instance(id, "cancelled", **{**end, **columns}), record(id, "ABORTED", "cancelled", seq + 1)]


def record(id: int, status: str, outcome: str, step_seq: int = 1) -> str:
    return (
        "insert into gen_durable.executions"
        " (instance_id, step_seq, execution, attempt, status, outcome, step, finished_at)"
        f" values ({id}, {step_seq}, 1, 0, '{status}', '{outcome}', 's', statement_timestamp())"
    )


def signal(id: int, target: int, name: str, dedup_key: str | None = None, **columns: Any) -> str:
    return _insert(
        "signals", {"id": id, "target_id": target, "name": name, "dedup_key": dedup_key, **columns}
    )


def event(id: int, instance_id: int, **columns: Any) -> str:
    """An event that waits to be published, of a transition that is committed."""
    row = {"id": id, "instance_id": instance_id, "step_seq": 1, "n": id, "sink": "default", "type": "shipped"}
    return _insert("outbox", {**row, "subject": "x", "data": "null", "next_at": PAST, **columns})


def machine(**columns: Any) -> str:
    """The registration of machine F."""
    return _insert("machines", {"fsm": "F", "fsm_version": 1, "initial_step": "s", "queue": QUEUE, **columns})


def batch(**columns: Any) -> str:
    """A batch of all instances, which bob has started."""
    usual = {
        "id": 1,
        "verb": "cancel",
        "selection": '{"version": 1, "filter": {}}',
        "actor": "bob",
        "total": 3,
        "newest": 3,
    }
    return _insert("batches", {**usual, **columns})


def unserved(fsm: str) -> str:
    """A machine that no worker has run for an hour."""
    return _insert("unserved", {"fsm": fsm, "fsm_version": 1, "queue": QUEUE, "since": -FUTURE})


def schedule(**columns: Any) -> str:
    """A schedule that is due: every hour, an instance of F."""
    usual = {
        "name": "hourly",
        "every": "1 hour",
        "tz": "UTC",
        "anchor_at": PAST,
        "missed": "once",
        "overlap": "allow",
        "spec": '{"fsm": "F", "step": "s"}',
        "next_at": PAST,
    }
    return _insert("schedules", {**usual, **columns})


def slots(name: str, count: int) -> str:
    """A concurrency limit."""
    return f"insert into gen_durable.limits (name, kind, slots) values ('{name}', 'concurrency', {count})"


def rate(name: str, burst: int = 1) -> str:
    """A rate limit of one start per day."""
    return (
        "insert into gen_durable.limits (name, kind, allowed, period, burst)"
        f" values ('{name}', 'rate', 1, interval '1 day', {burst})"
    )


def empty(key: str) -> str:
    """A bucket without a token."""
    return (
        "insert into gen_durable.buckets (key, full_at)"
        f" values ('{key}', statement_timestamp() + interval '1 day')"
    )


def full(key: str) -> str:
    """A bucket with one token."""
    return f"insert into gen_durable.buckets (key) values ('{key}')"


def outcome(
    id: int,
    kind: Any,
    *,
    lease_token: int = TOKEN,
    step_seq: int = 0,
    parent_id: int | None = None,
    held_key: str | None = None,
    was_awaiting: bool = False,
    has_inbox: bool = False,
    **fields: Any,
) -> CommitEntry:
    """An outcome of an execution that was leased before the order."""
    execution = Execution(
        id=id,
        lease_token=lease_token,
        fsm="F",
        version=1,
        step="s",
        step_seq=step_seq,
        attempt=0,
        state="{}",
        queue=QUEUE,
        parent_id=parent_id,
        concurrency_key=held_key,
        awaits=("go",) if was_awaiting else None,
        inbox=(SignalRow(1, "go", "{}", datetime.now(UTC)),) if has_inbox else (),
    )
    return CommitEntry(execution=execution, kind=kind, **{"step": "t", "payload": "{}", **fields})


def new(**fields: Any) -> NewInstance:
    """A row that a producer inserts."""
    fields = {"fsm": "F", "version": 1, "step": "s", "state": "{}", "queue": QUEUE, "priority": 0, **fields}
    for scope, key in (("unique_scope", "unique_key"), ("correlation_scope", "correlation_key")):
        if fields.get(key) is not None:
            fields.setdefault(scope, _array(LIVE))
    return NewInstance(**{**dict.fromkeys(NewInstance.__struct_fields__), **fields})


def _insert(table: str, columns: Mapping[str, Any]) -> str:
    values = ", ".join(map(_literal, columns.values()))
    return f"insert into gen_durable.{table} ({', '.join(columns)}) overriding system value values ({values})"


def _literal(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool() | int():
            return str(value)
        case timedelta():
            return f"statement_timestamp() + interval '{value.total_seconds()} seconds'"
        case tuple() | list():
            return f"'{_array(value)}'"
        case bytes():
            return f"'\\x{value.hex()}'"
        case _:
            return f"'{value}'"


def _array(values: Iterable[Any]) -> str:
    return "{" + ",".join(map(str, values)) + "}"
