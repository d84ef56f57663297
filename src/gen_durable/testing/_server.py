"""The server of the tests: that of `GEN_DURABLE_DSN`, or an embedded server without durability."""

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

# Test databases need no durability and no vacuum. Without autovacuum, statistics and so query plans are the same in
# every run.
_FAST_SETTINGS: Final = {
    "autovacuum": "off",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_wal_size": "256MB",
}
# Long enough for the next test run to find it running.
_IDLE_STOP: Final = timedelta(minutes=1)
_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - created with mode 0700, and the owner is checked
# For a server with its WAL and dozens of databases. Containers often have only 64 MB of shared memory.
_MIN_FREE_BYTES: Final = 2**30


class ScratchServer:
    """The server on which test databases are created."""

    dsn: str
    advice: str
    """Which server this is, for the error if it cannot be reached."""
    is_ours: bool
    """Whether it is the embedded server that only serves tests."""

    def __init__(
        self, dsn: str, advice: str, embedded: EmbeddedPostgres | None = None, *, is_ours: bool = False
    ) -> None:
        self.dsn = dsn
        self.advice = advice
        self.is_ours = is_ours
        self._embedded = embedded

    @classmethod
    def find(cls, dsn: str | None = None) -> Self:
        """Return the given server, that of the environment, or the embedded server for tests, started if needed.

        The embedded server for tests has its own home, separate from that of development, because it runs with
        `fsync=off`.
        """
        given = dsn or environment_dsn()
        if given is not None:
            named = EmbeddedPostgres.at(given)
            if named is not None:
                named.ensure()
            advice = "tests use the server of GEN_DURABLE_DSN; unset it to use an embedded server"
            return cls(given, advice, named)
        if sys.platform == "win32":
            EmbeddedPostgres().ensure()  # raises with advice
        failure: UnreachableError | None = None
        for home in _homes():
            embedded = EmbeddedPostgres(home, idle_stop=_IDLE_STOP, options=_FAST_SETTINGS)
            try:
                advice = f"it is the embedded server for tests in {home}"
                return cls(embedded.ensure(), advice, embedded, is_ours=True)
            except UnreachableError as error:
                error.add_note(f"{home} contains only test databases and may be removed.")
                failure = error
        assert failure is not None  # noqa: S101 - there is at least one home
        raise failure

    def close(self) -> None:
        """Release the lease on the embedded server."""
        if self._embedded is not None:
            self._embedded.close()


def _homes() -> Iterator[Path]:
    """Yield possible homes of the embedded server. In memory a new database takes a tenth of the time."""
    from ..embedded.binaries import find  # not at module level: this module is also imported on Windows

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
        # Any user can create directories there; use only our own.
        return home.stat().st_uid == os.geteuid()
    except FileNotFoundError:
        return (
            _SHARED_MEMORY.is_dir()
            and os.access(_SHARED_MEMORY, os.W_OK)
            and shutil.disk_usage(_SHARED_MEMORY).free >= _MIN_FREE_BYTES
        )
