"""`./run bench --dashboard`: the time of every request and every page of the dashboard among a million instances."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import httpx
import msgspec
import uvicorn

from gen_durable import AsyncClient, Settings
from gen_durable._db.connector import connect
from gen_durable.dashboard import Dashboard, User, create_app
from gen_durable.dashboard.live import topics

from ..peers.processor_time import server_seconds
from ..throughput import SCHEMA
from .pages import Visit, record
from .population import LARGE, is_populated, populate
from .recorded import markdown, write
from .requests import MACHINE, gets, topics_with_names

__all__ = ["LIMIT_MS", "NAMES", "TOKEN", "measure_answers", "served"]

LIMIT_MS: Final = 300.0
TOKEN: Final = "token-of-the-benchmark"  # noqa: S105 - valid for this run, on loopback
NAMES: Final = {"machine": MACHINE, "instance": str(LARGE)}
_TIMES: Final = 20
# Requests in PERFORMANCE.md, beside the pages.
_SLOWEST: Final = 12


async def measure_answers(dsn: str, *, is_kept: bool, is_recorded: bool) -> bool:
    """Print the times of all requests; return whether all are below the limit.

    Args:
        dsn: the server.
        is_kept: whether to use the instances of an earlier run, if it has filled the schema.
        is_recorded: whether to write the figures to PERFORMANCE.md.
    """
    if not (is_kept and await is_populated(dsn, SCHEMA)):
        await populate(dsn, SCHEMA)
    requests, names = [*gets()], [*topics_with_names()]
    observer = await connect(dsn)
    async with AsyncClient(dsn, settings=Settings(schema=SCHEMA)) as client:
        app = create_app(client, tokens={TOKEN: User("bench", "admin")}, read_only=True)
        async with app.opened(), served(app) as address:
            visits = await record(address, TOKEN, NAMES, 4.0)
            async with httpx.AsyncClient(
                base_url=address, headers={"authorization": f"Bearer {TOKEN}"}, timeout=30
            ) as http:
                report = _Report(observer.get_server_pid())
                for visit in visits:
                    await report.measure(f"page {visit.path}", lambda: _open(http, app, visit))  # noqa: B023 - awaited here
                for request in requests:
                    await report.measure(request.url, lambda: _get(http, app, request.url))  # noqa: B023
                for name in names:
                    await report.measure(f"topic {name}", lambda: _poll(app, name))  # noqa: B023
    await observer.close()
    if is_recorded:
        write("dashboard", report.table())
    return report.end()


class _Report:
    """Prints a line per measurement.

    CPU is the processor time of the server and of this process, which is also the client.
    """

    def __init__(self, backend: int) -> None:
        self._backend = backend
        self._rows: list[_Row] = []
        print(f"{'ms, without cached answers':<80}{'p50':>8}{'p95':>8}{'max':>8}{'CPU':>8}")

    async def measure(self, title: str, call: Callable[[], Awaitable[None]]) -> None:
        await call()  # prepares statements, and reads from disk
        times = []
        busy = self._processor_time()
        for _ in range(_TIMES):
            began = time.perf_counter()
            await call()
            times.append((time.perf_counter() - began) * 1000)
        busy = (self._processor_time() - busy) / _TIMES * 1000
        times.sort()
        p50, p95, longest = times[_TIMES // 2], times[_TIMES * 95 // 100 - 1], times[-1]
        shown = title if len(title) <= 78 else f"{title[:77]}…"
        mark = "  over the limit" if longest > LIMIT_MS else ""
        print(f"{shown:<80}{p50:>8.1f}{p95:>8.1f}{longest:>8.1f}{busy:>8.1f}{mark}", flush=True)
        self._rows.append(_Row(shown, p50, p95, longest, busy))

    def _processor_time(self) -> float:
        return time.process_time() + server_seconds(self._backend)

    def end(self) -> bool:
        """Print the summary."""
        print(
            f"\n{len(self._rows)} measurements of {_TIMES} requests each; limit of each request: {LIMIT_MS:.0f} ms"
        )
        slow = [row.title for row in self._rows if row.longest > LIMIT_MS]
        for title in slow:
            print(f"over the limit: {title}")
        return not slow

    def table(self) -> str:
        """The pages, and the slowest of the others, for PERFORMANCE.md."""
        pages = [row for row in self._rows if row.title.startswith("page ")]
        others = sorted((row for row in self._rows if row not in pages), key=lambda row: -row.p95)
        shown = [
            (f"`{row.title}`", *(f"{figure:.0f}" for figure in row[1:]))
            for row in [*pages, *others[:_SLOWEST]]
        ]
        return markdown(["ms", "p50", "p95", "longest", "CPU"], shown)


class _Row(NamedTuple):
    """Milliseconds of one measurement."""

    title: str
    p50: float
    p95: float
    longest: float
    busy: float


async def _get(http: httpx.AsyncClient, app: Dashboard, url: str) -> None:
    app._board.forget()  # noqa: SLF001 - an answer that another reader has asked for costs nothing
    await _answer(http, url)


async def _answer(http: httpx.AsyncClient, url: str) -> None:
    answer = await http.get(url)
    if answer.status_code != 200:
        raise RuntimeError(f"{url}: {answer.status_code} {answer.text}")


async def _open(http: httpx.AsyncClient, app: Dashboard, visit: Visit) -> None:
    app._board.forget()  # noqa: SLF001
    async with asyncio.TaskGroup() as group:
        for url in visit.gets:
            group.create_task(_answer(http, url))


async def _poll(app: Dashboard, text: str) -> None:
    name, _, rest = text.partition(":")
    topic = topics[name]
    msgspec.json.encode(await app._board.read(topic.plan(rest) if topic.takes else topic.plan()))  # noqa: SLF001


@asynccontextmanager
async def served(app: Dashboard) -> AsyncGenerator[str]:
    """Serve an open dashboard in this process; yields its address."""
    config = uvicorn.Config(app, port=0, log_level="warning", lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    async with asyncio.TaskGroup() as group:
        group.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.02)
        try:
            yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        finally:
            server.should_exit = True
