"""The course of the demo: insert orders, pay them, kill one of two workers, and check the result."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from .._schema import drop_schema
from .._typing import ResultT, StateT
from ..async_client import AsyncClient
from ..config import Settings
from ..instance import DuplicateSignal, ExecutionRecord, Instance, Status
from ..machine import Machine
from ..refs import InsertResult, KeyTaken, Spec
from .checks import Check, Evidence, checks
from .ledger import read_ledger
from .machines import Checkout, Order, Payment, Receipt, Shipment
from .processes import WorkerProcess, WorkerProcesses
from .screen import Counts, Screen
from .website import dashboard

__all__ = ["SCHEMA", "run"]

SCHEMA: Final = "gen_durable_demo"
_SETTINGS: Final = Settings(schema=SCHEMA)
_PARCELS: Final = 3
_PAYING: Final = 3.0  # seconds from the first payment to the last
_REPEAT_EVERY: Final = 10  # every tenth payment signal is sent twice, as webhooks are
_LOOK_EVERY: Final = 0.15  # seconds between two reads of the counts
_SETTLING: Final = 0.1  # seconds until the server has processed what a frozen process had sent
_AT_ONCE: Final = 100  # reads of executions
_ARRIVING: Final = 0.5  # seconds between two orders at the end
_UNPAID: Final = 5  # orders at the end that wait for their payment
_DEADLINE: Final = 60.0  # seconds; usually it takes a tenth of that


class _StuckError(Exception):
    """The demo cannot continue."""


async def run(screen: Screen, *, orders: int, dsn: str | None, keep: bool = False) -> bool:
    """Run the demo. Returns whether all checks of the summary hold.

    `keep`: afterwards more orders arrive, and the dashboard stays open, until SIGINT or SIGTERM.
    """
    began_at = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gen_durable_demo_") as scratch, screen:
        async with _fresh_client(screen, dsn) as client:
            scenario = _Scenario(client, screen, Path(scratch) / "printer.jsonl", orders)
            with WorkerProcesses(["worker 1", "worker 2"], SCHEMA, dsn) as workers:

                def announce(url: str) -> None:
                    screen.say(f"Dashboard: {url}")

                async with dashboard(client, announce) as url:
                    announce(url or "not installed; pip install 'gen_durable[dash]'")
                    summary = await _play(scenario, workers)
                    screen.sum_up(summary)
                    holds = all(check.holds for check in summary)
                    _conclude(screen, holds, time.monotonic() - began_at, dsn)
                    if keep:
                        screen.say("\nMore orders arrive until Ctrl-C.")
                        await scenario.stay_open()
    return holds


async def _play(scenario: _Scenario, workers: WorkerProcesses) -> list[Check]:
    try:
        async with asyncio.timeout(_DEADLINE):
            return await scenario.play(*workers.all)
    except TimeoutError:
        return [Check("all checkouts end", (f"not within {_DEADLINE:.0f} s",))]
    except _StuckError as stuck:
        return [Check("the demo runs to its end", (str(stuck),))]


def _conclude(screen: Screen, holds: bool, seconds: float, dsn: str | None) -> None:
    verdict = "Nothing was lost, nothing was committed twice" if holds else "A check failed"
    screen.say(f"\n{verdict} ({seconds:.1f} s).", "bold green" if holds else "bold red")
    where = f"--schema {SCHEMA}{' --dsn …' if dsn else ''}"
    command = _command()
    screen.say(
        f"Inspect it: {command} ls {where}\nOpen it:    {command} dash {where}\nRemove it:  {command} db down {where}"
    )


def _command() -> str:
    """Return how to call gen-durable from the current directory; `./run` does not extend the PATH."""
    installed = Path(sys.executable).with_name("gen-durable")
    found = shutil.which("gen-durable")
    if found is not None and Path(found) == installed:
        return "gen-durable"
    here = Path.cwd()
    return str(installed.relative_to(here) if installed.is_relative_to(here) else installed)


@asynccontextmanager
async def _fresh_client(screen: Screen, dsn: str | None) -> AsyncIterator[AsyncClient]:
    """Open a client on an empty schema of its own. Other schemas are not changed."""
    await drop_schema(dsn, SCHEMA)
    async with AsyncClient(dsn, settings=_SETTINGS) as client:
        screen.say(f"Connected to PostgreSQL, using schema '{SCHEMA}'.")
        yield client


class _Scenario:
    def __init__(self, client: AsyncClient, screen: Screen, ledger: Path, orders: int) -> None:
        self._client = client
        self._screen = screen
        self._ledger = ledger
        self._orders = orders
        # Cents by id of the checkout. Only _pay writes it.
        self._sent: dict[int, int] = {}
        # Shipments interrupted by the kill; empty before it. Only _kill_in_mid_step writes it.
        self._cut_off: frozenset[int] = frozenset()

    async def play(self, victim: WorkerProcess, survivor: WorkerProcess) -> list[Check]:
        checkouts = await self._insert()
        await self._until_started(victim, survivor)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pay(checkouts))
                group.create_task(self._kill_in_mid_step(victim, survivor))
                await self._watch(victim, survivor)
        except ExceptionGroup as errors:
            # The first error ends the demo; the others are consequences.
            raise errors.exceptions[0] from errors
        return checks(await self._evidence(victim.pid))

    async def stay_open(self) -> None:
        """Let orders arrive until SIGINT or SIGTERM; each is paid a little later."""
        stopping = asyncio.Event()
        for signal_number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(signal_number, stopping.set)
        for number in itertools.count(self._orders + 1):
            order = Order(number, _PARCELS, str(self._ledger))
            await self._client.insert(Checkout, order, correlation_key=f"order:{number}")
            if number > self._orders + _UNPAID:
                payment = Payment(cents=1000 + number)
                await self._client.signal(f"order:{number - _UNPAID}", Checkout.payment, payment)
            try:
                async with asyncio.timeout(_ARRIVING):
                    await stopping.wait()
                return
            except TimeoutError:
                pass

    async def _until_started(self, *processes: WorkerProcess) -> None:
        while not all(process.has_started for process in processes):
            _require_alive(*processes)
            await asyncio.sleep(_LOOK_EVERY)
        named = " and ".join(f"{process.name} (pid {process.pid})" for process in processes)
        self._screen.say(f"{named} started.")

    async def _insert(self) -> Sequence[InsertResult[Order, Receipt] | KeyTaken[Order, Receipt]]:
        specs = [
            Spec(Checkout, Order(number, _PARCELS, str(self._ledger)), correlation_key=f"order:{number}")
            for number in range(1, self._orders + 1)
        ]
        checkouts = await self._client.insert_all(specs)
        self._screen.say(
            f"Inserted {len(checkouts)} checkouts. Each waits for its payment, then ships {_PARCELS} parcels."
        )
        return checkouts

    async def _pay(
        self, checkouts: Sequence[InsertResult[Order, Receipt] | KeyTaken[Order, Receipt]]
    ) -> None:
        """Send a payment signal to every checkout; every tenth one twice."""
        repeated = 0
        for number, checkout in enumerate(checkouts, 1):
            payment = Payment(cents=1000 + number)
            self._sent[checkout.id] = payment.cents
            for _ in range(2 if number % _REPEAT_EVERY == 0 else 1):
                answer = await self._client.signal(
                    f"order:{number}", Checkout.payment, payment, dedup_key="bank"
                )
                repeated += isinstance(answer, DuplicateSignal)
            await asyncio.sleep(_PAYING / len(checkouts))
        self._screen.say(f"Sent {len(checkouts)} payment signals; {repeated} duplicates were dropped.")

    async def _kill_in_mid_step(self, victim: WorkerProcess, survivor: WorkerProcess) -> None:
        """When a third is shipped, kill one worker while it has uncommitted steps."""
        while await self._client.count(Shipment, status=Status.DONE) < self._orders * _PARCELS // 3:
            await asyncio.sleep(_LOOK_EVERY)
        victim.pause()
        await asyncio.sleep(_SETTLING)
        while not (cut_off := await self._half_printed(victim)):
            victim.resume()
            await asyncio.sleep(_SETTLING)
            victim.pause()
            await asyncio.sleep(_SETTLING)
        victim.kill()
        self._cut_off = cut_off
        killed_at = time.monotonic()
        self._screen.say(
            f"Killed {victim.name} (SIGKILL). Labels it had printed but not committed: {len(cut_off)}.",
            "bold red",
        )
        while not cut_off <= self._printed_by(survivor):
            await asyncio.sleep(_LOOK_EVERY)
        after = time.monotonic() - killed_at
        self._screen.say(
            f"{survivor.name} has run these steps again, {after:.1f} s after the kill: their leases had expired."
        )

    async def _half_printed(self, process: WorkerProcess) -> frozenset[int]:
        """Return the shipments whose label it has printed, but not committed."""
        executing = await self._client.list(
            Shipment, status=Status.EXECUTING, step=Shipment.label, limit=1000
        )
        return self._printed_by(process) & {one.id for one in executing}

    def _printed_by(self, process: WorkerProcess) -> frozenset[int]:
        return frozenset(each.parcel_id for each in read_ledger(self._ledger) if each.pid == process.pid)

    async def _watch(self, victim: WorkerProcess, survivor: WorkerProcess) -> None:
        """Show the progress until every checkout has ended."""
        while (counts := await self._counts()).done < self._orders:
            self._screen.show(counts)
            _require_alive(survivor, *([] if self._cut_off else [victim]))
            await asyncio.sleep(_LOOK_EVERY)
        self._screen.show(counts)
        if not self._cut_off:
            raise _StuckError(f"{victim.name} had no uncommitted step to interrupt")

    async def _counts(self) -> Counts:
        return Counts(
            checkouts=self._orders,
            parcels=self._orders * _PARCELS,
            paid=len(self._sent),
            shipped=await self._client.count(Shipment, status=Status.DONE),
            done=await self._client.count(Checkout, status=[Status.DONE, Status.FAILED]),
            executing=await self._client.count(status=Status.EXECUTING),
        )

    async def _evidence(self, killed_pid: int) -> Evidence:
        checkouts, shipments = await self._every(Checkout), await self._every(Shipment)
        return Evidence(
            sent=self._sent,
            parcels=_PARCELS,
            checkouts=checkouts,
            shipments=shipments,
            prints=read_ledger(self._ledger),
            killed_pid=killed_pid,
            killed_ids=self._cut_off,
            executions=await self._executions([*checkouts, *shipments]),
        )

    async def _executions(self, instances: Sequence[Instance[Any, Any]]) -> list[ExecutionRecord]:
        found: list[ExecutionRecord] = []
        for start in range(0, len(instances), _AT_ONCE):
            async with asyncio.TaskGroup() as group:
                asked = [
                    group.create_task(self._client.executions(one.id))
                    for one in instances[start : start + _AT_ONCE]
                ]
            found += (record for task in asked for record in task.result())
        return found

    async def _every(self, machine: type[Machine[StateT, ResultT]]) -> list[Instance[StateT, ResultT]]:
        """Read all instances of a machine, page by page."""
        found: list[Instance[StateT, ResultT]] = []
        while page := await self._client.list(machine, limit=5000, before=found[-1].id if found else None):
            found += page
        return found


def _require_alive(*processes: WorkerProcess) -> None:
    for process in processes:
        if not process.is_alive:
            raise _StuckError(f"{process.name} ended unexpectedly:\n{process.log_tail()}")
