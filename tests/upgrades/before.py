"""The code of the version before: what was in this repository before its newest increment came."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Final

import pytest

from gen_durable._db.migrate import LATEST

ROOT: Final = Path(__file__).parents[2]
_MIGRATIONS: Final = "src/gen_durable/_db/migrations"


def code_before(directory: Path) -> Path:
    """Put it there; its `src`.

    Once released, an increment never changes, and the commit before the newest one has that code. Until then older
    increments may be edited in place: then it is the code of today without the commit that brought the newest one.
    """
    added = _git("log", "--diff-filter=A", "--format=%H", "--", f"{_MIGRATIONS}/{LATEST:04}_*.up.sql").split()
    commit = added[-1] if added else ""
    if not _git("rev-parse", "--verify", f"{commit}^"):
        pytest.skip("the history of this repository is not here, or does not go back far enough")
    older = [str(path.relative_to(ROOT)) for path in sorted((ROOT / _MIGRATIONS).glob("*.sql"))]
    older = [path for path in older if int(Path(path).name[:4]) < LATEST]
    if _git("diff", "--name-only", f"{commit}^", commit, "--", *older):
        pytest.skip("the newest increment came with changes of older ones: there is no code before it")
    if _git("diff", "--name-only", f"{commit}^", "--", *older):
        _without(commit, directory)
    else:
        _archived(f"{commit}^", directory)
    return directory / "src"


def _archived(commit: str, directory: Path) -> None:
    packed = subprocess.run(
        ["git", "archive", commit, "src"], cwd=ROOT, capture_output=True, check=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(directory, filter="data")


def _without(commit: str, directory: Path) -> None:
    shutil.copytree(ROOT / "src", directory / "src", ignore=shutil.ignore_patterns("__pycache__"))
    change = _git("diff", f"{commit}^", commit, "--", "src")
    undone = subprocess.run(
        ["git", "apply", "--reverse", "-C1", "-"],  # lines nearby may have been edited since
        cwd=directory,
        input=change.encode(),
        capture_output=True,
        check=False,
    )
    assert undone.returncode == 0, undone.stderr.decode()


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.decode() if done.returncode == 0 else ""
