"""`DjangoClient`: a client without connections of its own."""

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
    """A blocking client on the connection that Django has open in this thread. There is nothing to open or to close.

        durable = DjangoClient()

        with transaction.atomic():
            order = Order.objects.create(...)
            durable.insert(Checkout, order.pk)

    Inside of `atomic()` every verb is part of its transaction, the reading ones too; outside each is its own. In async
    code it raises what the ORM does: `await sync_to_async(place_order)()`.
    """

    def __init__(self, using: str | None = None) -> None:
        """Say which database.

        Args:
            using: an alias of `DATABASES`; left out, the one that `GEN_DURABLE` names.
        """
        conf = read()
        self._using = conf.database if using is None else using
        super().__init__(lambda: database_dsn(self._using), settings=conf.settings)
        self._opened = _DjangoDatabase(self._using, conf.settings.schema)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Nothing: the connection is Django's."""

    def _is_alone(self, conn: Connection | None) -> bool:
        return conn is None and bool(connections[self._using].get_autocommit())


class _DjangoDatabase(BlockingDatabase):
    """Runs plans on Django's connection of the thread that asks."""

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
    """Around what a plain `def` step does with the ORM: what Django does around a request.

    Connections that broke, or are older than `CONN_MAX_AGE`, are closed before and after. The threads of a worker live
    as long as it does, and would keep them.
    """
    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()
