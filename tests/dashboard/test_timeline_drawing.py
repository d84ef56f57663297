"""The rows, bars and folds of a timeline, and what is said about an instance."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from gen_durable import Instance, Status, reasons
from gen_durable.dashboard.answers import answer_of, facts_of
from gen_durable.dashboard.instance_actions import actions_of, example
from gen_durable.dashboard.timeline_drawing import TimelineDrawing, draw
from gen_durable.timeline import TimelineEntry

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def instance(**fields: Any) -> Instance[Any, Any]:
    times = {"inserted_at": START, "updated_at": START, "eligible_at": START}
    given = {
        "id": 7,
        "machine": "m",
        "version": 1,
        "step": "b",
        "status": Status.AWAITING_SIGNAL,
        "state": None,
    }
    return Instance(**{**times, **given, **fields})


def ran(seconds: float, step: str, seq: int, **fields: Any) -> TimelineEntry:
    return TimelineEntry(
        at=at(seconds), kind="execution", name=step, duration=timedelta(seconds=1), step_seq=seq, **fields
    )


def waited(seconds: float, length: float, outcome: str) -> TimelineEntry:
    return TimelineEntry(at=at(seconds), kind="wait", duration=timedelta(seconds=length), outcome=outcome)


def child(number: int) -> TimelineEntry:
    return TimelineEntry(
        at=at(3), kind="child", name="c", number=number, duration=timedelta(seconds=9), outcome="done"
    )


def rows(drawing: TimelineDrawing) -> list[tuple[str, int | None, int | None, int]]:
    return [(row.name, row.first, row.last, len(row.bars)) for row in drawing.rows]


def test_loops_and_attempts_are_one_row_and_children_follow_the_step_that_waits() -> None:
    entries = [
        ran(0, "a", 1, error="boom"),
        waited(1, 1, "retry"),
        ran(2, "a", 1, outcome="next"),
        ran(3, "a", 2, outcome="schedule_children"),
        waited(4, 96, "children"),
        *(child(n) for n in range(20)),
    ]
    drawing = draw(entries, instance(step_seq=2), at(100))
    assert rows(drawing)[:2] == [("a", 1, 2, 4), ("b", 3, 3, 1)]
    assert [row.child for row in drawing.rows[2:]] == [*range(8), None]
    assert drawing.rows[-1].name == "12 more"
    assert [bar.kind for bar in drawing.rows[0].bars] == ["fail", "retry", "run", "run"]
    assert drawing.legend == (
        ("run", "run"),
        ("fail", "error"),
        ("kids", "waits for children"),
        ("retry", "waits for the next attempt"),
    )


def test_idle_times_are_folded_on_one_axis_only() -> None:
    entries = [ran(0, "a", 1), waited(1, 98, "signal"), ran(99, "b", 2, outcome="done")]
    drawing = draw(entries, instance(status=Status.DONE, finished_at=at(100), step_seq=2), at(500))
    [fold] = drawing.folds
    first, last = drawing.rows[0].bars[0], drawing.rows[1].bars[-1]
    assert (first.true, last.true) == ((0.0, 0.01), (0.99, 1.0))
    assert first.folded[1] > 0.3
    assert (last.folded[1], drawing.rows[-1].last) == (1.0, 3)
    assert fold.duration > timedelta(seconds=97)
    assert fold.folded[1] - fold.folded[0] < 0.11
    assert draw([waited(0, 50, "start")], instance(), at(50)).folds == ()


def explained(*found: reasons.Reason, **fields: Any) -> Any:
    one = instance(**fields)
    explanation = reasons.Explanation(
        id=7, machine="m", version=1, step="b", status=one.status, queue="q", at=START, reasons=found
    )
    return answer_of(explanation, one, actions_of(one, ("b",), {}), {}, {2: "failed at x"})


def test_answers_name_the_change_that_helps_and_link_what_they_name() -> None:
    paused = explained(
        reasons.QueuePaused(queue="q", since=START, by="ada"), status=Status.RUNNABLE, locked_by=None
    )
    assert (paused.kind, paused.action.path) == ("retry", "/queues/q/resume")
    assert [part.at for part in paused.sentences[0].parts if part.at] == [START]
    assert paused.sentences[0].parts[-1].text == " by ada"
    kids = explained(reasons.AwaitingChildren(pending=2, total=2, live=(2, 3)))
    assert [part.id for part in kids.sentences[0].parts if part.id] == [2, 3]
    assert " (failed at x)" in [part.text for part in kids.sentences[0].parts]
    assert kids.link.to == "/i/2"
    alone = explained(reasons.NoWorkerForQueue(queue="q", machine="m"), status=Status.RUNNABLE)
    assert (alone.kind, alone.link.to) == ("fail", "/workers")
    assert alone.sentences[0].command == "gen-durable worker app.py --queue q=10"
    failed = explained(
        reasons.Finished(status=Status.FAILED, at=START, why="no route to 2; start: gen-durable x"),
        status=Status.FAILED,
        finished_at=START,
    )
    assert failed.action.text == "Retry b"
    assert failed.link.to == "/instances?q=machine%3Am%20step%3Ab%20status%3Afailed"
    assert failed.sentences[0].parts[-1].text == ": no route to 2; start: gen-durable x"


def test_facts_link_to_searches_and_actions_fit_the_status() -> None:
    one = instance(correlation_key='a "b"', parent_id=3, priority=2)
    facts = {part.name: part for part in facts_of(one, 12_345)}
    assert facts["key"].to == "/instances?q=key%3A%22a%20%5C%22b%5C%22%22"
    assert (facts["parent"].id, facts["executions"].text, facts["priority"].text) == (3, "12,345", "2")
    texts = [action.text for action in actions_of(instance(deleted_at=START), (), {})]
    assert texts == ["Fork", "Restore"]
    schema = {
        "$ref": "#/$defs/P",
        "$defs": {"P": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}},
    }
    assert example(schema) == {"n": 0}
    assert example({"anyOf": [{"type": "string"}, {"type": "null"}]}) is None
