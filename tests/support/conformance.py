"""Generate docs/internals/conformance.md from the clauses of docs/internals/spec.md and the tests marked with them.

Both are read as text and syntax trees, so the table does not depend on which tests ran.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
SPEC: Final = ROOT / "docs" / "internals" / "spec.md"
TABLE: Final = ROOT / "docs" / "internals" / "conformance.md"
COMMAND: Final = "python -m tests.support.conformance"

_CLAUSE: Final = re.compile(
    r"^- \*\*(?P<id>[A-Z]+-\d+)\*\* (?P<text>.+?) \*\((?P<source>.+?)\)\*$", re.DOTALL
)
_LINK: Final = re.compile(r"\[([^\]]+)\]\([^)]+\)")
_FIRST_SENTENCE: Final = re.compile(r".+?[.](?= [A-Z`]|$)", re.DOTALL)
# A test that is not run, or that is meant to fail, proves nothing.
_UNPROVEN: Final = frozenset({"skip", "xfail"})


class Clause(NamedTuple):
    """One rule of the specification."""

    id: str
    text: str
    source: str
    section: str

    @property
    def statement(self) -> str:
        """Its first sentence."""
        found = _FIRST_SENTENCE.match(self.text)
        return found[0] if found else self.text


class Tag(NamedTuple):
    """A test marked with a clause."""

    clause: str
    path: str
    test: str
    is_proof: bool


def clauses(text: str) -> list[Clause]:
    """The clauses of a specification, in their order."""
    found: list[Clause] = []
    section = ""
    for block in re.split(r"\n(?=- |\n|#)", text):
        item = block.strip()
        if item.startswith("## "):
            section = item.removeprefix("## ").splitlines()[0]
        elif item.startswith("- **"):
            match = _CLAUSE.match(re.sub(r"\s+", " ", item))
            if match is None:
                raise ValueError(f"not '- **ID-1** Sentence. *(source)*': {item}")
            source = _LINK.sub(r"\1", match["source"])
            found.append(Clause(match["id"], match["text"], source, section))
    return found


def tags(root: Path) -> list[Tag]:
    """All tests below a directory that are marked with a clause."""
    found: list[Tag] = []
    for path in sorted(root.rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if "mark.clause" in text:
            found += _tags_of(ast.parse(text), str(path.relative_to(root)))
    return found


def table_of(text: str, first_column: str) -> list[list[str]]:
    """The rows of the table whose first column has this name, without backticks."""
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith(f"| {first_column} |"):
            next(lines)
            break
    rows: list[list[str]] = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip().replace("`", "") for cell in line.strip("|").split("|")])
    return rows


def render(spec: Sequence[Clause], proofs: Mapping[str, Sequence[Tag]]) -> str:
    """The table: clause, statement, tests, where it comes from."""
    count = len({(tag.path, tag.test) for found in proofs.values() for tag in found})
    lines = [
        "# Conformance",
        "",
        f"The {len(spec)} clauses of [spec.md](spec.md), and the {count} tests that prove them.",
        f"This file is written by `{COMMAND}`; a test fails when it is out of date. Paths are below `tests/`.",
    ]
    section = ""
    for clause in spec:
        if clause.section != section:
            section = clause.section
            lines += ["", f"## {section}", "", "| clause | statement | tests | from |", "|---|---|---|---|"]
        cells = (clause.id, clause.statement, _tests(proofs[clause.id]), clause.source)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([*lines, ""])


def current() -> str:
    """The table as it should be now."""
    return render(clauses(SPEC.read_text(encoding="utf-8")), proofs_of(tags(ROOT / "tests")))


def proofs_of(found: Sequence[Tag]) -> Mapping[str, Sequence[Tag]]:
    """The tests of each clause."""
    proofs: defaultdict[str, list[Tag]] = defaultdict(list)
    for tag in found:
        if tag.is_proof:
            proofs[tag.clause].append(tag)
    return proofs


def _tests(found: Sequence[Tag]) -> str:
    by_file: defaultdict[str, list[str]] = defaultdict(list)
    for tag in found:
        by_file[tag.path].append(tag.test)
    return "<br>".join(f"`{path}`: {', '.join(tests)}" for path, tests in by_file.items())


def _tags_of(tree: ast.Module, path: str) -> Iterator[Tag]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        marks = [mark for decorator in node.decorator_list if (mark := _mark(decorator)) is not None]
        is_proof = node.name.startswith("test_") and not any(name in _UNPROVEN for name, _ in marks)
        for name, arguments in marks:
            if name != "clause":
                continue
            for argument in arguments:
                if not isinstance(argument, ast.Constant) or not isinstance(argument.value, str):
                    raise TypeError(
                        f"{path}: {node.name} names a clause by {ast.unparse(argument)}, not by its id"
                    )
                yield Tag(argument.value, path, node.name, is_proof)


def _mark(decorator: ast.expr) -> tuple[str, list[ast.expr]] | None:
    """The name and the arguments of `@pytest.mark.name(…)`."""
    call = decorator if isinstance(decorator, ast.Call) else None
    target = decorator if call is None else call.func
    if not isinstance(target, ast.Attribute) or ast.unparse(target.value) != "pytest.mark":
        return None
    return target.attr, [] if call is None else call.args


if __name__ == "__main__":
    TABLE.write_text(current(), encoding="utf-8")
