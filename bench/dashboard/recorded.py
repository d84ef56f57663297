"""Figures of the dashboard in PERFORMANCE.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

__all__ = ["markdown", "write"]

_DOCUMENT: Final = Path(__file__).parents[2] / "PERFORMANCE.md"


def markdown(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose columns but the first are numbers."""
    lines = [titles, ["---", *["---:"] * (len(titles) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write(section: str, text: str) -> None:
    """Replace what stands between the two comments of a section."""
    document = _DOCUMENT.read_text(encoding="utf-8")
    before, begin, rest = document.partition(f"<!-- {section}: written by ./run bench -->\n")
    _, end, after = rest.partition(f"<!-- end of {section} -->\n")
    if not end:
        raise LookupError(f"PERFORMANCE.md has no section {section}")
    _DOCUMENT.write_text(f"{before}{begin}{text}\n{end}{after}", encoding="utf-8")
