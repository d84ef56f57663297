"""Choose the server: the given DSN, that of the environment, or the embedded server."""

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

# Seconds between two restarts of an embedded server.
_REVIVE_EVERY: Final = 1.0


class Server:
    """The server in use. `close` releases an embedded one."""

    dsn: Dsn
    advice: str
    """Where the DSN came from, for error messages."""
    is_embedded: bool

    def __init__(self, dsn: Dsn, advice: str, embedded: EmbeddedPostgres | None = None) -> None:
        self.dsn = dsn
        self.advice = advice
        self.is_embedded = embedded is not None
        self._embedded = embedded
        self._revived_at = 0.0

    @classmethod
    def find(cls, dsn: Dsn | None, *, creates: bool = True) -> Self:
        """Use the argument, else `GEN_DURABLE_DSN`, else the embedded server, which is started if necessary.

        Raises:
            UnreachableError: the embedded server does not exist and `creates` is false.
        """
        if (given := cls._given(dsn)) is not None:
            return given
        embedded = EmbeddedPostgres()
        if not creates and not embedded.exists:
            raise UnreachableError(
                str(embedded.home),
                "no embedded server in this directory",
                "change to the directory where its worker was started, or set --dsn or GEN_DURABLE_DSN",
            )
        return cls(embedded.ensure(), "this is the embedded server; see server.log beside its data", embedded)

    @classmethod
    async def find_async(cls, dsn: Dsn | None, *, creates: bool = True) -> Self:
        """`find` for an event loop; an embedded server is started on a thread."""
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
        """The directory of an embedded server."""
        return None if self._embedded is None else self._embedded.home

    def revive(self) -> None:
        """Restart an embedded server that does not reply, on a thread; do nothing for other servers."""
        now = time.monotonic()
        if self._embedded is None or now - self._revived_at < _REVIVE_EVERY:
            return
        self._revived_at = now
        threading.Thread(target=self._restart, name="gen_durable revive", daemon=True).start()

    def _restart(self) -> None:
        if self._embedded is not None:
            with suppress(UnreachableError):  # the next failed connect reports it and tries again
                self._embedded.ensure()

    def close(self) -> None:
        """Release the lease on an embedded server, which stops after its last client."""
        if self._embedded is not None:
            self._embedded.close()

    async def close_async(self) -> None:
        """`close` for an event loop."""
        if self.is_embedded:
            await asyncio.to_thread(self.close)
