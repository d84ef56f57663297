"""Print what operations and steps cost, next to the recorded figures; with --record, write the record and PERFORMANCE.md."""

from __future__ import annotations

import argparse
import asyncio
import sys

from gen_durable.testing._databases import Databases
from tests.costs.database import measure_operations
from tests.costs.recorded import POSTGRESQL, PYTHON, Figures, findings, load, merged, save
from tests.costs.steps import measure_steps


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.costs", description=__doc__)
    parser.add_argument("--record", action="store_true", help="write the record and PERFORMANCE.md")
    given = parser.parse_args()
    if given.record and sys.version_info[:2] != PYTHON:
        parser.error(f"the figures are those of PostgreSQL {POSTGRESQL} and Python {PYTHON[0]}.{PYTHON[1]}")
    with Databases() as databases:
        with databases.fresh() as dsn:
            database = asyncio.run(measure_operations(dsn))
        with databases.fresh() as dsn:
            python = asyncio.run(measure_steps(dsn))
    recorded = load()
    for known, costs in ((recorded.database, database), (recorded.python, python)):
        lines = [f"{title:<42}{_text(figures)}" for title, figures in costs.items()]
        lines += findings(known, costs)
        sys.stdout.write("\n".join(lines) + "\n\n")
    if given.record:
        save(
            recorded._replace(
                database=merged(recorded.database, database), python=merged(recorded.python, python)
            )
        )


def _text(figures: Figures) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in figures.items())


if __name__ == "__main__":
    main()
