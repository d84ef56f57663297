"""The connection pools of a worker. Each role has its own, so that a slow role does not delay the others."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, Self

from .._db.pool import Database
from .._db.reply_timeouts import ReplyTimeouts
from .._server import Server
from ..config import Settings
from ..connections import Dsn
from .flusher import Flusher

__all__ = ["Connections"]

# All queues run the same short statement: one connection is mostly enough, and each one has to plan it.
_MAX_PICKS: Final = 4
# Bounds the connections that effects of one worker may take from the server.
_MAX_EFFECTS: Final = 20


@dataclass(frozen=True)
class Connections:
    """Pools by role. All but the first connection for commits are opened on demand."""

    dsn: Dsn
    client: Database
    """For calls of the worker as a client, dispatchers and vacuum."""
    picks: Database
    commits: Database
    """For batches, at most two at a time, and items of streams; also to gate rows, and to look up outcomes and leases
    after an error."""
    slow_commits: Database
    """For outcomes that wait for a locked row, or are large."""
    effects: Database
    """An effect holds its connection while it runs. The code of users runs on these."""
    services: Database
    """Two for all services, so that one connection that hangs does not stop them."""

    @classmethod
    async def open(
        cls,
        server: Server,
        settings: Settings,
        client: Database,
        reply_timeouts: ReplyTimeouts,
        *,
        sources: int,
        concurrency: int,
    ) -> Self:
        """Open the pools of a worker beside its client's pool.

        Args:
            server: the database server.
            settings: the settings of the worker.
            client: the pool of the worker as a client.
            reply_timeouts: how long to wait for replies.
            sources: the number of queues and prefixes that the worker picks from.
            concurrency: the number of steps that may run at once, of all queues.
        """

        async def pool(
            name: str,
            size: int,
            *,
            connect_now: bool = False,
            lock_timeout: str = "10s",
            for_effects: bool = False,
        ) -> Database:
            return await Database.open(
                server.dsn,
                settings.schema,
                name=name,
                connect_now=connect_now,
                size=size,
                advice=server.advice,
                lock_timeout=lock_timeout,
                reply_timeouts=reply_timeouts,
                watchdog=client.watchdog,
                pooler=settings.pooler,
                for_effects=for_effects,
            )

        return cls(
            dsn=server.dsn,
            client=client,
            # First: only this one connects, so it is the only one that can fail.
            commits=await pool("commits", 4, connect_now=True, lock_timeout=Flusher.BATCH_LOCK_TIMEOUT),
            picks=await pool("picks", max(1, min(sources, _MAX_PICKS))),
            services=await pool("services", 2),
            slow_commits=await pool("slow commits", 4, lock_timeout=Flusher.SEPARATE_LOCK_TIMEOUT),
            effects=await pool("effects", max(1, min(concurrency, _MAX_EFFECTS)), for_effects=True),
        )

    async def close(self) -> None:
        """Close all pools at once. Each waits for connections in use, and for a server that does not reply."""
        pools = (self.client, self.picks, self.commits, self.slow_commits, self.effects, self.services)
        async with asyncio.TaskGroup() as group:
            for pool in pools:
                group.create_task(pool.close())
