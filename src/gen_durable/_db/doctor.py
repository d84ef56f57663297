"""Checks of the database and the workers; each check is a plan that returns findings."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from shlex import quote
from typing import Final

import msgspec

from .._core.compatibility import differing_steps
from ..config import Settings
from ..findings import Finding
from ..operations import WorkerInfo
from . import admission, batches, compatibility, migrate, workers
from .connector import PINNED
from .plan import Plan, Row, Rows, in_schema, statements

__all__ = ["CODES", "examine", "outdated"]

CODES: Final = (
    *("schema.version", "schema.open", "index.missing", "index.invalid", "table.bloat", "transaction.long"),
    *("pooler.session", "clock.skew", "lease.stuck", "queue.paused", "queue.unserved", "queue.busy"),
    *("machine.unknown", "machine.steps_differ", "step.unknown", "key.stuck", "limit.missing"),
    *("schedule.overdue", "schedule.failing", "outbox.stuck", "outbox.dead", "undo.incomplete"),
    *("batch.abandoned", "worker.silent", "worker.blocked"),
)
"""The codes of all checks."""

_SQL = statements("doctor.sql")
# Fewer dead rows are not reported: the table is small.
_MIN_DEAD_ROWS: Final = 10_000
# autovacuum_naptime is 1 minute by default.
_LATE_VACUUM: Final = timedelta(minutes=5)
_LONG_TRANSACTION: Final = timedelta(minutes=5)
# A worker fires a schedule within its poll_interval, and publishes an event at once.
_LATE_SCHEDULE: Final = timedelta(minutes=1)
_LATE_EVENT: Final = timedelta(minutes=5)
# A process that runs a batch commits pages all the time.
_IDLE_BATCH: Final = timedelta(minutes=1)
# The most rows that a check counts, in a few milliseconds. At this number a finding says "at least".
_MAX_COUNT: Final = 10_000
_MAX_PER_CODE: Final = 20
# Runnable rows of a machine, queue and version whose steps are read, from each end.
_SAMPLE: Final = 500
# How long an instance of a queue at capacity may have been due.
_LONGEST_WAIT: Final = timedelta(minutes=5)
# With a larger skew, times that a program passes (`eligible_at=`) are off noticeably.
_SKEW: Final = timedelta(seconds=5)
# Pinned settings that the statements rely on, and that get lost behind a pooler in transaction mode.
_SESSION: Final = ("plan_cache_mode", "enable_seqscan", "jit", "synchronous_commit")
_INDEX: Final = re.compile(
    r"^create (?:unique )?index (\w+) .*?;|^drop index gen_durable\.(\w+);", re.MULTILINE | re.DOTALL
)


def examine(settings: Settings) -> Plan[list[Finding]]:
    """Run all checks. An incompatible schema version is the only finding."""
    schema = yield from migrate.status(settings.schema)
    if not schema.is_usable:
        return [outdated(schema.version, schema.latest)]
    found: list[Finding] = []
    checks: tuple[Callable[[Settings], Plan[list[Finding]]], ...] = (
        _indexes,
        _bloat,
        _transactions,
        _session,
        _creators,
        _clock,
        _leases,
        _backlog,
        _busy,
        _steps,
        _keys,
        _limits,
        _schedules,
        _failing_schedules,
        _outbox,
        _dead_letters,
        _undo,
        _batches,
        _workers,
        _releases,
        _incompatible,
    )
    for check in checks:
        found += _shortened((yield from check(settings)))
    return found


def _shortened(findings: list[Finding]) -> list[Finding]:
    """Limit the findings per code, and report how many more there are: producers may create many queues."""
    by_code: defaultdict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        by_code[finding.code].append(finding)
    for code, each in by_code.items():
        if (more := len(each) - _MAX_PER_CODE) > 0:
            each[_MAX_PER_CODE:] = [
                Finding(
                    code=code,
                    severity=each[0].severity,
                    what=f"{more} more findings of this kind",
                    fix="fix those above, and run doctor again",
                    facts={"more": more},
                )
            ]
    return [finding for each in by_code.values() for finding in each]


def outdated(version: int | None, latest: int) -> Finding:
    """The finding for an incompatible schema version."""
    is_newer = version is not None and version > latest
    needs = f"the schema is at version {version}, and this gen_durable works with {latest}"
    return Finding(
        code="schema.version",
        what="the schema has no tables of gen_durable" if version is None else needs,
        fix="upgrade the package" if is_newer else "run `gen-durable db migrate`",
        facts={"version": version, "latest": latest},
    )


def _indexes(settings: Settings) -> Plan[list[Finding]]:
    rows = yield _SQL["indexes"](schema=settings.schema)
    there = {row["name"]: row["is_valid"] for row in rows}
    return [*_missing(there, settings.schema)]


def _missing(there: dict[str, bool], schema: str) -> Iterator[Finding]:
    for name, definition in _wanted().items():
        facts = {"index": name}
        build = in_schema(definition.replace(" index ", " index concurrently ", 1), schema)
        if name not in there:
            yield Finding(
                code="index.missing", what=f"index {name} is missing", fix=f"build it: {build}", facts=facts
            )
        elif not there[name]:
            yield Finding(
                code="index.invalid",
                what=f"index {name} is invalid: its build failed, and no query uses it",
                fix=f'drop it and build it again: drop index "{schema}".{name}; {build}',
                facts=facts,
            )


def _wanted() -> dict[str, str]:
    """The indexes that the migrations create, with their definitions."""
    wanted: dict[str, str] = {}
    for version in range(1, migrate.LATEST + 1):
        for made in _INDEX.finditer(migrate.up(version)):
            if made[1]:
                wanted[made[1]] = " ".join(made[0].split())
            else:
                wanted.pop(made[2], None)
    return wanted


def _bloat(settings: Settings) -> Plan[list[Finding]]:
    rows = yield _SQL["bloat"](schema=settings.schema, least=_MIN_DEAD_ROWS, grace=_LATE_VACUUM)
    return [
        Finding(
            code="table.bloat",
            what=f"table {row['name']} has {row['dead']} dead rows beside {row['live']} live ones",
            fix=f'vacuum (analyze) "{settings.schema}".{row["name"]}; then find out what blocks autovacuum: '
            "a long transaction, a standby, or its settings",
            facts=dict(row),
        )
        for row in rows
    ]


def _transactions(settings: Settings) -> Plan[list[Finding]]:
    rows = yield _SQL["transactions"](longest=_LONG_TRANSACTION)
    return [
        Finding(
            code="transaction.long",
            what=f"a transaction of {row['owner']} ({row['who']}, {row['state']}) has been open since "
            f"{_moment(row['since'])}",
            fix=f"rollback prepared '{row['who']}', or commit it"
            if row["state"] == "prepared"
            else f"end it in its application, or: select pg_terminate_backend({row['who']})",
            facts=dict(row),
        )
        for row in rows
    ]


def _session(settings: Settings) -> Plan[list[Finding]]:
    rows = yield _SQL["session"](names=[*_SESSION, "transaction_isolation"])
    pinned = {**PINNED, "transaction_isolation": PINNED["default_transaction_isolation"]}
    lost = {row["name"]: row["value"] for row in rows if row["value"] != pinned[row["name"]]}
    if not lost:
        return []
    return [
        Finding(
            code="pooler.session",
            what=f"session settings are lost: {', '.join(f'{name} is {lost[name]}' for name in lost)}",
            fix="if a pooler is between gen_durable and PostgreSQL, set GEN_DURABLE_POOLER=transaction, or connect "
            "directly",
            facts=lost,
        )
    ]


def _creators(settings: Settings) -> Plan[list[Finding]]:
    rows = yield _SQL["creators"](schema=settings.schema)
    findings = [_open_to(row["schema"], row["roles"], is_ours=row["is_ours"]) for row in rows]
    owners = yield _SQL["owner"](schema=settings.schema)
    return [*findings, *(_owned_by(settings.schema, row) for row in owners)]


def _owned_by(schema: str, row: Row) -> Finding:
    return Finding(
        code="schema.open",
        what=f"schema {schema} belongs to role {row['schema_owner']}, its tables to {row['table_owner']}. The first "
        "can replace tables and functions, and run code with the rights of workers and clients",
        fix=f"alter schema {_identifier(schema)} owner to {_identifier(row['table_owner'])}",
        facts={"schema": schema, **row},
    )


def _open_to(schema: str, roles: list[str], *, is_ours: bool) -> Finding:
    names = ", ".join(roles)
    risk = (
        "the schema of gen_durable: their functions can be called in place of ours"
        if is_ours
        else "which is on the search_path of this role: SQL in effects and in psql may run their functions"
    )
    return Finding(
        code="schema.open",
        severity="problem" if is_ours else "notice",
        what=f"{names} may create in schema {schema}, {risk}",
        fix=f"revoke create on schema {_identifier(schema)} from "
        + ", ".join("public" if role == "public" else _identifier(role) for role in roles),
        facts={"schema": schema, "roles": roles},
    )


def _identifier(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def _clock(settings: Settings) -> Plan[list[Finding]]:
    before = datetime.now(UTC)
    rows = yield _SQL["clock"]()
    after = datetime.now(UTC)
    skew: timedelta = rows[0]["now"] - (before + (after - before) / 2)
    if abs(skew) <= _SKEW + (after - before):
        return []
    side = "ahead of" if skew > timedelta(0) else "behind"
    return [
        Finding(
            code="clock.skew",
            what=f"the clock of the database is {abs(skew)} {side} this host's",
            fix="synchronize both with NTP; the engine itself uses the clock of the database",
            facts={"skew": skew},
        )
    ]


def _leases(settings: Settings) -> Plan[list[Finding]]:
    grace = settings.lease + settings.reap_interval + settings.renew_after()
    (row,) = yield _SQL["leases"](grace=grace)
    if not row["count"]:
        return []
    return [
        Finding(
            code="lease.stuck",
            what=f"no reaper takes back {_counted(row['count'], 'expired lease')}; the first expired at "
            f"{_moment(row['since'])}",
            fix="start a worker with settings.reaper on; with queues={} it only does maintenance",
            facts={**row, "workers": [each for each in row["workers"] if each]},
        )
    ]


def _backlog(settings: Settings) -> Plan[list[Finding]]:
    rows = yield _SQL["backlog"](most=_MAX_COUNT)
    return [*_paused(rows), *_unserved(rows), *_unknown(rows)]


def _paused(rows: Rows) -> Iterator[Finding]:
    for queue, count in _due([row for row in rows if row["is_paused"]]).items():
        yield Finding(
            code="queue.paused",
            severity="notice",
            what=f"queue {queue} is paused; {_counted(count, 'due instance')}",
            fix=f"gen-durable queues resume {quote(queue)}",
            facts={"queue": queue, "due": count},
        )


def _unserved(rows: Rows) -> Iterator[Finding]:
    for queue, count in _due([row for row in rows if not row["serving"] and not row["is_paused"]]).items():
        yield Finding(
            code="queue.unserved",
            what=f"no live worker serves queue {queue}; {_counted(count, 'due instance')}",
            fix=f"start one: gen-durable worker app.py --queue {quote(queue)}=10",
            facts={"queue": queue, "due": count},
        )


def _unknown(rows: Rows) -> Iterator[Finding]:
    for row in rows:
        if row["serving"] and not row["able"]:
            queue, name, version, count = row["queue"], row["fsm"], row["fsm_version"], row["count"]
            yield Finding(
                code="machine.unknown",
                what=f"no live worker of queue {queue} runs {name} version {version}; "
                f"{_counted(count, 'waiting instance')}",
                fix="deploy a worker with this version of the machine, or cancel these instances",
                facts={"queue": queue, "machine": name, "version": version, "count": count},
            )


def _busy(settings: Settings) -> Plan[list[Finding]]:
    rows = yield _SQL["busy"](most=_MAX_COUNT, grace=_LONGEST_WAIT)
    return [
        Finding(
            code="queue.busy",
            severity="notice",
            what=f"queue {row['queue']} is at capacity: {row['workers']} workers execute {row['running']} of "
            f"{row['capacity']}; the first instance has been due since {_moment(row['since'])}",
            fix=f"start workers, or raise it: gen-durable queues set {quote(row['queue'])} --concurrency N; "
            "slow steps: gen-durable stats",
            facts={name: row[name] for name in ("queue", "workers", "running", "capacity", "since")},
        )
        for row in rows
    ]


def _steps(settings: Settings) -> Plan[list[Finding]]:
    rows = yield _SQL["steps"](most=_MAX_COUNT, sample=_SAMPLE)
    return [
        Finding(
            code="step.unknown",
            what=f"no live worker has step {row['step']} of {row['fsm']} version {row['fsm_version']}; "
            f"{_counted(row['count'], 'waiting instance', is_cut=row['is_cut'] or None)}; "
            f"live workers have {', '.join(row['steps'])}",
            fix=f'deploy the step, or name it in was="{row["step"]}" of the step that replaces it',
            facts={
                "machine": row["fsm"],
                "version": row["fsm_version"],
                "step": row["step"],
                "count": row["count"],
                "steps": row["steps"],
            },
        )
        for row in rows
    ]


def _due(rows: list[Row]) -> dict[str, int]:
    due: defaultdict[str, int] = defaultdict(int)
    for row in rows:
        if row["due"]:
            due[row["queue"]] += row["due"]
    return due


def _keys(settings: Settings) -> Plan[list[Finding]]:
    keys, is_expected = yield from admission.stuck_keys()
    return (
        []
        if is_expected
        else [
            Finding(
                code="key.stuck",
                what=f"concurrency key {key} is free, but its instances are still gated",
                fix="the reaper of any worker releases them within reap_interval; please report this, with the log",
                facts={"key": key},
            )
            for key in keys
        ]
    )


def _limits(settings: Settings) -> Plan[list[Finding]]:
    rows = yield _SQL["limits"](most=_MAX_COUNT)
    return [
        Finding(
            code="limit.missing",
            what=f"{_counted(row['count'], 'instance')} waiting for rate limit {row['name']}, which does not exist",
            fix=f"set it: gen-durable limits set {quote(row['name'])}=100/1m; or cancel these instances",
            facts={"limit": row["name"], "count": row["count"], "ids": row["ids"]},
        )
        for row in rows
    ]


def _schedules(settings: Settings) -> Plan[list[Finding]]:
    (row,) = yield _SQL["schedules"](grace=_LATE_SCHEDULE, most=_MAX_COUNT)
    if not row["count"]:
        return []
    return [
        Finding(
            code="schedule.overdue",
            what=f"{_counted(row['count'], 'schedule')} overdue, the first since {_moment(row['since'])}; "
            f"no worker fires them: {', '.join(row['names'])}",
            fix="start a worker (any worker fires all schedules); if one runs, its log has the cause (cronsim or a "
            "time zone is missing)",
            facts=dict(row),
        )
    ]


def _failing_schedules(settings: Settings) -> Plan[list[Finding]]:
    rows = yield _SQL["failing_schedules"](most=_MAX_COUNT)
    return [
        Finding(
            code="schedule.failing",
            what=f"schedule {row['name']} inserted nothing at its last fire time: {row['last_error']}",
            fix="correct it: gen-durable schedules add; or delete it: gen-durable schedules rm "
            f"{quote(row['name'])}",
            facts=dict(row),
        )
        for row in rows
    ]


def _outbox(settings: Settings) -> Plan[list[Finding]]:
    rows = yield _SQL["outbox"](grace=_LATE_EVENT, most=_MAX_COUNT)
    return [
        Finding(
            code="outbox.stuck",
            what=f"{_counted(row['count'], 'event')} for sink {row['sink']} not published since "
            f"{_moment(row['since'])}; the oldest is removed at "
            f"{_moment(row['oldest'] + settings.retention_pending)} (settings.retention_pending)"
            f"{_last_error(row)}",
            fix=f"run a worker that has this sink; if one runs, look at its errors: gen-durable outbox ls "
            f"--sink {quote(row['sink'])} --state pending",
            facts={**row, "expires_at": row["oldest"] + settings.retention_pending},
        )
        for row in rows
    ]


def _dead_letters(settings: Settings) -> Plan[list[Finding]]:
    rows = yield _SQL["dead_letters"](most=_MAX_COUNT)
    is_cut = sum(row["count"] for row in rows) >= _MAX_COUNT
    return [
        Finding(
            code="outbox.dead",
            severity="notice",
            what=f"{_counted(row['count'], 'dead letter', is_cut=is_cut)} for sink {row['sink']} since "
            f"{_moment(row['since'])}{_last_error(row)}",
            fix=f"look at them: gen-durable outbox ls --sink {quote(row['sink'])} --state dead; "
            f"once the cause is repaired: gen-durable outbox replay --dead --sink {quote(row['sink'])}",
            facts=dict(row),
        )
        for row in rows
    ]


def _undo(settings: Settings) -> Plan[list[Finding]]:
    (row,) = yield _SQL["undo"](most=_MAX_COUNT)
    if not row["count"]:
        return []
    return [
        Finding(
            code="undo.incomplete",
            what=f"{_counted(row['count'], 'instance')} ended before all undo steps had run, the first at "
            f"{_moment(row['since'])}: {', '.join(map(str, row['ids']))}{_last_error(row)}",
            fix="repair the cause, then continue the undo steps: gen-durable retry ID",
            facts=dict(row),
        )
    ]


def _batches(settings: Settings) -> Plan[list[Finding]]:
    return [
        Finding(
            code="batch.abandoned",
            severity="notice",
            what=f"batch {row['id']} ({row['verb']}, {_counted(row['total'], 'instance')}) is not finished, and no "
            f"process has run it since {_moment(row['since'])}{_last_error(row)}",
            fix=f"continue it: gen-durable batches run {row['id']}; or end it: gen-durable batches stop {row['id']}",
            facts=dict(row),
        )
        for row in (yield from batches.abandoned(_IDLE_BATCH, _MAX_PER_CODE + 1))
    ]


def _counted(count: int, noun: str, *, is_cut: bool | None = None) -> str:
    least = "at least " if (count >= _MAX_COUNT if is_cut is None else is_cut) else ""
    return f"{least}{count} {noun}{'' if count == 1 else 's'}"


def _last_error(row: Row) -> str:
    return f"; last error: {row['last_error']}" if row["last_error"] else ""


def _moment(at: datetime) -> str:
    return at.isoformat(sep=" ", timespec="seconds")


def _workers(settings: Settings) -> Plan[list[Finding]]:
    found = yield from workers.list_workers()
    return [*_silent(found), *_blocked(found)]


def _blocked(found: Sequence[WorkerInfo]) -> Iterator[Finding]:
    for each in found:
        if each.is_live and each.blocked is not None:
            yield Finding(
                code="worker.blocked",
                what=f"the event loop of worker {each.name} has been {each.blocked}",
                fix="use a plain `def` step or asyncio.to_thread for blocking code; the log has the stack",
                facts={"worker": each.name, **msgspec.structs.asdict(each.blocked)},
            )


def _silent(found: Sequence[WorkerInfo]) -> list[Finding]:
    return [
        Finding(
            code="worker.silent",
            severity="notice",
            what=f"worker {each.name}: last heartbeat at {_moment(each.seen_at)}, no clean shutdown",
            fix="find out why its process ended; another worker takes over what it had leased",
            facts={"worker": each.name, "host": each.host, "pid": each.pid, "seen_at": each.seen_at},
        )
        for each in found
        if not each.is_live
    ]


def _releases(settings: Settings) -> Plan[list[Finding]]:
    live = yield from compatibility.live_machines()
    return [
        Finding(
            code="machine.steps_differ",
            severity="problem" if each.is_conflict else "notice",
            what=str(each),
            fix="if two services have a machine of this name, rename one of them; after a deploy, stop the old "
            "workers, and name renamed steps in was=",
            facts={
                "machine": each.fsm,
                "version": each.version,
                "workers": [each.first.worker, each.second.worker],
                "steps": [list(each.first.steps), list(each.second.steps)],
            },
        )
        for each in differing_steps(live)
    ]


def _incompatible(settings: Settings) -> Plan[list[Finding]]:
    """What live workers found at their start; one finding for all workers with the same code."""
    by_text: defaultdict[tuple[str, str], list[tuple[str, datetime, Finding]]] = defaultdict(list)
    for each in (yield from workers.incompatible()):
        by_text[each[2].code, each[2].what].append(each)
    found: list[Finding] = []
    for same in by_text.values():
        names = [name for name, _, _ in same]
        _, since, finding = same[0]
        noun = "worker" if len(names) == 1 else "workers"
        found.append(
            msgspec.structs.replace(
                finding,
                what=f"{noun} {', '.join(names)} found at {_moment(since)}: {finding.what}",
                facts={**finding.facts, "workers": names, "since": since},
            )
        )
    return found
