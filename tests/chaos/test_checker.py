"""The checker passes a valid history, and finds one violation of each guarantee."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.chaos import checker
from tests.chaos.checker import Evidence, judge

World: TypeAlias = dict[str, Any]
_BEGINNING = datetime(2030, 1, 1, tzinfo=UTC)


def _world() -> World:
    """A chain with one reaped execution, a payer, a collector, a parent with a child, two rows of a key, and a deleted one."""
    world: World = {
        "instances": {},
        "executions": [],
        "signals": [],
        "ledger": [],
        "journal": [],
        "history": [],
        "sealed": {},
    }
    _live(world, 1, "Chain", ["hop", "walk"], lost={2})
    _live(world, 2, "Payer", ["pay"], pays=True)
    _live(world, 3, "Collector", ["start", "take", "start"], tokens=["a"])
    world["history"].append({"call": "signal", "key": "a", "target": 3, "answer": "ok"})
    _run(world, 4, 1, "spawn", spawns=1)
    _live(world, 5, "Chain", ["hop"], parent=(4, 1))
    _run(world, 4, 2, "spawn", saw="4:1", children=[[5, "done"]])
    _row(world, 4, "Fan", 2)
    for id in (6, 7):
        _live(world, id, "Chain", ["hop"], key="one at a time")
    _live(world, 8, "Brief", ["hop", "walk"])
    _delete(world, 8)
    return world


def _live(world: World, id: int, fsm: str, steps: list[str], **how: Any) -> None:
    lost = how.pop("lost", set())
    pays = how.pop("pays", False)
    for step_seq, step in enumerate(steps, 1):
        saw = f"{id}:{step_seq - 1}" if step_seq > 1 else ""
        if step_seq in lost:
            _execute(world, id, step_seq, step, "ABORTED", "lease", attempt=0)
            world["journal"].append(_line("begin", id, step_seq, saw=saw))
        outcome = "done" if step_seq == len(steps) else "next"
        attempt = 1 if step_seq in lost else 0
        how_ended = {"pays": True} if pays else {}
        _run(world, id, step_seq, step, saw=saw, outcome=outcome, attempt=attempt, **how_ended)
        if pays:
            world["ledger"].append({"instance": id, "step_seq": step_seq, "signature": f"{id}:{step_seq}"})
    _row(world, id, fsm, len(steps), **how)


def _delete(world: World, id: int) -> None:
    """What the commit of the last step leaves of an instance that is not kept."""
    _lines(world, "end", id, world["instances"][id]["step_seq"])[0]["deletes"] = True
    del world["instances"][id], world["sealed"][id]
    world["executions"] = [one for one in world["executions"] if one["instance_id"] != id]


def _run(world: World, id: int, step_seq: int, step: str, saw: str = "", **how: Any) -> None:
    """A committed execution, with its lines in the journal."""
    outcome = how.pop("outcome", "done" if step_seq > 1 else "schedule_children")
    children = {"children": how.pop("children")} if "children" in how else {}
    attempt = how.setdefault("attempt", 0)
    world["journal"].append(_line("begin", id, step_seq, saw=saw, attempt=attempt, **children))
    world["journal"].append(_line("end", id, step_seq, signature=f"{id}:{step_seq}", **how))
    _execute(world, id, step_seq, step, "DONE", outcome, attempt=attempt)


def _line(what: str, id: int, step_seq: int, **facts: Any) -> dict[str, Any]:
    return {"what": what, "pid": 1, "instance": id, "step_seq": step_seq, "attempt": 0} | facts


def _execute(
    world: World, id: int, step_seq: int, step: str, status: str, outcome: str, *, attempt: int
) -> None:
    number = len(world["executions"])
    world["executions"].append(
        {
            "instance_id": id,
            "step_seq": step_seq,
            "execution": 1 + sum(one["instance_id"] == id for one in world["executions"]),
            "attempt": attempt,
            "status": status,
            "outcome": outcome,
            "step": step,
            "leased_at": _BEGINNING + timedelta(seconds=number),
            "finished_at": _BEGINNING + timedelta(seconds=number + 0.9),
        }
    )


def _row(
    world: World,
    id: int,
    fsm: str,
    step_seq: int,
    *,
    parent: tuple[int | None, int | None] = (None, None),
    tokens: list[str] | None = None,
    key: str | None = None,
) -> None:
    nothing = dict.fromkeys(
        (
            "lease_token",
            "locked_by",
            "leased_at",
            "concurrency_slot",
            "awaits",
            "presented",
            "last_error",
        )
    )
    world["instances"][id] = {
        **nothing,
        "id": id,
        "fsm": fsm,
        "status": "done",
        "step_seq": step_seq,
        "execution": sum(one["instance_id"] == id for one in world["executions"]),
        "state": "{}",
        "result": {"saw": f"{id}:{step_seq}", "tokens": tokens or []},
        "parent_id": parent[0],
        "parent_round": parent[1],
        "spawn_round": None,
        "children_pending": 0,
        "concurrency_key": key,
        "gated": False,
        "key": f"key {id}",
        "digest": f"digest {id}",
    }
    world["sealed"][id] = f"digest {id}"
    if parent[0] is None:
        world["history"].append({"call": "insert", "key": f"key {id}", "answer": "ok", "id": id})


def test_valid_history_passes() -> None:
    report = judge(Evidence(**_world()))
    assert report.breaches == []
    assert {name: report.counters[name] for name in ("instances", "reaped", "duplicate step runs")} == {
        "instances": 7,
        "reaped": 1,
        "duplicate step runs": 1,
    }


def _of(world: World, id: int) -> Any:
    return world["instances"][id]


def _lines(world: World, what: str, id: int, step_seq: int) -> list[dict[str, Any]]:
    wanted = (what, id, step_seq)
    return [line for line in world["journal"] if (line["what"], line["instance"], line["step_seq"]) == wanted]


def _signal(target: int, **facts: Any) -> dict[str, Any]:
    return {"id": 9, "target_id": target, "name": "token", "consumed_seq": None, "text": '"b"', **facts}


def _is_waiting(world: World, id: int, status: str, **facts: Any) -> None:
    _of(world, id).update(status=status, state=json.dumps({"tokens": []}), **facts)


def _paid_by_a_zombie(world: World) -> None:
    world["ledger"][0]["signature"] = "of a zombie"


def _saw_another_state(world: World) -> None:
    _lines(world, "begin", 1, 2)[0]["saw"] = "of a zombie"


def _began_too_early(world: World) -> None:
    (line,) = _lines(world, "begin", 3, 3)
    world["journal"].remove(line)
    world["journal"].insert(0, line)


def _woke_too_early(world: World) -> None:
    (line,) = _lines(world, "end", 5, 1)
    world["journal"].remove(line)
    world["journal"].append(line)


def _sleeps_on_a_signal(world: World) -> None:
    _is_waiting(world, 3, "awaiting_signal", awaits=["token"])
    world["signals"].append(_signal(3))


def _overlaps(world: World) -> None:
    (one,) = (one for one in world["executions"] if one["instance_id"] == 6)
    one["finished_at"] += timedelta(seconds=1)


BREACHES: dict[str, tuple[str, Callable[[World], object]]] = {
    "an instance is gone": ("lost", lambda w: w["instances"].pop(2)),
    "an instance deleted before its end": ("lost", lambda w: w["journal"].remove(_lines(w, "end", 8, 2)[0])),
    "an instance failed": ("lost", lambda w: _of(w, 2).update(status="failed")),
    "an instance that was not requested": ("lost", lambda w: w["history"].pop(0)),
    "an insert that came twice": ("lost", lambda w: _of(w, 2).update(key="key 1")),
    "a transition committed twice": ("commits", lambda w: w["executions"].append(w["executions"][0])),
    "a transition that is missing": ("commits", lambda w: _of(w, 1).update(step_seq=3)),
    "a commit after the end": ("commits", lambda w: w["executions"][0].update(outcome="done")),
    "an execution without a record": ("records", lambda w: _of(w, 1).update(execution=4)),
    "an execution that was never finished": (
        "records",
        lambda w: w["executions"][0].update(status="COMMITTED"),
    ),
    "a record of a deleted instance": (
        "records",
        lambda w: _execute(w, 8, 1, "hop", "ABORTED", "lease", attempt=0),
    ),
    "a commit by a zombie": ("owners", lambda w: w["executions"][2].update(attempt=0)),
    "an outcome of a zombie": ("owners", lambda w: _lines(w, "end", 1, 2)[0].update(attempt=0)),
    "a state of no execution": ("chain", _saw_another_state),
    "a step before the one before it": ("chain", _began_too_early),
    "a result of another execution": ("chain", lambda w: _of(w, 2)["result"].update(saw="of a zombie")),
    "a step that ran too often": ("attempts", lambda w: w["journal"].append(_line("begin", 1, 1, saw=""))),
    "a commit without an execution": ("attempts", lambda w: w["journal"].remove(_lines(w, "end", 2, 1)[0])),
    "a token that was lost": ("signals", lambda w: _of(w, 3)["result"].update(tokens=[])),
    "a token that came twice": ("signals", lambda w: _of(w, 3)["result"].update(tokens=["a", "a"])),
    "a token that was not sent": ("signals", lambda w: _of(w, 3)["result"].update(tokens=["a", "b"])),
    "an inbox of an ended instance": ("inboxes", lambda w: w["signals"].append(_signal(3))),
    "a payment made twice": ("ledger", lambda w: w["ledger"].append(w["ledger"][0])),
    "a payment not made": ("ledger", lambda w: w["ledger"].clear()),
    "a payment for nothing": (
        "ledger",
        lambda w: w["ledger"].append({"instance": 1, "step_seq": 1, "signature": "1:1"}),
    ),
    "a payment by a zombie": ("ledger", _paid_by_a_zombie),
    "a parent that woke too early": ("barriers", _woke_too_early),
    "a parent that saw a child alive": (
        "barriers",
        lambda w: _lines(w, "begin", 4, 2)[0].update(children=[[5, "executing"]]),
    ),
    "a child that was not born": ("barriers", lambda w: w["instances"].pop(5)),
    "asleep on a signal": (
        "sleepers",
        _sleeps_on_a_signal,
    ),
    "asleep on children that have ended": (
        "sleepers",
        lambda w: _is_waiting(w, 4, "awaiting_children", spawn_round=1, children_pending=1),
    ),
    "behind a key that is free": ("sleepers", lambda w: _is_waiting(w, 6, "runnable", gated=True)),
    "an end that changed": ("ends", lambda w: _of(w, 1).update(digest="another")),
    "left executing": ("ends", lambda w: _is_waiting(w, 1, "executing")),
    "a lease of the ended": ("ends", lambda w: _of(w, 1).update(lease_token=1)),
    "two of one key at once": ("keys", _overlaps),
}


@pytest.mark.parametrize("name", BREACHES)
def test_violation_is_found(name: str) -> None:
    check, commit = BREACHES[name]
    world = _world()
    commit(world)
    report = judge(Evidence(**world))
    assert [breach for breach in report.breaches if breach.startswith(f"{check}: ")], report.breaches


def test_checker_does_not_import_the_engine() -> None:
    text = Path(checker.__file__).read_text(encoding="utf-8")
    imports = [line for line in text.splitlines() if line.startswith(("import ", "from "))]
    assert imports
    assert not [line for line in imports if "gen_durable" in line or "tests" in line]
