"""What people read uses plain words, and retired names do not come back."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.architecture.sources import ROOT, name_of, tree_of

PHRASES: Final = re.compile(
    r"\b(?:whoever|somebody|(?<![`'\"(])nobody|anybody|everybody|told (?:by|of)|(?:is|are|was|were|be|been) told|belongs into|for ever|stands instead"
    r"|in the way of|so long from|(?<!as )so many|the living|the dead(?![ -]letter)|of its own accord|by his own lights"
    r"|(?<!there )is no (?!longer\b|more\b|later\b|earlier\b|worse\b|slower\b|faster\b)[a-z]+)\b",
    re.ASCII,
)
# Each phrase contains one of these.
PARTS: Final = (
    "whoever",
    "body",
    "told",
    "belongs into",
    "for ever",
    "stands instead",
    "way of",
    "so long",
    "so many",
    "the living",
    "the dead",
    "of its own",
    "his own",
    "is no ",
)
MODULES: Final = frozenset(
    [
        "sameness",
        "strangers",
        "portions",
        "races",
        "borrowed",
        "named",
        "fleet",
        "brood",
        "house",
        "nursery",
        "victims",
        "askers",
        "diary",
        "works",
        "way",
        "slots",
        "presence",
        "inspect",
        "signal",
        "gc",
        "callers_path",
        "patience",
    ]
)
NAMES: Final = frozenset(
    [
        "Way",
        "on_way_made",
        "made_way",
        "_in_the_way",
        "Scheduler",
        "put_off",
        "hurry",
        "schedule_childs",
        "Held",
        "may_stand",
        "is_lent",
        "lends",
        "_standings",
        "_look_again",
        "is_doubtful",
        "stragglers",
        "_held_up",
        "_let_go",
        "_commit_alone",
        "lose",
        "heed",
        "let_go",
        "_inside",
        "Contact",
        "silence",
        "is_laden",
        "_LAST_WORDS",
        "_FAREWELL",
        "_CALM_AFTER",
        "_WELL",
        "_ABREAST",
        "_SELDOM",
        "_MOMENT",
        "brood",
        "appear",
        "disappear",
        "Stage",
        "Backstage",
        "_Death",
        "Tally",
        "_Ear",
        "Portrait",
        "Wish",
        "foresee",
        "nobody",
        "whoever",
        "somebody",
        "told",
        "tell",
        "noted",
        "standing",
        "crowd",
        "fleet",
        "victims",
    ]
)
CTES: Final = frozenset(
    ["noted", "told", "held_back", "fit", "standing", "vacant", "placed", "room", "crowd", "turn"]
)
WORD: Final = re.compile(r"\w+")
CTE: Final = re.compile(
    r"(?:\bwith|,)\s+(?:recursive\s+)?(\w+)\s+as\s+(?:not\s+)?(?:materialized\s+)?\(", re.IGNORECASE
)
FUNCTION: Final = re.compile(r"\bfunction\s+(?:\w+\.)?(\w+)\s*\(", re.IGNORECASE)
LONGEST_TEST_NAME: Final = 75
FOLDERS: Final = ("src", "tests", "docs", "bench", "examples", ".github", ".ci")
SUFFIXES: Final = frozenset({".py", ".sql", ".md", ".toml", ".yml", ".yaml", ".txt", ""})

# Path, and why its words are kept. A path that needs no exception fails the test below.
EXCEPTIONS: Final = {
    "tests/architecture/test_vocabulary.py": "it lists the retired words",
}


@cache
def texts() -> dict[str, str]:
    files = [
        path for path in ROOT.iterdir() if path.suffix in {".md", ".toml", ".yaml"} or path.name == "run"
    ]
    for folder in FOLDERS:
        files += [path for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    return {
        name_of(path): path.read_text(encoding="utf-8")
        for path in sorted(files)
        if path.is_file() and "__pycache__" not in path.parts
    }


def retired_phrases(text: str) -> Iterator[str]:
    for number, line in enumerate(text.lower().splitlines(), start=1):
        if any(part in line for part in PARTS):  # faster than the expression, which few lines need
            for match in PHRASES.finditer(line):
                yield f"line {number}: {match[0]}"


def defined_names(path: str) -> Iterator[str]:
    """Yield the functions, classes, attributes and constants that a Python file defines."""
    for node in ast.walk(tree_of(ROOT / path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def retired_names(path: str) -> frozenset[str]:
    text, found = texts()[path], MODULES & {Path(path).stem}
    if path.endswith(".sql"):
        found |= CTES & {match[1] for match in CTE.finditer(text)}
        found |= (NAMES | CTES) & {match[1] for match in FUNCTION.finditer(text)}
    elif path.endswith(".py") and (words := NAMES & set(WORD.findall(text))):  # parse few files
        found |= words & set(defined_names(path))
    return found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Nobody reads this.", 1),
        ("Rows are told of it.", 1),
        ("It is no machine.", 1),
        ("It is no longer needed; as many as there are.", 0),
        ("the dead letter of a job, the dead-letter job", 0),
        ("the account `nobody`; there is no server", 0),
        ("So many rows wait.", 1),
    ],
)
def test_retired_phrases_are_recognized(text: str, found: int) -> None:
    assert len(list(retired_phrases(text))) == found


def test_no_retired_phrase_is_used() -> None:
    found = {path: list(retired_phrases(text)) for path, text in texts().items() if path not in EXCEPTIONS}
    assert {path: phrases for path, phrases in found.items() if phrases} == {}


def test_every_exception_is_needed() -> None:
    unused = [path for path in EXCEPTIONS if not any(retired_phrases(texts()[path]))]
    assert unused == []


def test_no_retired_name_is_defined() -> None:
    found = {path: sorted(retired_names(path)) for path in texts() if path not in EXCEPTIONS}
    assert {path: names for path, names in found.items() if names} == {}


def test_test_names_are_short() -> None:
    long = [
        f"{path}: {node.name}"
        for path in texts()
        if path.startswith("tests/") and path.endswith(".py")
        for node in ast.walk(tree_of(ROOT / path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and len(node.name) > LONGEST_TEST_NAME
    ]
    assert long == []
