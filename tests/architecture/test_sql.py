"""Rules for SQL: named statements in .sql files, no LISTEN or NOTIFY, no string building."""

from __future__ import annotations

import ast
import re

import pytest

from tests.architecture.sources import name_of, python_files, sql_files, strings_of, tree_of

STATEMENT = re.compile(r"^-- name: (\w+)\n(.*?)(?=^-- name: |\Z)", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"--.*$", re.MULTILINE)
LISTENS = re.compile(r"\b(?:un)?listen\b|\bnotify\b|\bpg_notify\b", re.IGNORECASE)
LISTEN_STATEMENT = re.compile(r"\s*(?:un)?(?:listen|notify)\s+\w", re.IGNORECASE)
DML = re.compile(
    r"^\s*(?:select\b.+\bfrom|insert\s+into|update\b.+\bset|delete\s+from|merge\s+into|with\b.+\bas)\s",
    re.IGNORECASE | re.DOTALL,
)

MIGRATIONS = [path for path in sql_files() if path.parent.parent.name == "migrations"]
VERBS = [path for path in sql_files() if path not in MIGRATIONS]
CREATED = re.compile(r"^create (?:unique )?\w+ (?:gen_durable\.)?(\w+)", re.MULTILINE)
LITERAL = re.compile(r"'[^'\n]*'")


def test_every_statement_has_a_name_and_a_comment() -> None:
    for path in VERBS:
        statements = STATEMENT.findall(path.read_text(encoding="utf-8"))
        assert statements, f"no '-- name: …' line in {name_of(path)}"
        silent = [name for name, body in statements if not re.match(r"--\s+\S+", body)]
        assert silent == [], name_of(path)


def test_statement_names_are_unique_per_file() -> None:
    for path in VERBS:
        names = [name for name, _ in STATEMENT.findall(path.read_text(encoding="utf-8"))]
        assert sorted(names) == sorted(set(names)), name_of(path)


@pytest.mark.clause("PICK-10")
def test_sql_files_neither_listen_nor_notify() -> None:
    for path in sql_files():
        assert LISTENS.findall(COMMENT.sub("", path.read_text(encoding="utf-8"))) == [], name_of(path)


@pytest.mark.clause("PICK-10")
def test_python_neither_listens_nor_notifies() -> None:
    for path in python_files():
        spoken = [text.value for text in strings_of(path) if LISTEN_STATEMENT.match(str(text.value))]
        names = [node.attr for node in ast.walk(tree_of(path)) if isinstance(node, ast.Attribute)]
        assert spoken == [], name_of(path)
        assert "add_listener" not in names, name_of(path)


def test_statements_are_not_built_from_strings() -> None:
    for path in python_files():
        lines = path.read_text(encoding="utf-8").splitlines()
        joined = [
            node
            for node in ast.walk(tree_of(path))
            if isinstance(node, ast.JoinedStr) and DML.match(_text(node))
        ]
        # Exceptions carry a noqa with a reason for ruff's S608.
        unexplained = [node.lineno for node in joined if "noqa: S608" not in lines[node.lineno - 1]]
        assert unexplained == [], name_of(path)


def _text(node: ast.JoinedStr) -> str:
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values)


def test_migrations_are_plain_ascii() -> None:
    """Tools with any encoding print and run them."""
    assert [name_of(path) for path in MIGRATIONS if not path.read_text(encoding="utf-8").isascii()] == []


def test_migrations_do_not_refer_to_later_objects() -> None:
    """PostgreSQL resolves names in PL/pgSQL bodies only at run time."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in MIGRATIONS if path.name != "down.sql")
    created: set[str] = set()
    later: list[str] = []
    for statement in re.split(r"^(?=create )", LITERAL.sub("", COMMENT.sub("", text)), flags=re.MULTILINE):
        created.update(CREATED.findall(statement))
        later += set(re.findall(r"\bgen_durable\.(\w+)", statement)) - created
    assert later == []
