"""`./run bench --dashboard-soak MINUTES`: a worker at full speed, in turn without and with 50 open pages.

The dashboard is a process of its own, `gen-durable dash`, as in production. 48 pages are connections without a
browser, and two are in Chromium. These clients get only time that nothing else uses, because they would be on other
machines.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import statistics
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec
from playwright.async_api import async_playwright

from gen_durable import AsyncClient, Settings, Status
from gen_durable._db.connector import connect

from ..peers.processor_time import process_seconds, server_seconds
from ..throughput import SCHEMA
from .answers import TOKEN
from .pages import Visit, logged_in, record
from .recorded import markdown, write
from .soak_worker import Kept

__all__ = ["measure_soak"]

LEAST: Final = 0.95
"""Throughput with open pages, as a share of that without them."""
_PAGES: Final = 48
_IN_CHROMIUM: Final = ("/", "/m/Kept")
_PHASE: Final = 30.0
_WARM_UP: Final = 10.0
# Seconds after the begin of a phase that do not count: pages load.
_SETTLING: Final = 5.0
_RECORDED: Final = 33.0
# The backends of the dashboard are those of its role.
_ROLE: Final = "gen_durable_bench_dash"


class Phase(NamedTuple):
    """Per second of one phase: steps of the worker, and processor time."""

    steps: float
    worker: float
    server: float
    dashboard: float
    backends: float
    """Of the server, for the dashboard."""
    clients: float
    chromium: float


async def measure_soak(dsn: str, minutes: float, *, is_recorded: bool) -> bool:
    """Print all phases and their means; return whether open pages cost less than 5 % of the throughput."""
    pairs = max(1, round(minutes * 60 / _PHASE / 2))
    async with AsyncExitStack() as stack:
        await _prepare(dsn)
        worker = await stack.enter_async_context(_Worker.open(dsn))
        address, dashboard = await stack.enter_async_context(_dashboard(dsn))
        await asyncio.sleep(_WARM_UP)
        visits = await _recorded(dsn, address)
        soak = _Soak(dsn, worker, dashboard, await connect(dsn))
        quiet, busy = [], []
        for _ in range(pairs):
            quiet.append(await soak.phase())
            async with _clients(address, visits) as clients, _chromium(address) as browser:
                busy.append(await soak.phase(clients, browser))
    print(_table(quiet, busy, visits))
    if is_recorded:
        write("soak", _recorded_table(quiet, busy))
    return _ratio(quiet, busy) >= LEAST


class _Worker:
    def __init__(self, process: Process) -> None:
        self.process = process
        self.counts: list[dict[str, float]] = []

    @classmethod
    @asynccontextmanager
    async def open(cls, dsn: str) -> AsyncGenerator[_Worker]:
        async with _program("-m", "bench.dashboard.soak_worker", dsn, SCHEMA) as process:
            worker = cls(process)
            reading = asyncio.get_running_loop().create_task(worker._read())
            yield worker
            reading.cancel()

    async def _read(self) -> None:
        assert self.process.stdout is not None  # noqa: S101 - it is a pipe
        async for line in self.process.stdout:
            self.counts.append(json.loads(line))

    async def next_count(self) -> dict[str, float]:
        """Wait for the next count, and return it."""
        number = len(self.counts)
        async with asyncio.timeout(30):
            while len(self.counts) == number:
                await asyncio.sleep(0.005)
        return self.counts[-1]


class _Soak:
    def __init__(self, dsn: str, worker: _Worker, dashboard: Process, observer: Any) -> None:
        self._dsn = dsn
        self._worker = worker
        self._dashboard = dashboard
        self._observer = observer

    async def phase(self, clients: Process | None = None, browser: int | None = None) -> Phase:
        """Measure a phase."""
        await asyncio.sleep(_SETTLING)
        pids = {"worker": self._worker.process.pid, "dashboard": self._dashboard.pid}
        pids |= {} if clients is None else {"clients": clients.pid}
        before, first = await self._times(pids, browser), await self._worker.next_count()
        await asyncio.sleep(_PHASE)
        last, after = await self._worker.next_count(), await self._times(pids, browser)
        seconds = last["at"] - first["at"]
        used = {name: (time - before.get(name, 0.0)) / seconds for name, time in after.items()}
        found = Phase(
            (last["steps"] - first["steps"]) / seconds,
            *(used.get(name, 0.0) for name in Phase._fields[1:]),
        )
        print(_line("with pages" if clients else "without", found), file=sys.stderr, flush=True)
        return found

    async def _times(self, pids: Mapping[str, int], browser: int | None) -> dict[str, float]:
        rows = await self._observer.fetch("select pid from pg_stat_activity where usename = $1", _ROLE)
        found = {name: process_seconds(pid) for name, pid in pids.items()}
        found["server"] = server_seconds(self._observer.get_server_pid())
        found["backends"] = sum(process_seconds(row["pid"]) for row in rows)
        if browser is not None:
            found["chromium"] = sum(map(_seconds_of, _descendants(browser)))
        return found


async def _prepare(dsn: str) -> None:
    conn = await connect(dsn)
    try:
        await conn.execute(f'drop schema if exists "{SCHEMA}" cascade')
        await conn.execute(
            f"drop role if exists {_ROLE}; create role {_ROLE} superuser login password '{TOKEN}'"
        )
    finally:
        await conn.close()
    async with AsyncClient(dsn, settings=Settings(schema=SCHEMA)):
        pass  # installs the schema


async def _recorded(dsn: str, address: str) -> list[Visit]:
    """Record what the pages ask for; the pages of an instance show one that has failed."""
    async with AsyncClient(dsn, settings=Settings(schema=SCHEMA)) as client:
        (failed,) = await client.list(Kept, status=Status.DONE, limit=1)
    return await record(address, TOKEN, {"machine": "Kept", "instance": str(failed.id)}, _RECORDED)


@asynccontextmanager
async def _program(*arguments: str, yields: bool = False, **environment: str) -> AsyncGenerator[Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        stdin=PIPE,
        stdout=PIPE,
        env={**os.environ, **environment},  # noqa: TID251 - of a child
        preexec_fn=(lambda: _yield_to_others(0)) if yields else None,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()


@asynccontextmanager
async def _dashboard(dsn: str) -> AsyncGenerator[tuple[str, Process]]:
    server = urlsplit(dsn)
    host = server.netloc.rpartition("@")[2]
    where = server._replace(netloc=f"{_ROLE}:{TOKEN}@{host}").geturl()
    arguments = ("-m", "gen_durable", "dash", "--port", "0", "--dsn", where, "--schema", SCHEMA)
    async with _program(*arguments, GEN_DURABLE_DASH_TOKEN=TOKEN) as process:
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        async for line in process.stdout:
            if line.startswith(b"Open: "):
                yield line.decode().split()[1].rstrip("/"), process
                return
        raise RuntimeError("the dashboard did not start")


@asynccontextmanager
async def _clients(address: str, visits: list[Visit]) -> AsyncGenerator[Process]:
    arguments = ("-m", "bench.dashboard.soak_clients", address, TOKEN, str(_PAGES))
    async with _program(*arguments, yields=True) as process:
        assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018 - they are pipes
        process.stdin.write(msgspec.json.encode(visits))
        process.stdin.close()
        if await process.stdout.readline() != b"open\n":
            raise RuntimeError("the clients did not start")
        yield process
        if process.returncode is not None:
            raise RuntimeError("a page has ended")
        process.send_signal(signal.SIGTERM)
        print(f"answers by status: {(await process.stdout.readline()).decode().strip()}", file=sys.stderr)


@asynccontextmanager
async def _chromium(address: str) -> AsyncGenerator[int]:
    """Open pages in Chromium; yields the process that started it."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=shutil.which("chromium"), chromium_sandbox=os.geteuid() != 0
        )
        for path in _IN_CHROMIUM:
            # Without a graphics card, moving dots take more than all else.
            context = await browser.new_context(reduced_motion="reduce")
            await logged_in(context, address, TOKEN)
            page = await context.new_page()
            await page.goto(address + path)
        for pid in filter(_is_browser, _descendants(os.getpid())):
            _yield_to_others(pid)
        yield os.getpid()
        await browser.close()


