"""What the palette finds: machines by a part of their name, instances by id or correlation key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal
from urllib.parse import quote

import msgspec

from ... import _verbs
from ..._db.plan import Plan
from ...instance import Instance
from ..board import Board
from ..endpoints import get

__all__ = ["Jump", "JumpPage", "jump"]

_MOST_MACHINES: Final = 8
_MOST_INSTANCES: Final = 5
_MAX_ID: Final = 2**63 - 1


class Jump(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a machine or an instance."""

    group: Literal["Machine", "Instance"]
    text: str
    detail: str = ""
    path: str


class JumpPage(msgspec.Struct, frozen=True, kw_only=True):
    """What matches a text."""

    items: Sequence[Jump]


@get("/jump", summary="Machines and instances that match a text")
async def jump(board: Board, *, q: str = "") -> JumpPage:
    """Return machines whose name contains the text, and instances whose id or correlation key it is."""
    text = q.strip()
    return JumpPage(items=await board.read(_matches(text)) if text else ())


def _matches(text: str) -> Plan[list[Jump]]:
    machines = yield from _verbs.registered_machines()
    names = sorted({one.name for one in machines if text.lower() in one.name.lower()})
    found = [
        Jump(group="Machine", text=name, path=f"/m/{quote(name, safe='')}") for name in names[:_MOST_MACHINES]
    ]
    number = text.removeprefix("#")
    if number.isascii() and number.isdigit() and len(number) < 20 and 0 < int(number) <= _MAX_ID:
        instance = yield from _verbs.get(int(number), with_deleted=True)
        found += [_instance(instance)] if instance else []
    instances = yield from _verbs.page(None, _MOST_INSTANCES, None, {"correlation_key": text})
    return found + [_instance(one) for one in instances]


def _instance(found: Instance[Any, Any]) -> Jump:
    detail = f"{found.machine} · {found.status}"
    if found.correlation_key:
        detail += f" · #{found.id}"
    return Jump(
        group="Instance",
        text=found.correlation_key or f"#{found.id}",
        detail=detail,
        path=f"/i/{found.id}",
    )
