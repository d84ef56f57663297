"""All statements of the engine."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources

from gen_durable._db.plan import Statement, statements


def all_statements() -> Iterator[tuple[str, Statement]]:
    for file in sorted(resources.files("gen_durable._db").iterdir(), key=lambda path: path.name):
        if file.name.endswith(".sql"):
            for statement in statements(file.name).values():
                yield file.name, statement
