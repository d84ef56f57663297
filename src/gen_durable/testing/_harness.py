"""`Harness` and `AsyncHarness`: clients of a test database that also run its instances, with a controlled clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final, Self, TypeVar

from .._db import migrate
from .._db.blocking import BlockingDatabase
from .._db.plan import Plan
from .._server import Server
from ..async_client import AsyncClient
from ..client import Client
from ..config import Settings
from ..errors import NotConnectedError
from ._databases import Databases
from ._harness_base import HarnessBase
from ._loop import Loop
from ._loop_thread import ThreadedDatabase
from ._stepper import Crash, CrashPoint, DrainCounts, Stepper

__all__ = ["AsyncHarness", "Harness", "crash_everywhere"]

T = TypeVar("T")
_PLACES: Final[Mapping[CrashPoint, str]] = {
    "before_step": "before step '{}'",
    "before_commit": "before the commit of step '{}'",
}


class Harness(HarnessBase, Client):
    """The fixture `durable`: a blocking client of the database of one test, with `drain`, a clock and assertions.

        def test_an_unpaid_order_is_given_up(durable: Harness) -> None:
            order = durable.insert(Checkout, Order(42))
            assert durable.drain() == DrainCounts(awaiting=1)
            durable.advance(hours=24)
            durable.drain()
            durable.assert_failed(order, match="payment never came")

    Instances run only in `drain`. Do not call `wait` without a timeout: it would wait forever.
    """

    def __init__(self, dsn: str, *, settings: Settings | None = None) -> None:
        """Open a harness on a migrated database, which the test owns."""
        super().__init__(dsn, settings=settings)
        self._stepper = Stepper(dsn, self.settings)
        self._loop = Loop()

    def drain(self, *, collapse: bool = True, max_steps: int = 1000) -> DrainCounts:
        """Run all due instances with the SQL statements of a worker, until all have ended or wait.

        Instances run one step at a time, in the order in which they are due. Then schedules fire each fire time that
        `advance` has passed, one after the other.

        Args:
            collapse: skip the delays of retries, `Next` and `schedule_in`, and waits for rate limits, in order. `False`
                respects them. Timeouts of `Await` are never skipped: use `advance`.
            max_steps: maximum number of steps of all instances.

        Returns:
            The number of committed outcomes by kind.

        Raises:
            AssertionError: `max_steps` is exceeded.
        """
        database = _Blocking(self._database)
        draining = self._stepper.drain(database, ahead=self._ahead, collapse=collapse, max_steps=max_steps)
        return self._loop.run(draining, "drain", "use the fixture async_durable and await its drain")

    def _run_now(self, plan: Plan[T]) -> T:
        return self._database.run(plan)

    def _close(self) -> None:
        self._stepper.close()
        self._loop.close()
        super()._close()


class AsyncHarness(HarnessBase, AsyncClient):
    """The fixture `async_durable`: a harness for async tests. Client methods and `drain` are awaited, the others block.

        async def test_a_paid_order_is_shipped(async_durable: AsyncHarness) -> None:
            order = await async_durable.insert(Checkout, Order(42))
            await async_durable.drain()
            await async_durable.signal(order, Checkout.payment, Payment(100))
            await async_durable.drain()
            assert async_durable.assert_done(order) == Receipt(42, 100)

    Its connections run on an event loop of their own, so both `with` and `async with` open it.
    """

    def __init__(self, dsn: str, *, settings: Settings | None = None) -> None:
        """Open a harness on a migrated database, which the test owns."""
        super().__init__(dsn, settings=settings)
        self._stepper = Stepper(dsn, self.settings)
        self._threaded: ThreadedDatabase | None = None

    def __enter__(self) -> Self:
        try:
            self._open_now()
        except BaseException:
            self._close_now()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close_now()

    async def drain(self, *, collapse: bool = True, max_steps: int = 1000) -> DrainCounts:
        """Run all due instances; see `Harness.drain`. Async steps run on the event loop of the test."""
        return await self._stepper.drain(
            self._database, ahead=self._ahead, collapse=collapse, max_steps=max_steps
        )

    def _run_now(self, plan: Plan[T]) -> T:
        if self._threaded is None:
            raise NotConnectedError(type(self).__name__, "with")
        return self._threaded.run_now(plan)

    async def _open(self) -> None:
        self._open_now()

    async def _close(self) -> None:
        self._close_now()

    def _open_now(self) -> None:
        self._server = server = Server.find(self._given_dsn)
        schema = self.settings.schema
        self._opened = self._threaded = ThreadedDatabase.open_now(
            server.dsn, schema, advice=server.advice, pooler=self.settings.pooler
        )
        self._open_pollers(self._opened)
        self._threaded.run_in_transaction_now(migrate.prepare(schema, upgrade=False))

    def _close_now(self) -> None:
        self._close_pollers()
        if self._threaded is not None:
            self._threaded.close_now()
        self._stepper.close()
        if self._server is not None:
            self._server.close()
        self._opened = self._threaded = self._server = None


def crash_everywhere(scenario: Callable[[Harness], object], /, *, settings: Settings | None = None) -> int:
    """Run a scenario once per point at which a process can crash, with a crash at that point.

        def scenario(durable: Harness) -> None:
            order = durable.insert(Checkout, Order(42))
            durable.drain()
            durable.signal(order, Checkout.payment, Payment(100))
            durable.drain()
            durable.assert_done(order, Receipt(42, 100))

        crash_everywhere(scenario)

    A scenario inserts, signals, drains and asserts. It runs once without a crash, then once per crash point: before
    each executed step, and before the commit of each. Every run starts with an empty database. `drain` recovers as the
    next process would, and the assertions of the scenario must hold again. If one fails, a step is not safe to repeat.

    Args:
        scenario: a function of a `Harness`.
        settings: the settings of the harness; default: from the environment.

    Returns:
        The number of crash points.
    """
    chosen = Settings.load() if settings is None else settings
    point_count = 0
    with Databases() as databases:
        while True:
            crash = _CrashOnce(point_count)
            with databases.clean(chosen.schema) as dsn, Harness(dsn, settings=chosen) as harness:
                harness._stepper.crash = crash  # noqa: SLF001 - the harness is defined in this module
                harness._stepper.recovers = True  # noqa: SLF001
                try:
                    scenario(harness)
                except BaseException as error:
                    if crash.point:
                        error.add_note(f"The process crashed {crash.point}.")
                    raise
            if not crash.point:
                return point_count
            point_count += 1


class _CrashOnce:
    """Raises `Crash` once, at the point after `points_left` others."""

    def __init__(self, points_left: int) -> None:
        self.point = ""
        self._points_left = points_left

    def __call__(self, step: str, point: CrashPoint) -> None:
        if self.point:
            return
        if self._points_left == 0:
            self.point = _PLACES[point].format(step)
            raise Crash(self.point)
        self._points_left -= 1


class _Blocking:
    """The blocking connection of a client with an async interface.

    It blocks the loop of the harness, which has no other user.
    """

    def __init__(self, database: BlockingDatabase) -> None:
        self._database = database

    async def run(self, plan: Plan[T]) -> T:
        return self._database.run(plan)

    async def run_in_transaction(self, plan: Plan[T]) -> T:
        return self._database.run_in_transaction(plan)
