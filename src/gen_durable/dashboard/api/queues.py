"""Queues and limits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

import msgspec

from ... import _verbs
from ..._db.plan import Plan
from ...limits import ConcurrencyLimit, Limit, LimitKind, RateLimit
from ...operations import QueueControl, QueueStatus, WorkerInfo
from ..access import User
from ..board import Board
from ..endpoints import Reason, get, post
from ..live import topic

__all__ = [
    "LimitInfo",
    "QueuesPage",
    "pause",
    "queues",
    "remove_limit",
    "resume",
    "set_concurrency",
    "set_concurrency_limit",
    "set_rate_limit",
]


class LimitInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A concurrency limit or a rate limit."""

    kind: LimitKind
    name: str
    slots: int | None = None
    """Of a concurrency limit: executions at a time of each key."""
    allowed: int | None = None
    """Of a rate limit: starts per `per`."""
    per: timedelta | None = None
    burst: int | None = None

    @classmethod
    def of(cls, limit: Limit) -> LimitInfo:
        """Describe a limit."""
        if isinstance(limit, ConcurrencyLimit):
            return cls(kind="concurrency", name=limit.name, slots=limit.slots)
        return cls(kind="rate", name=limit.name, allowed=limit.allowed, per=limit.per, burst=limit.burst)


class QueueRow(QueueStatus, frozen=True, kw_only=True):
    """A queue, its counts and its capacity."""

    capacity: int
    """How many of its executions the live workers that serve it by name run at once."""


class QueuesPage(msgspec.Struct, frozen=True, kw_only=True):
    """All queues with their backlog, and all limits."""

    queues: Sequence[QueueRow]
    limits: Sequence[LimitInfo]


class Concurrency(Reason, frozen=True, kw_only=True):
    """The concurrency of a queue."""

    concurrency: int | None
    """In each worker; null: the `queues=` of the worker applies."""


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a limit was removed."""

    is_removed: bool
    """Otherwise there was none."""


class Slots(Reason, frozen=True, kw_only=True):
    """A concurrency limit."""

    slots: int


class Rate(Reason, frozen=True, kw_only=True):
    """A rate limit."""

    allowed: int
    per: timedelta = timedelta(seconds=1)
    burst: int | None = None
    """null or 0: as many as `allowed`."""


@get("/queues", summary="Queues with their backlog, and limits")
async def queues(board: Board) -> QueuesPage:
    """Return all queues and limits."""
    return await board.cached("queues", 1.0, _queues)


@topic("queues", every=2.0)
def _queues() -> Plan[QueuesPage]:
    found = yield from _verbs.queues()
    limits = yield from _verbs.limits()
    live = [one for one in (yield from _verbs.workers()) if one.is_live and not one.is_draining]
    return QueuesPage(
        queues=[QueueRow(**msgspec.structs.asdict(one), capacity=_capacity(one, live)) for one in found],
        limits=[LimitInfo.of(one) for one in limits],
    )


def _capacity(queue: QueueStatus, workers: Iterable[WorkerInfo]) -> int:
    sizes = [
        (one.capacities[queue.name] if queue.concurrency is None else queue.concurrency, one.capacity)
        for one in workers
        if queue.name in one.capacities
    ]
    return sum(size if most is None else min(size, most) for size, most in sizes)


@post("/queues/{name}/pause", role="operate", summary="Pause a queue: workers start nothing from it")
async def pause(board: Board, user: User, name: str, body: Reason) -> QueueControl:
    """Pause a queue."""
    return await board.client.pause_queue(name, reason=body.reason or None, actor=user.name)


@post("/queues/{name}/resume", role="operate", summary="Resume a paused queue")
async def resume(board: Board, user: User, name: str, body: Reason) -> QueueControl:
    """Resume a queue."""
    return await board.client.resume_queue(name, reason=body.reason or None, actor=user.name)


@post("/queues/{name}/concurrency", role="operate", summary="Set the concurrency of a queue in each worker")
async def set_concurrency(board: Board, user: User, name: str, body: Concurrency) -> QueueControl:
    """Override the concurrency of a queue, or remove the override."""
    return await board.client.set_queue(
        name, concurrency=body.concurrency, reason=body.reason or None, actor=user.name
    )


@post("/limits/concurrency/{name}", role="operate", summary="Set a concurrency limit")
async def set_concurrency_limit(board: Board, user: User, name: str, body: Slots) -> LimitInfo:
    """Set the slots of each key of a name."""
    return await _set_limit(board, user, ConcurrencyLimit(name, body.slots), body)


@post("/limits/rate/{name}", role="operate", summary="Set a rate limit")
async def set_rate_limit(board: Board, user: User, name: str, body: Rate) -> LimitInfo:
    """Set the rate of each key of a name."""
    return await _set_limit(board, user, RateLimit(name, body.allowed, body.per, body.burst or 0), body)


@post("/limits/{kind}/{name}/remove", role="operate", summary="Remove a limit")
async def remove_limit(board: Board, user: User, kind: LimitKind, name: str, body: Reason) -> Removed:
    """Remove a limit. Without one, a concurrency key has one slot, and instances with the rate limit wait."""
    done = await board.client.remove_limit(name, kind=kind, reason=body.reason or None, actor=user.name)
    return Removed(is_removed=done)


async def _set_limit(board: Board, user: User, limit: Limit, body: Reason) -> LimitInfo:
    await board.client.set_limit(limit, reason=body.reason or None, actor=user.name)
    return LimitInfo.of(limit)
