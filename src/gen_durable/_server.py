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
    upgrades: bool
    """Whether a client upgrades an older schema: of the embedded server, unless a DSN names it."""

    def __init__(
        self,
        dsn: Dsn,
        advice: str,
        embedded: EmbeddedPostgres | None = None,
        *,
        upgrades: bool = False,
    ) -> None:
        self.dsn = dsn
        self.advice = advice
        self.upgrades = upgrades
        self._embedded = embedded
        self._revived_at = 0.0

    @classmethod
    def find(cls, dsn: Dsn | None, *, creates: bool = True) -> Self:
        """Use the argument, else `GEN_DURABLE_DSN`, else the embedded server.

        An embedded server, also one that a DSN names, is started if necessary, and runs until `close`.

        Raises:
            UnreachableError: the embedded server does not exist and `creates` is false.
        """
        server = cls.choose(dsn)
        server.start(creates=creates)
        return server

    @classmethod
    async def find_async(cls, dsn: Dsn | None, *, creates: bool = True) -> Self:
        """`find` for an event loop; an embedded server is found and started on a thread."""
        if (given := cls._given(dsn)) is not None and not given.is_embedded:
            return given
        return await asyncio.to_thread(cls.find, dsn, creates=creates)

    @classmethod
    def choose(cls, dsn: Dsn | None) -> Self:
        """Choose the server as `find` does, but start nothing."""
        if (given := cls._given(dsn)) is not None:
            return given
        embedded = EmbeddedPostgres()
        advice = "this is the embedded server; see server.log beside its data"
        return cls(embedded.dsn, advice, embedded, upgrades=True)

    @classmethod
    def _given(cls, dsn: Dsn | None) -> Self | None:
        source = "the DSN was given as an argument"
        if dsn is None:
            dsn = environment_dsn()
            origin = environment_dsn_source() or "GEN_DURABLE_DSN; without it the embedded server is used"
            source = f"the DSN came from {origin}"
        if dsn is None:
            return None
        return cls(dsn, source, EmbeddedPostgres.at(dsn) if isinstance(dsn, str) else None)

    @property
    def is_embedded(self) -> bool:
        """Whether it is an embedded server, also one that a DSN names."""
        return self._embedded is not None

    def start(self, *, creates: bool = True) -> None:
        """Start an embedded server if necessary, and keep it running until `close`."""
        if self._embedded is None:
            return
        if not creates and not self._embedded.exists:
            raise UnreachableError(
                str(self._embedded.home),
                "no embedded server in this directory",
                "change to the directory where its worker was started, or set --dsn or GEN_DURABLE_DSN",
            )
        self._embedded.ensure()

    def follow(self, where: str) -> None:
        """Keep the embedded server running that a DSN function has named; do nothing for other servers."""
        if not isinstance(self.dsn, str) and self._embedded is None:
            self._embedded = EmbeddedPostgres.at(where)
            self.start()

    @property
    def home(self) -> Path | None:
        """The directory of the embedded server, unless a DSN names it."""
        return self._embedded.home if self._embedded is not None and self.upgrades else None

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
