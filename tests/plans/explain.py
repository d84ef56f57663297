"""How PostgreSQL runs the statements of a plan, told by the server while it runs them.

`auto_explain` reports every statement, those inside of functions too, to the very session: prepared by the driver that
workers use, under the settings that workers pin. Nothing is copied from the .sql files, so nothing differs from them.
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

TABLES: Final = frozenset({"gen_durable", "signals", "executions"})
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
    """One statement as it was run."""

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
        """Tables of ours that were read from end to end."""
        return {
            node["Relation Name"]
            for node in self.nodes
            if node["Node Type"] == "Seq Scan" and node["Relation Name"] in TABLES
        }

    @property
    def indexes(self) -> set[str]:
        """The indexes that were really looked into; but for that of `queues`, a table of a few rows."""
        named = {node["Index Name"] for node in self.nodes if "Index Name" in node and node["Actual Loops"]}
        return named - {"queues_pkey"}

    @property
    def rows(self) -> int:
        """How many rows it returned."""
        return int(self._plan["Actual Rows"])

    @property
    def blocks(self) -> int:
        """How many blocks it touched. A CTE is counted with whoever reads it; one that only writes, by itself."""
        read = {f"CTE {node['CTE Name']}" for node in self.nodes if "CTE Name" in node}
        unread = [
            node for node in self.nodes if node["Node Type"] == "ModifyTable" and _is_unread(node, read)
        ]
        return sum(node["Shared Hit Blocks"] + node["Shared Read Blocks"] for node in [self._plan, *unread])


def check(explained: Explained, indexes: set[str], *, blocks: int) -> None:
    """It was found by these indexes and no other way, and touched no more than so many blocks."""
    assert not explained.seq_scans, explained
    assert explained.indexes == indexes, explained
    assert explained.blocks <= blocks, explained


class Explainer:
    """A pinned session that hears how its statements were run."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self._heard: list[Explained] = []
        connection.add_log_listener(self._hear)

    @classmethod
    @asynccontextmanager
    async def open(cls, dsn: str) -> AsyncIterator[Explainer]:
        connection = await asyncpg.connect(dsn, server_settings=PINNED)
        try:
            # asyncpg asks the catalog about these before their first use; from then on every statement is ours.
            await connection.fetch("select null::bigint[], null::int[], null::boolean[], null::bytea[]")
            await connection.fetch("select null::interval[], null::timestamptz[]")
            try:
                await connection.execute("load 'auto_explain'")
            except asyncpg.PostgresError as error:
                pytest.skip(
                    f"plans are told by auto_explain, which this server does not let us load: {error}"
                )
            for name, value in _REPORTS.items():
                await connection.execute(f"set {name} = '{value}'")
            yield cls(connection)
        finally:
            await connection.close()

    async def explain(self, plan: Plan[Any]) -> list[Explained]:
        """Run it, for good, and tell how each of its statements went; of a function, those inside come first."""
        _, explained = await self.run(plan)
        return explained

    async def run(self, plan: Plan[T]) -> tuple[T, list[Explained]]:
        """The same, with what the plan returned."""
        await self._listen()
        self._heard.clear()
        result = await run_asyncpg(self.connection, plan, "gen_durable")
        await self._listen()
        return result, list(self._heard)

    async def _listen(self) -> None:
        # In a transaction the portal of a SELECT stays open, and unreported, until the next one takes its place.
        await self.connection.execute("show jit")
        await asyncio.sleep(0)  # asyncpg calls listeners in the next round of the loop

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
