"""The recorded figures: read, write, compare, and print as tables of PERFORMANCE.md."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

__all__ = [
    "COMMAND",
    "POSTGRESQL",
    "PYTHON",
    "Costs",
    "Figures",
    "Record",
    "findings",
    "in_document",
    "load",
    "merged",
    "save",
]

Figures: TypeAlias = Mapping[str, float]
"""By name, such as `buffers`."""
Costs: TypeAlias = dict[str, Figures]
"""By operation or kind of step."""

COMMAND: Final = ".venv/bin/python -m tests.costs --record"
# Other versions of the server write other WAL, other versions of Python run other instructions.
POSTGRESQL: Final = 18
PYTHON: Final = (3, 11)
_TOLERANCE: Final = 0.1
# How much two runs differ: in the space that is left in pages, and in the work of the event loop.
_NOISE: Final = 0.04
_EXACT: Final = frozenset({"statements", "round_trips"})

_FILE: Final = Path(__file__).with_name("recorded.toml")
_DOCUMENT: Final = Path(__file__).parents[2] / "PERFORMANCE.md"
_HEADER: Final = f"""\
# What operations and steps cost, on PostgreSQL {POSTGRESQL} and Python {PYTHON[0]}.{PYTHON[1]}. Statements and round trips are per call, the other
# figures of the database per row, those of Python per step. ./run check fails if the code costs
# more or less. After an intended change, record anew: {COMMAND}
"""


class Record(NamedTuple):
    """All figures."""

    database: Costs
    python: Costs
    microseconds: Costs
    """Processor time, as `./run bench --operations --record` has measured it. Not compared: it depends on the machine."""


def load() -> Record:
    """Read the recorded figures."""
    return Record(**tomllib.loads(_FILE.read_text(encoding="utf-8")))


def save(record: Record) -> None:
    """Write the figures, and the tables in PERFORMANCE.md."""
    lines = [_HEADER]
    for name, costs in record._asdict().items():
        lines.append(f"[{name}]\n" + "\n".join(map(_line, costs, costs.values())) + "\n")
    _FILE.write_text("\n".join(lines), encoding="utf-8")
    _DOCUMENT.write_text(in_document(load()), encoding="utf-8")


def merged(recorded: Costs, measured: Costs) -> Costs:
    """What to record: the measured costs, but the recorded ones where both are the same except for noise."""
    return {
        title: recorded[title]
        if title in recorded and not any(_differences(title, recorded[title], figures, _NOISE))
        else figures
        for title, figures in measured.items()
    }


def findings(recorded: Costs, measured: Costs) -> list[str]:
    """Say which figures differ from the recorded ones, in either direction: a record that is too high hides a regression."""
    found = [f"{title}: not recorded" for title in measured if title not in recorded]
    for title, figures in recorded.items():
        if title not in measured:
            found.append(f"{title}: recorded, but not measured any more")
            continue
        found += _differences(title, figures, measured[title], _TOLERANCE)
    return [*found, f"After an intended change, record the new figures: {COMMAND}"] if found else []


def _differences(title: str, recorded: Figures, measured: Figures, tolerance: float) -> Iterator[str]:
    for name, now in measured.items():
        before = recorded.get(name, 0.0)
        slack = 0.0 if name in _EXACT else max(tolerance * before, 0.01)
        if abs(now - before) > slack:
            word = "more" if now > before else "less"
            yield f"{title}: {word} {_words(name)}: recorded {before:g}, now {_rounded(now):g}"


def in_document(record: Record) -> str:
    """PERFORMANCE.md with the tables of this record."""
    text = _DOCUMENT.read_text(encoding="utf-8")
    for name, costs in (("database", record.database), ("python", record.python)):
        begin, end = f"<!-- {name}: written by tests/costs -->\n", f"<!-- end of {name} -->\n"
        before, rest = text.split(begin)
        text = before + begin + _table(costs, record.microseconds) + end + rest.split(end)[1]
    return text


def _table(costs: Costs, microseconds: Costs) -> str:
    merged = [(title, {**figures, **microseconds.get(title, {})}) for title, figures in costs.items()]
    names = list(dict.fromkeys(name for _, figures in merged for name in figures))
    rows = [["", *map(_words, names)], ["---", *["---:"] * len(names)]]
    rows += [
        [title, *(f"{figures[name]:,g}" if name in figures else "" for name in names)]
        for title, figures in merged
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows).replace("|  |", "| |")


def _words(name: str) -> str:
    return name.replace("_", " ").replace("wal", "WAL")


def _line(title: str, figures: Figures) -> str:
    values = ", ".join(
        f'"{name}" = {_rounded(value):g}' if " " in name or "µ" in name else f"{name} = {_rounded(value):g}"
        for name, value in figures.items()
    )
    return f'"{title}" = {{ {values} }}'


def _rounded(value: float) -> float:
    """Two decimals below 100: more would not be the same in the next run."""
    return round(value, 2 if value < 100 else None)
