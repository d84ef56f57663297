"""Assertions that several test modules share."""

from __future__ import annotations

from typing import Any

from gen_durable import Instance, Status


def assert_failed(instance: Instance[Any, Any], state: object, error: str) -> None:
    assert instance.status is Status.FAILED, instance
    assert error.replace("{id}", str(instance.id)) in (instance.last_error or ""), instance.last_error
    # Earlier transitions are kept, and the end counts as one transition.
    assert (instance.state, instance.step_seq, instance.attempt) == (state, 1, 0)
    assert instance.finished_at is not None
    assert instance.locked_by is None
