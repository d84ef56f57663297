"""All statements of the engine."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources

from gen_durable._db import outbox, search
from gen_durable._db.plan import Statement, statements

READS: tuple[search.Read, ...] = ("page", "ids", "ids_upwards", "count", "tally")


def all_statements() -> Iterator[tuple[str, Statement]]:
    for file in sorted(resources.files("gen_durable._db").iterdir(), key=lambda path: path.name):
        if file.name.endswith(".sql"):
            for statement in statements(file.name).values():
                yield file.name, statement
    yield from searches()


def searches() -> Iterator[tuple[str, Statement]]:
    """Composed statements: without a filter, by each filter alone, by all of them, and with a status."""
    names = [name for name in search.Filter.__struct_fields__ if name != "conditions"]
    for given in [(), *((name,) for name in names), tuple(names), ("fsms", "with_deleted")]:
        for read in READS:
            yield "search.sql", search.statement(read, search.Shape(given))
    for read in READS:
        yield (
            "search.sql",
            search.statement(read, search.Shape(("fsms", "statuses"), frozenset({"runnable"}))),
        )
    for state in ("any_state", "pending", "published", "dead"):
        for names in ([], ["instance_id"], ["sink"], ["instance_id", "sink", "before"]):
            yield "outbox.sql", outbox.list_statement(frozenset(names), state)
