"""ARCHITECTURE.md names every module once, and only names that exist."""

from __future__ import annotations

import re

from tests.architecture.sources import PACKAGE, ROOT, python_files, sql_files

ARCHITECTURE = ROOT / "ARCHITECTURE.md"
SECTIONS = {
    "_verbs": "`_verbs/`",
    "_runtime": "`_runtime/`",
    "_db": "`_db/`",
    "_core": "`_core/`",
    "_graph": "`_graph/`",
    "dashboard": "`dashboard/`",
}
# Packages that have one row for all their modules.
WHOLE = {"cli", "demo", "testing", "contrib", "embedded", "sinks", "dashboard"}
IDENTIFIER = re.compile(r"[A-Za-z_][\w.]*(?:\(\))?")


def section(title: str) -> str:
    text = ARCHITECTURE.read_text(encoding="utf-8")
    rest = text[text.index(title) + len(title) :]
    return re.split(r"^##+ ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def rows(text: str) -> list[str]:
    return re.findall(r"^\| `([\w/]+)` \|", text, re.MULTILINE)


def test_every_module_of_a_private_package_has_one_row() -> None:
    for package, title in SECTIONS.items():
        files = sorted((PACKAGE / package).rglob("*.py"))
        modules = [
            str(path.relative_to(PACKAGE / package).with_suffix(""))
            for path in files
            if path.name != "__init__.py"
        ]
        assert sorted(rows(section(f"### {title}"))) == sorted(modules)


def test_every_other_module_has_one_row() -> None:
    titles = ("### Entry points", "### Server and schema", "### Public types")
    named = [name.rstrip("/") for title in titles for name in rows(section(title))]
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert sorted(named) == sorted(modules | WHOLE)


def test_names_in_the_table_of_guarantees_exist() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in (*python_files(), *sql_files()))
    files = {path.name for path in (*python_files(), *sql_files())}
    tests = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    names = re.findall(r"`([^`]+)`", section("## Where the guarantees are enforced"))
    assert names
    for quoted in names:
        if quoted.split("/")[-1] in files or not IDENTIFIER.fullmatch(quoted):
            continue
        for part in quoted.removesuffix("()").split("."):
            is_known = re.search(rf"\b{part}\b", source) or re.search(rf"\bdef {part}\b", tests)
            assert is_known is not None, quoted
