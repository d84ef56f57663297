"""What a client requested and what it was answered: success, failure, or unknown."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Final, Literal, TypeAlias, TypeVar

from gen_durable import AsyncClient, Delivered, DuplicateSignal, Machine, NoTargetError
from gen_durable.errors import DatabaseError, UnreachableError
from tests.chaos.machines import Collector, Result

__all__ = ["History", "Producer"]

T = TypeVar("T")
StateT = TypeVar("StateT")
History: TypeAlias = list[dict[str, Any]]
Answer: TypeAlias = Literal["ok", "fail", "unknown"]
# Each call takes a connection, and connecting takes ten times as long as a call.
_CALLS_AT_ONCE: Final = 3


class Producer:
    """A client that records each request and its answer."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._turns = asyncio.Semaphore(_CALLS_AT_ONCE)
        self.history: History = []

    async def insert(
        self, key: str, machine: type[Machine[StateT, Result]], work: StateT, **options: Any
    ) -> int | None:
        """Insert with a unique key, so it can be repeated; return the id, or None if unknown."""
        call = self._invoke("insert", key=key)
        answer, result = await self._answer(self._client.insert(machine, work, unique_key=key, **options))
        call.update(answer=answer, id=None if result is None else result.id)
        return None if result is None else result.id

    async def insert_surely(
        self, key: str, machine: type[Machine[StateT, Result]], work: StateT, **options: Any
    ) -> int:
        """Insert until it is acknowledged."""
        while (id := await self.insert(key, machine, work, **options)) is None:
            await asyncio.sleep(0.05)
        return id

    async def signal(self, target: int, token: str) -> Answer:
        call = self._invoke("signal", key=token, target=target)
        try:
            answer, result = await self._answer(
                self._client.signal(target, Collector.token, token, dedup_key=token)
            )
        except NoTargetError:
            answer, result = "fail", None
        assert result is None or isinstance(result, Delivered | DuplicateSignal)
        call.update(answer=answer)
        return answer

    async def signal_surely(self, target: int, token: str) -> None:
        """Send until it is acknowledged, or its target has ended."""
        while await self.signal(target, token) == "unknown":
            await asyncio.sleep(0.05)

    def _invoke(self, call: str, **asked: Any) -> dict[str, Any]:
        line = {"call": call, **asked, "answer": "unknown"}
        self.history.append(line)
        return line

    async def _answer(self, call: Awaitable[T]) -> tuple[Answer, T | None]:
        try:
            async with self._turns:
                return "ok", await call
        except (DatabaseError, UnreachableError):
            return "unknown", None
