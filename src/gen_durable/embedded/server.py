"""The client side of the embedded server: hold a lease, find or start the server, return its DSN."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Self

from gen_durable.errors import UnreachableError, UsageError

from . import control
from .home import Home, home_of, locate
from .leases import Lease
from .start import Launch, reach
from .waiting import OWN_SERVER

__all__ = ["EmbeddedPostgres"]


class EmbeddedPostgres:
    """A durable PostgreSQL server, shared by all processes that use the same home.

    The first client starts it. It stops automatically some time after the last client has closed or died, unless
    `keep` was called. It listens on a private socket only. It is meant for development, tests and small single-host
    use.

    Args:
        home: its directory; by default GEN_DURABLE_HOME, else `./.gen_durable/pg<major>`.
        idle_stop: how long it runs after its last client, so that the next one need not start it.
        options: server settings by name. `options` and `idle_stop` of the client that starts the server apply.
    """

    def __init__(
        self,
        home: Path | None = None,
        *,
        idle_stop: timedelta = timedelta(seconds=10),
        options: Mapping[str, str] | None = None,
    ) -> None:
        if idle_stop < timedelta(0):
            raise UsageError(f"idle_stop is negative: {idle_stop}", "pass timedelta(0) to stop at once")
        self._given_home = home
        self._launch = Launch(idle_stop.total_seconds(), dict(options or {}))
        self._located_home: Home | None = None
        # More than one only if threads made their first calls concurrently; close() releases all.
        self._leases: list[Lease] = []

    @classmethod
    def at(cls, dsn: str) -> Self | None:
        """Return the embedded server that a DSN names, whatever its database and user.

        `None`: it names another server, or an embedded server that other accounts own.
        """
        home = home_of(dsn)
        if home is None:
            return None
        found = cls(home.path)
        found._located_home = home
        return found

    def ensure(self) -> str:
        """Start the server if necessary, and return its DSN. Cheap enough to call before every connect.

        The server runs until `close` or the end of this process; dropping this object does not stop it. A forked
        child has to call `ensure` itself. While this object has a lease, `ensure` restarts a server that was killed,
        but not one that `stop` has stopped.

        Raises:
            UnreachableError: PostgreSQL is not installed, or the server does not start.
        """
        had_lease = bool(self._leases)
        try:
            with self._explaining():
                home = self._home
                home.make()
                is_new = self._lease(home)
                return reach(home, self._launch, restarts_stopped=is_new)
        except BaseException:
            if not had_lease:
                self.close()
            raise

    def keep(self) -> str:
        """Start the server if necessary, and keep it running without clients until `stop`. Return its DSN.

        Raises:
            UnreachableError: PostgreSQL is not installed, or the server does not start.
        """
        self.ensure()
        with self._explaining():
            control.keep(self._home)
        return self.ensure()  # it may have been stopped before the mode was set

    def stop(self, *, force: bool = False) -> control.Stopped:
        """Stop the server, if it has no clients or with `force`.

        Processes that are connected do not restart it: it stays stopped until the next `ensure` of another client.

        Raises:
            UnreachableError: it does not stop, or another account owns its home.
        """
        with self._explaining():
            return control.stop(self._home, force=force)

    def status(self) -> control.Status:
        """Return what is known about the server, without starting it."""
        with self._explaining():
            return control.status(self._home)

    def close(self) -> None:
        """Release the lease. The server stops `idle_stop` after the last lease."""
        while self._leases:
            self._leases.pop().release()

    def __enter__(self) -> Self:
        self.ensure()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def exists(self) -> bool:
        """Whether its data exists. The server may be stopped."""
        return self._home.data.is_dir()

    @property
    def home(self) -> Path:
        """Its directory. For root this may differ from the requested one."""
        return self._home.path

    @property
    def dsn(self) -> str:
        """Its DSN, whether it runs or not."""
        with self._explaining():
            return self._home.dsn

    @property
    def _home(self) -> Home:
        if self._located_home is None:
            self._located_home = locate(self._given_home)
        return self._located_home

    def _lease(self, home: Home) -> bool:
        """Hold a lease; return whether it is new."""
        is_new = not any(lease.is_held_on(home) for lease in self._leases)
        if is_new:
            self._leases.append(Lease(home))
        # A short lease may fall between two checks of the keeper; it sees the time of this.
        os.utime(home.clients_lock)
        return is_new

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except UnreachableError:
            raise
        except OSError as error:
            where = self._located_home.dsn if self._located_home else "the embedded server"
            raise UnreachableError(
                where, str(error), f"Set GEN_DURABLE_HOME to a directory that you can write, {OWN_SERVER}"
            ) from error
