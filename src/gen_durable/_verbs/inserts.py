"""Insert instances."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._core.model import NewInstance
from .._core.new_rows import new_instance
from .._db import insert as inserts
from .._db.plan import Plan
from ..config import Settings
from ..errors import CodecError, KeyTakenError, UsageError
from ..instance import Status
from ..refs import AnySpec, Duplicate, Inserted, InsertResult, KeyTaken, key_text

__all__ = ["given_state", "insert", "insert_all"]


def insert(
    spec: AnySpec, settings: Settings, *, autocommit: bool
) -> Plan[tuple[InsertResult[Any, Any], set[str]]]:
    """Insert one instance."""
    (result,), queues = yield from insert_all([spec], settings, autocommit=autocommit)
    if isinstance(result, KeyTaken):
        raise result.error
    return result, queues


def insert_all(
    specs: Sequence[AnySpec], settings: Settings, *, autocommit: bool
) -> Plan[tuple[list[InsertResult[Any, Any] | KeyTaken[Any, Any]], set[str]]]:
    """Insert instances; the results are in the order of the specs."""
    for spec in specs:
        if not isinstance(spec, AnySpec):
            raise UsageError(
                f"insert_all got a value of type {type(spec).__name__}", "wrap each one: Spec(Machine, state)"
            )
    rows = []
    for number, spec in enumerate(specs, start=1):
        try:
            rows.append(new_instance(spec, settings.max_payload))
        except CodecError as error:
            if len(specs) > 1:
                error.add_note(f"Spec {number} of {len(specs)}; none of them was inserted.")
            raise
    answers = yield from inserts.insert(rows, autocommit=autocommit)
    results = [_insert_result(*one) for one in zip(specs, rows, answers, strict=True)]
    return results, {answer.queue for answer in answers if answer.is_new}


def given_state(state: Any, args: Any) -> Any:
    """Return the state of an insert, given as `state` or as `args`."""
    if state is not None and args is not None:
        raise UsageError("both state and args are given", "args is an alias of state: use one of them")
    return args if state is None else state


def _insert_result(
    spec: AnySpec, row: NewInstance, answer: inserts.InsertResult
) -> InsertResult[Any, Any] | KeyTaken[Any, Any]:
    if answer.is_new:
        return Inserted(spec.definition, answer.id)
    kind = answer.key if answer.key in spec.options else "idempotency_key"
    given = spec.options[kind]
    key = key_text(given, kind) if isinstance(given, tuple) else given
    if answer.holder != row.fsm:
        text = key.decode(errors="backslashreplace") if isinstance(key, bytes) else key
        return KeyTaken(spec.definition, KeyTakenError(text, row.fsm, answer.holder, answer.id), kind)
    return Duplicate(spec.definition, answer.id, key, Status(answer.status), kind)
