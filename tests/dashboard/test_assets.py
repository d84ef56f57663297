"""The files of the front end: their size, and what is vendored."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Final

import pytest

from gen_durable.dashboard.assets import _files

STATIC: Final = Path(__file__).parents[2] / "src" / "gen_durable" / "dashboard" / "static"
LIMIT: Final = 60_000


def test_javascript_is_small() -> None:
    """As it is served."""
    sizes = {path: len(file.compressed or b"") for path, file in _files().items() if path.endswith(".js")}
    assert len(sizes) > 5
    assert sum(sizes.values()) <= LIMIT, sorted(sizes.items(), key=lambda one: -one[1])


def test_vendored_files_are_those_of_the_readme() -> None:
    text = (STATIC / "vendor" / "README.md").read_text(encoding="utf-8")
    found = re.findall(r"^\| `([^`]+)` \| `([0-9a-f]{64})` \|$", text, re.MULTILINE)
    assert len(found) == 3
    for name, digest in found:
        assert hashlib.sha256((STATIC / "vendor" / name).read_bytes()).hexdigest() == digest, name


@pytest.mark.parametrize("name", ["lib", "ui", "charts"])
def test_readme_describes_every_export(name: str) -> None:
    text = (STATIC / "js" / "README.md").read_text(encoding="utf-8")
    code = (STATIC / "js" / f"{name}.js").read_text(encoding="utf-8")
    exported = re.findall(r"^export (?:const|(?:async )?function|class) (\w+)", code, re.MULTILINE)
    assert [word for word in exported if not re.search(rf"\b{word}\b", text)] == []


def test_files_of_others_have_their_licence() -> None:
    texts = {path.name: path.read_text(encoding="utf-8") for path in STATIC.rglob("LICENSE-*.txt")}
    assert texts.keys() == {"LICENSE-OFL.txt", "LICENSE-htm.txt", "LICENSE-preact.txt"}


@pytest.mark.parametrize("path", sorted(STATIC.rglob("*.js")), ids=lambda path: path.name)
def test_javascript_writes_no_html(path: Path) -> None:
    if path.parent.name != "vendor":
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|\beval\(|new Function", path.read_text(encoding="utf-8")
        )