def _yield_to_others(pid: int) -> None:
    """Run the threads of a process only when no other process wants to run."""
    for thread in Path(f"/proc/{pid or 'self'}/task").iterdir():
        with suppress(ProcessLookupError):  # it has ended
            os.sched_setscheduler(int(thread.name), os.SCHED_IDLE, os.sched_param(0))


def _descendants(pid: int) -> list[int]:
    """The processes of Chromium below this one."""
    found = []
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    except OSError:
        return []
    for child in map(int, children):
        found += [child, *_descendants(child)]
    return found


def _seconds_of(pid: int) -> float:
    try:
        return process_seconds(pid) if _is_browser(pid) else 0.0
    except OSError:
        return 0.0  # it has ended


def _is_browser(pid: int) -> bool:
    return "chrom" in Path(f"/proc/{pid}/comm").read_text(encoding="utf-8")


def _ratio(quiet: list[Phase], busy: list[Phase]) -> float:
    """The steps of all phases with pages, as a share of those without. Single phases vary by more than the limit."""
    return _mean(busy).steps / _mean(quiet).steps


def _pairs(quiet: list[Phase], busy: list[Phase]) -> str:
    ratios = sorted(one.steps / before.steps for before, one in zip(quiet, busy, strict=True))
    return f"{len(ratios)} pairs of phases from {ratios[0]:.2f} to {ratios[-1]:.2f}"


