"""What operations and steps cost, compared with recorded figures that do not depend on the speed of the machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from gen_durable._db.plan import Script, only
from gen_durable._db.pool import Database
from gen_durable.testing._databases import Databases
from tests.costs.database import Meter, measure_operations
from tests.costs.operations import OPERATIONS, Operation, Run
from tests.costs.recorded import POSTGRESQL, PYTHON, Costs, findings, in_document, load, merged
from tests.costs.steps import measure_steps, measure_variants
from tests.costs.variants import PLAIN, pass_through

(PICK,) = (operation for operation in OPERATIONS if operation.title == "pick")
ONLY_PYTHON = pytest.mark.skipif(
    sys.version_info[:2] != PYTHON, reason=f"the figures are those of Python {PYTHON}"
)


@pytest.fixture
def dsn(durable_databases: Databases) -> Iterator[str]:
    """A database that no earlier test has used, on the server whose figures are recorded."""
    if not durable_databases._server.is_ours:
        pytest.skip("the figures are those of the embedded server")
    with durable_databases.fresh() as dsn:
        with psycopg.connect(dsn) as conn:
            if conn.info.server_version // 10000 != POSTGRESQL:
                pytest.skip(f"the figures are those of PostgreSQL {POSTGRESQL}")
        yield dsn


async def test_operations_cost_what_is_recorded(dsn: str) -> None:
    found = findings(load().database, await measure_operations(dsn))
    assert not found, "\n".join(found)


@ONLY_PYTHON
async def test_steps_cost_what_is_recorded(dsn: str) -> None:
    found = findings(load().python, await measure_steps(dsn))
    assert not found, "\n".join(found)


def test_performance_document_has_the_recorded_figures() -> None:
    document = Path(__file__).parents[2] / "PERFORMANCE.md"
    assert document.read_text(encoding="utf-8") == in_document(load())


async def test_another_index_is_found(dsn: str) -> None:
    async with Meter.open(dsn) as meter:
        await meter.observer.execute("create index on gen_durable.gen_durable (updated_at)")
        figures = await meter.measure(PICK)
    found = findings({PICK.title: load().database[PICK.title]}, {PICK.title: figures})
    assert any(finding.startswith("pick: more index entries: recorded") for finding in found)
    assert "--record" in found[-1]


async def test_another_statement_is_found(dsn: str) -> None:
    async def prepare(database: Database, rows: int) -> Run:
        pick = await PICK.prepare(database, rows)

        async def run() -> None:
            await pick()
            await database.run(only(Script("select 1")))

        return run

    async with Meter.open(dsn) as meter:
        figures = await meter.measure(Operation(PICK.title, PICK.rows, prepare))
    found = findings({PICK.title: load().database[PICK.title]}, {PICK.title: figures})
    assert "pick: more statements: recorded 1, now 2" in found
    assert "pick: more round trips: recorded 1, now 2" in found


@ONLY_PYTHON
async def test_more_calls_are_found(dsn: str) -> None:
    job = PLAIN[0]
    measured = await measure_variants(dsn, [job], [pass_through] * 3)
    found = findings({job.title: load().python[job.title]}, measured)
    assert any(finding.startswith("job: more calls: recorded") for finding in found)
    assert any(finding.startswith("job: more instructions: recorded") for finding in found)


def test_cheaper_unknown_and_missing_operations_are_found() -> None:
    found = findings(
        {"a": {"buffers": 2.0}, "b": {"buffers": 2.0}}, {"a": {"buffers": 1.0}, "c": {"buffers": 1.0}}
    )
    assert found[:-1] == [
        "c: not recorded",
        "a: less buffers: recorded 2, now 1",
        "b: recorded, but not measured any more",
    ]
    assert findings({"a": {"buffers": 2.0}}, {"a": {"buffers": 2.05}}) == []


def test_record_keeps_figures_that_differ_by_noise_only() -> None:
    recorded: Costs = {"a": {"buffers": 10.0}, "b": {"buffers": 10.0}, "gone": {"buffers": 1.0}}
    measured: Costs = {"a": {"buffers": 10.2}, "b": {"buffers": 10.8}, "new": {"buffers": 1.0}}
    assert merged(recorded, measured) == {
        "a": {"buffers": 10.0},
        "b": {"buffers": 10.8},
        "new": {"buffers": 1.0},
    }
