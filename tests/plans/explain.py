"""Query plans of our statements, as the server reports them when it runs the statements.

`auto_explain` reports every statement, including those inside functions, to the session that runs it. The session uses
the driver and the pinned settings of a worker, and the statements come from the .sql files.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import asyncpg
import pytest

from gen_durable._db.connector import PINNED
from gen_durable._db.plan import Plan
from gen_durable._db.runner import run_asyncpg

T = TypeVar("T")

TABLES: Final = frozenset(
    {
        "gen_durable",
        "signals",
        "executions",
        "outbox",
        "audit_events",
        "stream_items",
        "step_stats",
        "machine_stats",
    }
    | {"backlog", "answered_requests"}
)
_REPORTS: Final = {
    "auto_explain.log_min_duration": "0",
    "auto_explain.log_analyze": "on",
    "auto_explain.log_buffers": "on",
    "auto_explain.log_timing": "off",
    "auto_explain.log_nested_statements": "on",
    "auto_explain.log_format": "json",
    "auto_explain.log_level": "notice",
}


class Explained:
    """One statement with its query plan and run-time counts."""

    def __init__(self, report: dict[str, Any]) -> None:
        self.query: str = report["Query Text"]
        self._plan: dict[str, Any] = report["Plan"]

    def __repr__(self) -> str:
        return f"{self.query}\n{json.dumps(self._plan, indent=1)}"

    @property
    def nodes(self) -> list[dict[str, Any]]:
        return list(_nodes(self._plan))

    @property
    def seq_scans(self) -> set[str]:
        """Tables of the engine that were read by a sequential scan."""
        return {
            node["Relation Name"]
            for node in self.nodes
            if node["Node Type"] == "Seq Scan" and node["Relation Name"] in TABLES
        }

    @property
    def indexes(self) -> set[str]:
        """The indexes that were read, except those of `queues` and `unserved`, which have a few rows."""
        named = {node["Index Name"] for node in self.nodes if "Index Name" in node and node["Actual Loops"]}
        return named - {"queues_pkey", "unserved_pkey"}

    @property
    def rows(self) -> int:
        """The number of rows that the statement returned."""
        return int(self._plan["Actual Rows"])

    @property
    def update(self) -> dict[str, Any]:
        """The node that updates instances."""
        (found,) = [
            node
            for node in self.nodes
            if node.get("Operation") == "Update" and node["Relation Name"] == "gen_durable"
        ]
        return found

    @property
    def blocks(self) -> int:
        """The number of blocks read. A CTE counts with the node that reads it; one that nothing reads, on its own."""
        read = {f"CTE {node['CTE Name']}" for node in self.nodes if "CTE Name" in node}
        unread = [
            node for node in self.nodes if node["Node Type"] == "ModifyTable" and _is_unread(node, read)
        ]
        return sum(node["Shared Hit Blocks"] + node["Shared Read Blocks"] for node in [self._plan, *unread])


def check(explained: Explained, indexes: set[str], *, blocks: int) -> None:
    """Assert that a statement used exactly these indexes, no sequential scan, and at most `blocks` blocks."""
    assert not explained.seq_scans, explained
    assert explained.indexes == indexes, explained
    assert explained.blocks <= blocks, explained


class Explainer:
    """A session with a worker's settings that receives the plans of its statements."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self._heard: list[Explained] = []
        connection.add_log_listener(self._hear)

    @classmethod
    @asynccontextmanager
    async def open(cls, dsn: str) -> AsyncIterator[Explainer]:
        connection = await asyncpg.connect(dsn, server_settings=PINNED)
        try:
            # asyncpg queries the catalog before the first use of these types. Later statements are only ours.
            await connection.fetch("select null::bigint[], null::int[], null::boolean[], null::bytea[]")
            await connection.fetch("select null::interval[], null::timestamptz[]")
            try:
                await connection.execute("load 'auto_explain'")
            except asyncpg.PostgresError as error:
                pytest.skip(f"the server does not allow auto_explain to be loaded: {error}")
            for name, value in _REPORTS.items():
                await connection.execute(f"set {name} = '{value}'")
            yield cls(connection)
        finally:
            await connection.close()

    async def explain(self, plan: Plan[Any]) -> list[Explained]:
        """Run a plan and return its statements as executed; statements inside a function come before its call."""
        _, explained = await self.run(plan)
        return explained

    async def run(self, plan: Plan[T]) -> tuple[T, list[Explained]]:
        """Run a plan and return its result and its statements as executed."""
        await self._listen()
        self._heard.clear()
        result = await run_asyncpg(self.connection, plan, "gen_durable")
        await self._listen()
        return result, list(self._heard)

    async def _listen(self) -> None:
        # In a transaction the portal of a SELECT stays open and is not reported until the next statement.
        await self.connection.execute("show jit")
        await asyncio.sleep(0)  # asyncpg calls log listeners in the next iteration of the event loop

    def _hear(self, _: object, message: Any) -> None:
        _, found, report = message.message.partition("plan:\n")
        if found:
            self._heard.append(Explained(json.loads(report)))


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from _nodes(part)


def _is_unread(node: dict[str, Any], read: set[str]) -> bool:
    return node.get("Subplan Name", "").startswith("CTE ") and node["Subplan Name"] not in read