def _figures(one: Phase) -> list[str]:
    cost = (one.worker + one.server - one.backends) / one.steps * 1e6
    return [f"{one.steps:,.0f}", f"{cost:.1f}", *(f"{value * 1000:,.0f}" for value in one[1:])]


def _line(title: str, one: Phase) -> str:
    return f"{title:<14}" + "".join(f"{figure:>13}" for figure in _figures(one))


def _mean(phases: list[Phase]) -> Phase:
    return Phase(*map(statistics.mean, zip(*phases, strict=True)))


def _recorded_table(quiet: list[Phase], busy: list[Phase]) -> str:
    rows = [("without", *_figures(_mean(quiet))), ("with 50 pages", *_figures(_mean(busy)))]
    table = markdown(["", "steps/s", "µs per step", *Phase._fields[1:]], rows)
    share = (
        f"Throughput with open pages: {_ratio(quiet, busy):.3f} of that without, in all phases together; "
        f"{_pairs(quiet, busy)}."
    )
    return f"{table}\n\n{share}"


def _table(quiet: list[Phase], busy: list[Phase], visits: list[Visit]) -> str:
    requests = (
        sum(sum(visit.reloads.values()) for visit in visits) / len(visits) * (_PAGES + len(_IN_CHROMIUM))
    )
    names = "".join(f"{name:>13}" for name in ("steps/s", "µs per step", *Phase._fields[1:]))
    return "\n".join(
        [
            f"{len(busy)} phases of {_PHASE:.0f} s each without and with {_PAGES + len(_IN_CHROMIUM)} open pages, "
            f"which make {requests:.1f} requests/s; means",
            "",
            f"{'':<14}{names}",
            _line("without", _mean(quiet)),
            _line("with pages", _mean(busy)),
            "",
            "µs per step: processor time of the worker and the server, without the backends of the dashboard; "
            "others: processor time in ms per second",
            f"throughput with open pages: {_ratio(quiet, busy):.3f} of that without ({_pairs(quiet, busy)}); "
            f"at least {LEAST} is wanted",
        ]
    )
