"""Which PostgreSQL: the DSN that was given, the one of the environment, or the embedded server."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from .config import environment_dsn, environment_dsn_source
from .connections import Dsn
from .embedded import EmbeddedPostgres
from .errors import UnreachableError

__all__ = ["Server"]

_REVIVE_EVERY: Final = 1.0  # seconds


class Server:
    """Where PostgreSQL is, and how we know. Close it to let go of an embedded one."""

    dsn: Dsn
    advice: str
    """Which server that is, for those who cannot reach it."""
    is_embedded: bool

    def __init__(self, dsn: Dsn, advice: str, embedded: EmbeddedPostgres | None = None) -> None:
        self.dsn = dsn
        self.advice = advice
        self.is_embedded = embedded is not None
        self._embedded = embedded
        self._revived_at = 0.0

    @classmethod
    def find(cls, dsn: Dsn | None, *, creates: bool = True) -> Self:
        """The argument wins over `GEN_DURABLE_DSN`, and both over the embedded server, which is started if need be.

        Raises:
            UnreachableError: there is no embedded server yet, and (`creates`) it is not to be made by the way.
        """
        if (given := cls._given(dsn)) is not None:
            return given
        embedded = EmbeddedPostgres()
        if not creates and not embedded.exists:
            raise UnreachableError(
                str(embedded.home),
                "there is no embedded server in that directory",
                "go where its worker is started, or say where PostgreSQL is: --dsn or GEN_DURABLE_DSN",
            )
        return cls(embedded.ensure(), "it is the embedded server, whose log lies beside its data", embedded)

    @classmethod
    async def find_async(cls, dsn: Dsn | None, *, creates: bool = True) -> Self:
        """The same for an event loop, which waits on a thread for an embedded one."""
        if (given := cls._given(dsn)) is not None:
            return given
        return await asyncio.to_thread(cls.find, dsn, creates=creates)

    @classmethod
    def _given(cls, dsn: Dsn | None) -> Self | None:
        if dsn is not None:
            return cls(dsn, "the DSN was given as an argument")
        if (from_environment := environment_dsn()) is not None:
            source = environment_dsn_source() or "GEN_DURABLE_DSN; without it the embedded server is used"
            return cls(from_environment, f"the DSN came from {source}")
        return None

    @property
    def home(self) -> Path | None:
        """The directory of an embedded one."""
        return None if self._embedded is None else self._embedded.home

    def revive(self) -> None:
        """The server does not answer. One of ours is started again, on a thread; anybody else's is left alone."""
        now = time.monotonic()
        if self._embedded is None or now - self._revived_at < _REVIVE_EVERY:
            return
        self._revived_at = now
        threading.Thread(target=self._restart, name="gen_durable revive", daemon=True).start()

    def _restart(self) -> None:
        if self._embedded is not None:
            with suppress(UnreachableError):  # whoever cannot connect says so, and asks again
                self._embedded.ensure()

    def close(self) -> None:
        """Give back the lease on the embedded server, which stops after its last client."""
        if self._embedded is not None:
            self._embedded.close()

    async def close_async(self) -> None:
        """The same for an event loop."""
        if self.is_embedded:
            await asyncio.to_thread(self.close)
