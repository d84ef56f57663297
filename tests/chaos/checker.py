"""Check the guarantees against the database (plain SQL), the journal, and the answers that clients got.

The checker does not import the engine. It checks:

    lost         acknowledged instances exist, no others exist, and all have ended as expected; or their last step
                 has ended and its commit has deleted them, with all their records
    commits      every transition has exactly one committed execution
    records      it is the last of its executions, and every execution is recorded with an end
    owners       the committed outcome is that of the execution with the lease; others ended before
    chain        a step begins after its predecessor, with the state of the committed execution
    attempts     a step runs once, plus once per aborted execution
    signals      an acknowledged token was consumed exactly once, or is in a live inbox
    ledger       one payment per committed paying step, made by the committed execution
    barriers     a parent continues when all its children have ended, and sees all of them
    sleepers     no instance waits for a delivered signal, ended children, or a free key
    ends         ended instances do not change, and nothing is left executing
    keys         one execution at a time per concurrency key
"""

from __future__ import annotations

import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeAlias

import asyncpg

__all__ = ["Evidence", "Report", "check", "judge", "sealed"]

_ENDED: Final = ("done", "failed", "cancelled")
_COMMITTED: Final = ("COMMITTED", "DONE")
# A statement reads the clock before its snapshot; on a busy machine the gap is visible.
_BLUR: Final = timedelta(milliseconds=100)
Line: TypeAlias = Mapping[str, Any]
Transition: TypeAlias = tuple[int, int]


@dataclass
class Report:
    breaches: list[str]
    counters: dict[str, int]


@dataclass
class Evidence:
    """Everything known after the run."""

    instances: dict[int, Line]
    executions: list[Line]
    signals: list[Line]
    ledger: list[Line]
    journal: list[Line]
    history: Sequence[Line]
    sealed: Mapping[int, str]
    committed: dict[Transition, list[Line]] = field(default_factory=lambda: defaultdict(list))
    aborted: Counter[Transition] = field(default_factory=Counter)
    begins: dict[Transition, list[tuple[int, Line]]] = field(default_factory=lambda: defaultdict(list))
    ends: dict[Transition, list[tuple[int, Line]]] = field(default_factory=lambda: defaultdict(list))
    deleted: set[int] = field(default_factory=set)
    """Instances that the commit of their last step has deleted."""

    def __post_init__(self) -> None:
        for execution in self.executions:
            transition = (execution["instance_id"], execution["step_seq"])
            if execution["status"] in _COMMITTED:
                self.committed[transition].append(execution)
            else:
                self.aborted[transition] += 1
        for place, line in enumerate(self.journal):
            if line["what"] == "begin":
                self.begins[line["instance"], line["step_seq"]].append((place, line))
            elif line["what"] == "end":
                self.ends[line["instance"], line["step_seq"]].append((place, line))
                if line.get("deletes") and line["instance"] not in self.instances:
                    self.deleted.add(line["instance"])

    def signature_of(self, transition: Transition) -> str | None:
        """Which execution's outcome was committed, by the state of the next step or the result."""
        id, step_seq = transition
        if following := self.begins.get((id, step_seq + 1)):
            return str(following[0][1]["saw"])
        instance = self.instances.get(id)
        if instance is not None and instance["status"] == "done" and instance["step_seq"] == step_seq:
            return str(instance["result"]["saw"])
        return None


async def check(dsn: str, journal: Path, history: Sequence[Line], seals: Mapping[int, str]) -> Report:
    """Read everything after the run."""
    conn = await asyncpg.connect(dsn)
    try:
        evidence = await _gather(conn, journal, history, seals)
    finally:
        await conn.close()
    return judge(evidence)


def judge(evidence: Evidence) -> Report:
    """The violations and counters."""
    checks = (
        _lost,
        _commits,
        _records,
        _owners,
        _chain,
        _attempts,
        _signals,
        _inboxes,
        _ledger,
        _barriers,
        _sleepers,
        _ends,
        _keys,
    )
    breaches = [f"{look.__name__[1:]}: {breach}" for look in checks for breach in look(evidence)]
    return Report(breaches, _counters(evidence))


async def sealed(conn: Any, known: Iterable[int] = ()) -> dict[int, str]:
    """Digests of all other ended rows."""
    rows = await conn.fetch(
        """select id, md5(g::text) as digest from gen_durable.gen_durable g
            where status in ('done', 'failed', 'cancelled') and id <> all ($1::bigint[])""",
        list(known),
    )
    return {row["id"]: row["digest"] for row in rows}


