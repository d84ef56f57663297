"""SQL snippets of the pages: each statement with its expected result."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest

__all__ = ["Example", "examples", "promised", "roles_of", "run_examples"]


@dataclass
class Example:
    statement: str
    rows: list[str] = field(default_factory=list)
    error: str | None = None


def examples(text: str, names: Mapping[str, str]) -> list[Example]:
    """Return the statements of a text; `-- →` marks an expected row, `-- ✗` an expected error."""
    found: list[Example] = []
    open_lines: list[str] = []
    for line in text.splitlines():
        for name, ours in names.items():
            line = re.sub(rf"\b{name}\b", ours, line)
        if line.startswith("-- →"):
            found[-1].rows.append(line[4:].strip())
        elif line.startswith("-- ✗"):
            found[-1].error = line[4:].strip()
        else:
            open_lines.append(line)
            statement = "\n".join(open_lines)
            if line.endswith(";") and statement.count("$$") % 2 == 0:
                found.append(Example(statement))
                open_lines.clear()
    assert open_lines == [], f"no ; ends {open_lines}"
    return found


def roles_of(texts: Iterable[str], token: str) -> dict[str, str]:
    """Return unique names for the roles of a page: all databases of a server share its roles."""
    return {
        name: f"{name}_{token}"
        for text in texts
        for name in re.findall(r"^create role (\w+)", text, re.MULTILINE)
    }


def run_examples(connection: psycopg.Connection[Any], given: Iterable[Example]) -> None:
    for example in given:
        if example.error is None:
            found = _shown(connection.execute(example.statement.encode()))
            assert re.fullmatch(promised("\n".join(example.rows)), "\n".join(found)), (example, found)
        else:
            with pytest.raises(psycopg.Error) as raised:
                connection.execute(example.statement.encode())
            assert raised.value.diag.message_primary == example.error, example


def promised(text: str) -> str:
    """Return a pattern for an expected text, in which `…` matches anything."""
    return re.escape(text).replace("…", ".+")


def _shown(cursor: psycopg.Cursor[Any]) -> list[str]:
    """Return the rows as psql shows them."""
    result = cursor.pgresult
    if result is None or not result.nfields:
        return []
    cells = [
        [(result.get_value(row, column) or b"").decode() for column in range(result.nfields)]
        for row in range(result.ntuples)
    ]
    return [" | ".join(row).strip() for row in cells]
