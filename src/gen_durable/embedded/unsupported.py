"""The embedded server on Windows: not supported."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import NoReturn, Self

from gen_durable.errors import UnreachableError

__all__ = ["EmbeddedPostgres"]


class EmbeddedPostgres:
    """Has the signature of the real class; the first use raises `UnreachableError`."""

    def __init__(
        self,
        home: Path | None = None,
        *,
        idle_stop: timedelta = timedelta(seconds=10),
        options: Mapping[str, str] | None = None,
    ) -> None: ...

    @classmethod
    def at(cls, dsn: str) -> None:
        """No DSN names an embedded server here."""

    @property
    def dsn(self) -> NoReturn:
        self.ensure()

    def ensure(self) -> NoReturn:
        raise UnreachableError(
            "the embedded server",
            "it runs on Linux and macOS only",
            "Install PostgreSQL, and set GEN_DURABLE_DSN to it.",
        )

    def keep(self) -> NoReturn:
        self.ensure()

    def stop(self, *, force: bool = False) -> NoReturn:
        self.ensure()

    def status(self) -> NoReturn:
        self.ensure()

    def close(self) -> None: ...

    def __enter__(self) -> Self:
        self.ensure()

    def __exit__(self, *_: object) -> None: ...