async def _gather(conn: Any, journal: Path, history: Sequence[Line], seals: Mapping[int, str]) -> Evidence:
    instances = await conn.fetch(
        """select id, fsm, status::text as status, step_seq, execution, state::text as state, result::text as result,
                  last_error, parent_id, parent_round, spawn_round, children_pending, awaits, presented,
                  lease_token, locked_by, leased_at, concurrency_key, concurrency_slot, gated, queue,
                  convert_from(unique_key, 'UTF8') as key, md5(g::text) as digest
             from gen_durable.gen_durable g order by id"""
    )
    executions = await conn.fetch("select * from gen_durable.executions order by instance_id, execution")
    signals = await conn.fetch("select *, payload::text as text from gen_durable.signals order by id")
    ledger = await conn.fetch("select * from ledger")
    return Evidence(
        {
            row["id"]: {**row, "result": json.loads(row["result"]) if row["result"] else None}
            for row in instances
        },
        [dict(row) for row in executions],
        [dict(row) for row in signals],
        [dict(row) for row in ledger],
        [json.loads(line) for line in journal.read_bytes().splitlines()] if journal.exists() else [],
        history,
        seals,
    )


def _lost(evidence: Evidence) -> Iterator[str]:
    calls = [call for call in evidence.history if call["call"] == "insert"]
    by_key: dict[str, list[int]] = defaultdict(list)
    for row in evidence.instances.values():
        if row["parent_id"] is None:
            by_key[row["key"]].append(row["id"])
        if row["status"] != "done":
            yield f"{row['id']} {row['fsm']} is {row['status']}, not done: {row['last_error']}"
    for key in by_key.keys() - {call["key"] for call in calls}:
        yield f"not requested: {by_key[key]} ({key})"
    for key, ids in by_key.items():
        if len(ids) > 1:
            yield f"{key} was inserted {len(ids)} times: {ids}"
    for call in calls:
        is_there = call["id"] in by_key.get(call["key"], ()) or call["id"] in evidence.deleted
        if call["answer"] == "ok" and not is_there:
            yield f"the insert of {call['key']} was acknowledged as {call['id']}, which is not there"
        if call["answer"] == "fail" and call["key"] in by_key:
            yield f"the insert of {call['key']} was refused, and is there"


def _commits(evidence: Evidence) -> Iterator[str]:
    made_of: dict[int, list[int]] = defaultdict(list)
    for (id, step_seq), made in evidence.committed.items():
        made_of[id].append(step_seq)
        if len(made) > 1:
            yield f"{id}:{step_seq} was committed {len(made)} times"
        if id not in evidence.instances:
            yield f"{id}:{step_seq} was committed for an instance that is not there"
    for id, row in evidence.instances.items():
        if sorted(made_of[id]) != list(range(1, row["step_seq"] + 1)):
            yield f"{id} is at step_seq {row['step_seq']}, and its commits are {sorted(made_of[id])}"
        yield from _end_of(evidence, id, row)


def _records(evidence: Evidence) -> Iterator[str]:
    numbers: dict[int, list[int]] = defaultdict(list)
    last: dict[Transition, Line] = {}
    for execution in evidence.executions:
        id, step_seq = execution["instance_id"], execution["step_seq"]
        numbers[id].append(execution["execution"])
        last[id, step_seq] = execution
        if id in evidence.deleted:
            yield f"{id} was deleted, and its execution {execution['execution']} is still recorded"
        if execution["status"] == "COMMITTED":
            yield f"{id}:{step_seq} is COMMITTED and was never finished"
    for id, row in evidence.instances.items():
        live = 1 if row["status"] == "executing" else 0
        if numbers[id] != list(range(1, row["execution"] + 1 - live)):
            yield f"{id} had {row['execution']} executions, and records of {numbers[id]}"
    for (id, step_seq), execution in last.items():
        if (id, step_seq) in evidence.committed and execution["status"] not in _COMMITTED:
            yield f"{id}:{step_seq} was aborted by execution {execution['execution']} after its commit"


def _end_of(evidence: Evidence, id: int, row: Line) -> Iterator[str]:
    """Only the last transition ends the instance."""
    for step_seq in range(1, row["step_seq"] + 1):
        for execution in evidence.committed.get((id, step_seq), ()):
            is_end = execution["outcome"] in ("done", "stop")
            should = step_seq == row["step_seq"] and row["status"] in _ENDED
            if is_end != should:
                yield f"{id}:{step_seq} is a {execution['outcome']}, and {id} is {row['status']} at {row['step_seq']}"


