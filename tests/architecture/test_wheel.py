"""The wheel has everything that the package reads: SQL, and the files of the dashboard."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    directory = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(directory)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = directory.glob("*.whl")
    return zipfile.ZipFile(built)


def test_wheel_has_every_file_of_the_package(wheel: zipfile.ZipFile) -> None:
    source = ROOT / "src"
    files = {
        path.relative_to(source).as_posix()
        for path in (source / "gen_durable").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert files - set(wheel.namelist()) == set()
    kinds = {Path(name).suffix for name in files}
    assert kinds >= {".py", ".sql", ".typed", ".html", ".js", ".css", ".woff2", ".svg"}


def test_extra_of_the_dashboard_is_complete(wheel: zipfile.ZipFile) -> None:
    (path,) = [name for name in wheel.namelist() if name.endswith("/METADATA")]
    requirements = Parser().parsestr(wheel.read(path).decode()).get_all("Requires-Dist") or []
    needed = [line.partition(">")[0].partition(";")[0] for line in requirements if "'dash'" in line]
    assert sorted(needed) == ["click", "jsonschema", "rich", "starlette", "uvicorn"]
