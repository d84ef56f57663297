"""SQL lives in .sql files, says what it is for, and never listens."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.house.sources import name_of, python_files, sql_files, strings_of, tree_of

STATEMENT = re.compile(r"^-- name: (\w+)\n(.*?)(?=^-- name: |\Z)", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"--.*$", re.MULTILINE)
LISTENS = re.compile(r"\b(?:un)?listen\b|\bnotify\b|\bpg_notify\b", re.IGNORECASE)
LISTEN_STATEMENT = re.compile(r"\s*(?:un)?(?:listen|notify)\s+\w", re.IGNORECASE)
DML = re.compile(
    r"^\s*(?:select\b.+\bfrom|insert\s+into|update\b.+\bset|delete\s+from|merge\s+into|with\b.+\bas)\s",
    re.IGNORECASE | re.DOTALL,
)

verb_files = pytest.mark.parametrize(
    "path", [path for path in sql_files() if path.parent.name != "migrations"], ids=name_of
)


@verb_files
def test_every_statement_has_a_name_and_a_reason(path: Path) -> None:
    statements = STATEMENT.findall(path.read_text(encoding="utf-8"))
    assert statements, "no '-- name: …' line"
    silent = [name for name, body in statements if not re.match(r"--\s+\S+", body)]
    assert silent == []


@verb_files
def test_no_statement_name_is_used_twice_in_a_file(path: Path) -> None:
    names = [name for name, _ in STATEMENT.findall(path.read_text(encoding="utf-8"))]
    assert sorted(names) == sorted(set(names))


@pytest.mark.clause("PICK-10")
@pytest.mark.parametrize("path", sql_files(), ids=name_of)
def test_sql_files_neither_listen_nor_notify(path: Path) -> None:
    assert LISTENS.findall(COMMENT.sub("", path.read_text(encoding="utf-8"))) == []


@pytest.mark.clause("PICK-10")
@pytest.mark.parametrize("path", python_files(), ids=name_of)
def test_python_neither_listens_nor_notifies(path: Path) -> None:
    spoken = [text.value for text in strings_of(path) if LISTEN_STATEMENT.match(str(text.value))]
    names = [node.attr for node in ast.walk(tree_of(path)) if isinstance(node, ast.Attribute)]
    assert spoken == []
    assert "add_listener" not in names


@pytest.mark.parametrize("path", python_files(), ids=name_of)
def test_no_statement_is_put_together_from_pieces(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    joined = [
        node for node in ast.walk(tree_of(path)) if isinstance(node, ast.JoinedStr) and DML.match(_text(node))
    ]
    # The exceptions say their reason to ruff, which watches for the same.
    assert [f"line {node.lineno}" for node in joined if "noqa: S608" not in lines[node.lineno - 1]] == []


def _text(node: ast.JoinedStr) -> str:
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values)


@pytest.mark.parametrize(
    "path", [path for path in sql_files() if path.parent.name == "migrations"], ids=name_of
)
def test_migrations_are_plain_ascii(path: Path) -> None:
    """They are printed and run by tools of every encoding."""
    assert path.read_text(encoding="utf-8").isascii()