def _owners(evidence: Evidence) -> Iterator[str]:
    """An aborted execution costs an attempt, except by a shutdown or at a step that its worker does not have."""
    aborted: dict[Transition, list[Line]] = defaultdict(list)
    for execution in evidence.executions:
        if execution["status"] == "ABORTED" and execution["outcome"] not in ("shutdown", "unknown_step"):
            aborted[execution["instance_id"], execution["step_seq"]].append(execution)
    for transition, made in evidence.committed.items():
        attempt = made[0]["attempt"]
        if any(execution["attempt"] >= attempt for execution in aborted[transition]):
            yield f"{transition} was committed by attempt {attempt}, which had been aborted"
        signature = evidence.signature_of(transition)
        for _, line in evidence.ends.get(transition, ()):
            if line["signature"] == signature and line["attempt"] != attempt:
                yield f"{transition} has the outcome of attempt {line['attempt']}, and the record of {attempt}"


def _chain(evidence: Evidence) -> Iterator[str]:
    for (id, step_seq), begins in evidence.begins.items():
        if step_seq == 1:
            continue
        ends = evidence.ends.get((id, step_seq - 1), [])
        first_begin = begins[0][0]
        if not any(place < first_begin for place, _ in ends):
            yield f"{id}:{step_seq} began before {step_seq - 1} was over"
        saw = {line["saw"] for _, line in begins}
        if len(saw) > 1:
            yield f"executions of {id}:{step_seq} began with different states: {saw}"
        if not saw <= {line["signature"] for _, line in ends}:
            yield f"{id}:{step_seq} began with a state that no execution of {step_seq - 1} left: {saw}"
    for id, row in evidence.instances.items():
        if row["status"] != "done":
            continue
        signatures = {line["signature"] for _, line in evidence.ends.get((id, row["step_seq"]), ())}
        if row["result"]["saw"] not in signatures:
            yield f"the result of {id} is of no execution of its last step"


def _attempts(evidence: Evidence) -> Iterator[str]:
    for transition, begins in evidence.begins.items():
        allowed = 1 + evidence.aborted[transition]
        if len(begins) > allowed and transition[0] not in evidence.deleted:
            yield f"{transition} ran {len(begins)} times, and {allowed - 1} of its executions were aborted"
    for transition in evidence.committed:
        if transition not in evidence.ends:
            yield f"{transition} was committed, and no execution of it came to its end"


def _signals(evidence: Evidence) -> Iterator[str]:
    tokens: Counter[tuple[int, str]] = Counter()
    for id, row in evidence.instances.items():
        value = row["result"] if row["status"] == "done" else json.loads(row["state"])
        tokens.update((id, token) for token in value.get("tokens", ()))
    unread = {
        (signal["target_id"], json.loads(signal["text"]))
        for signal in evidence.signals
        if signal["consumed_seq"] is None
    }
    calls = [call for call in evidence.history if call["call"] == "signal"]
    for id, token in tokens.keys() - {(call["target"], call["key"]) for call in calls}:
        yield f"{id} consumed {token}, which was never sent"
    for (id, token), count in tokens.items():
        if count > 1:
            yield f"{id} consumed {token} {count} times"
    for call in calls:
        arrived = (call["target"], call["key"])
        if call["answer"] == "ok" and not tokens[arrived] and arrived not in unread:
            yield f"{call['key']} was acknowledged, and {call['target']} has not got it"
        if call["answer"] == "fail" and not tokens[arrived]:
            yield f"{call['key']} was refused, and {call['target']} was waiting for it"


def _inboxes(evidence: Evidence) -> Iterator[str]:
    for signal in evidence.signals:
        target = evidence.instances.get(signal["target_id"])
        if target is None or target["status"] in _ENDED:
            yield f"signal {signal['id']} lies in the inbox of {signal['target_id']}, which has ended"


def _ledger(evidence: Evidence) -> Iterator[str]:
    paid = Counter((row["instance"], row["step_seq"]) for row in evidence.ledger)
    owed = {
        transition
        for transition in evidence.committed
        if any(line.get("pays") for _, line in evidence.ends.get(transition, ()))
    }
    for transition in owed | set(paid):
        if paid[transition] != (1 if transition in owed else 0):
            yield f"{transition} was paid {paid[transition]} times, and committed: {transition in owed}"
    for row in evidence.ledger:
        transition = (row["instance"], row["step_seq"])
        committed = evidence.signature_of(transition)
        if committed is not None and committed != row["signature"]:
            yield f"{transition} was paid by {row['signature']}, and {committed} was committed"


