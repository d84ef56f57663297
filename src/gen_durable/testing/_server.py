"""The server for tests: the one of `GEN_DURABLE_DSN`, or an embedded one that is fast because it may forget."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Final, Self

from ..config import environment_dsn, environment_home
from ..embedded import EmbeddedPostgres
from ..errors import UnreachableError

__all__ = ["ScratchServer"]

# Nothing here has to outlive a power cut, and nothing lives long enough to be vacuumed. Statistics that come at a time
# of their own would make plans differ from run to run.
_FAST_SETTINGS: Final = {
    "autovacuum": "off",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_wal_size": "256MB",
}
# The next run of the tests finds it warm.
_IDLE_STOP: Final = timedelta(minutes=1)
_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - made 0700 by us, and its owner is checked
# A server with its WAL and some dozens of databases. Containers often have 64 MB of shared memory.
_MIN_FREE_BYTES: Final = 2**30


class ScratchServer:
    """Where the databases of tests are made."""

    dsn: str
    advice: str
    """Which server that is, for those who cannot reach it."""
    is_ours: bool
    """Whether it is the embedded one, on which speed is all that counts."""

    def __init__(self, dsn: str, advice: str, embedded: EmbeddedPostgres | None = None) -> None:
        self.dsn = dsn
        self.advice = advice
        self.is_ours = embedded is not None
        self._embedded = embedded

    @classmethod
    def find(cls, dsn: str | None = None) -> Self:
        """The given server, else the one of the environment, else an embedded one, started if need be.

        The embedded one is never that of development: it has a home of its own, because it runs with `fsync=off`.
        """
        given = dsn or environment_dsn()
        if given is not None:
            return cls(given, "tests use the server of GEN_DURABLE_DSN, and else an embedded one")
        if sys.platform == "win32":
            EmbeddedPostgres().ensure()  # says what to do instead
        failure: UnreachableError | None = None
        for home in _homes():
            embedded = EmbeddedPostgres(home, idle_stop=_IDLE_STOP, options=_FAST_SETTINGS)
            try:
                return cls(embedded.ensure(), f"it is the embedded server for tests in {home}", embedded)
            except UnreachableError as error:
                error.add_note(f"It holds nothing but databases of tests: {home} may be removed.")
                failure = error
        assert failure is not None  # noqa: S101 - there is at least one home
        raise failure

    def close(self) -> None:
        """Give back the lease on the embedded server."""
        if self._embedded is not None:
            self._embedded.close()


def _homes() -> Iterator[Path]:
    """Where the embedded server may live, the best place first: in memory a new database takes a tenth of the time."""
    from ..embedded.binaries import find  # not on Windows, where this module is imported all the same

    name = f"tests-pg{find().major}"
    if (given := environment_home()) is not None:
        yield given / name
        return
    in_memory = _SHARED_MEMORY / f"gen_durable-{os.geteuid()}-{name}"
    if _is_usable(in_memory):
        yield in_memory
    try:
        cache = Path.home() / ".cache"
    except RuntimeError:  # this account has no home
        cache = Path(tempfile.gettempdir()) / f"gen_durable-{os.geteuid()}"
    yield cache / "gen_durable" / name


def _is_usable(home: Path) -> bool:
    try:
        # Anybody may make directories there: one of somebody else's is not ours to use.
        return home.stat().st_uid == os.geteuid()
    except FileNotFoundError:
        return (
            _SHARED_MEMORY.is_dir()
            and os.access(_SHARED_MEMORY, os.W_OK)
            and shutil.disk_usage(_SHARED_MEMORY).free >= _MIN_FREE_BYTES
        )
