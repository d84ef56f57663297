"""`DjangoClient`: a client on the connections of Django."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

from django.db import close_old_connections, connections, transaction

from ..._db.blocking import BlockingDatabase
from ..._db.caller_connection import driver_of
from ..._db.plan import Plan
from ...client import Client
from ...connections import Connection
from .conf import database_dsn, read

__all__ = ["DjangoClient", "fresh_connections"]

T = TypeVar("T")


class DjangoClient(Client):
    """A blocking client on the connection that Django has open in this thread.

        durable = DjangoClient()

        with transaction.atomic():
            order = Order.objects.create(...)
            durable.insert(Checkout, order.pk)

    It needs no `with` block. Inside `atomic()` every call, reads included, is part of that transaction; outside, each
    call is a transaction of its own. In async code it raises like the ORM: use `await sync_to_async(place_order)()`.
    """

    def __init__(self, using: str | None = None) -> None:
        """Choose the database.

        Args:
            using: an alias of `DATABASES`; default: `GEN_DURABLE["DATABASE"]`, or `"default"`.
        """
        conf = read()
        self._using = conf.database if using is None else using
        super().__init__(lambda: database_dsn(self._using), settings=conf.settings)
        self._opened = _DjangoDatabase(self._using, conf.settings.schema)

    @property
    def dsn(self) -> str:
        """The DSN of its database. It contains the password."""
        return database_dsn(self._using)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Do nothing: Django owns the connection."""

    def _autocommit(self, conn: Connection | None) -> bool:
        return conn is None and bool(connections[self._using].get_autocommit())


class _DjangoDatabase(BlockingDatabase):
    """Runs plans on the Django connection of the calling thread."""

    def __init__(self, using: str, schema: str) -> None:
        super().__init__("", schema)
        self._using = using

    def run(self, plan: Plan[T]) -> T:
        conn: Any = connections[self._using]
        result: T = driver_of(conn, blocking=True)(conn, plan, self.schema)
        return result

    def run_in_transaction(self, plan: Plan[T]) -> T:
        with transaction.atomic(self._using):
            return self.run(plan)


@contextmanager
def fresh_connections() -> Iterator[None]:
    """Close stale Django connections before and after a block. Use it around ORM code in a plain `def` step.

    Django does the same around a request: it closes connections that are broken or older than `CONN_MAX_AGE`. The
    threads of a worker would keep them as long as the worker runs.
    """
    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()