def _barriers(evidence: Evidence) -> Iterator[str]:
    children: dict[Transition, list[Line]] = defaultdict(list)
    for row in evidence.instances.values():
        if row["parent_id"] is not None:
            children[row["parent_id"], row["parent_round"]].append(row)
    for (parent, round), born in children.items():
        if (parent, round) not in evidence.committed:
            yield f"{parent} has children of round {round}, which was not committed"
        for place, line in evidence.begins.get((parent, round + 1), ()):
            yield from _early(evidence, place, line, born)
    for transition in evidence.committed:
        wanted = {line.get("spawns", 0) for _, line in evidence.ends.get(transition, ())}
        if wanted and wanted != {len(children.get(transition, ()))}:
            yield f"{transition} spawned {len(children.get(transition, ()))} children, and asked for {wanted}"


def _early(evidence: Evidence, place: int, begin: Line, children: Sequence[Line]) -> Iterator[str]:
    """Whether a parent started before a child ended, or did not see it."""
    who = f"{begin['instance']}:{begin['step_seq']}"
    seen = [[child["id"], child["status"]] for child in children]
    if sorted(begin.get("children", [])) != seen:
        yield f"{who} saw {begin.get('children')} of its children {seen}"
    for child in children:
        ends = evidence.ends.get((child["id"], child["step_seq"]), ())
        if not any(when < place for when, _ in ends):
            yield f"{who} began before its child {child['id']} had ended"


def _sleepers(evidence: Evidence) -> Iterator[str]:
    unread: dict[int, list[Line]] = defaultdict(list)
    for signal in evidence.signals:
        if signal["consumed_seq"] is None:
            unread[signal["target_id"]].append(signal)
    living = Counter(
        (row["parent_id"], row["parent_round"])
        for row in evidence.instances.values()
        if row["status"] not in _ENDED
    )
    held = {
        row["concurrency_key"] for row in evidence.instances.values() if row["concurrency_slot"] is not None
    }
    for id, row in evidence.instances.items():
        match row["status"]:
            case "awaiting_signal":
                for signal in unread[id]:
                    if signal["name"] in row["awaits"] and signal["id"] not in (row["presented"] or ()):
                        yield f"{id} sleeps, and signal {signal['id']} is there"
            case "awaiting_children":
                count = living[id, row["spawn_round"]]
                if count != row["children_pending"] or not count:
                    yield f"{id} waits for {row['children_pending']} children, and {count} live"
            case "runnable" if row["gated"] and row["concurrency_key"] not in held:
                yield f"{id} waits for key {row['concurrency_key']}, which is free"


def _ends(evidence: Evidence) -> Iterator[str]:
    for id, digest in evidence.sealed.items():
        row = evidence.instances.get(id)
        if row is None or row["digest"] != digest:
            yield f"{id} had ended, and has changed since"
    for id, row in evidence.instances.items():
        lease = [row[name] for name in ("lease_token", "locked_by", "leased_at", "concurrency_slot")]
        if row["status"] == "executing":
            yield f"{id} is left executing"
        elif any(value is not None for value in lease):
            yield f"{id} is {row['status']} and has a lease"


def _keys(evidence: Evidence) -> Iterator[str]:
    by_key: dict[str, list[Line]] = defaultdict(list)
    for execution in evidence.executions:
        row = evidence.instances.get(execution["instance_id"])
        if row is not None and row["concurrency_key"] is not None and execution["leased_at"] is not None:
            by_key[row["concurrency_key"]].append(execution)
    for key, executions in by_key.items():
        executions.sort(key=lambda execution: execution["leased_at"])
        for one, other in itertools.pairwise(executions):
            if one["finished_at"] - other["leased_at"] > _BLUR:
                yield f"{key}: {_name(one)} and {_name(other)} executed at the same time"


def _name(execution: Line) -> str:
    return f"{execution['instance_id']}:{execution['step_seq']}#{execution['execution']}"


def _counters(evidence: Evidence) -> dict[str, int]:
    aborted = Counter(
        execution["outcome"] for execution in evidence.executions if execution["status"] == "ABORTED"
    )
    begins = sum(map(len, evidence.begins.values()))
    events = Counter(line["event"] for line in evidence.journal if line["what"] == "event")
    return {
        "instances": len(evidence.instances),
        "children": sum(row["parent_id"] is not None for row in evidence.instances.values()),
        "transitions": len(evidence.committed),
        "signals": sum(call["call"] == "signal" and call["answer"] == "ok" for call in evidence.history),
        "payments": len(evidence.ledger),
        "deleted": len(evidence.deleted),
        "unknown answers": sum(call["answer"] == "unknown" for call in evidence.history),
        "reaped": aborted["lease"],
        "retried": aborted["retry"],
        "released": aborted["shutdown"],
        "stale outcomes": events["outcome.stale"],
        "timeouts": events["await.timeout"],
        # Beyond the step's own retries.
        "duplicate step runs": begins - len(evidence.begins) - aborted["retry"],
    }
