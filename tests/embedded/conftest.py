from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.embedded import processes


@pytest.fixture
def base() -> Iterator[Path]:
    with _open_directory() as path:
        yield path


@pytest.fixture(scope="session")
def session_base() -> Iterator[Path]:
    with _open_directory() as path:
        yield path


@pytest.fixture
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GEN_DURABLE_HOME", "GEN_DURABLE_PG_USER"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def empty_home(base: Path, plain_environment: None) -> Iterator[Path]:
    """Where a home will be; its server, if any, is ended with the test."""
    path = base / "home"
    yield path
    processes.end_everything(path)


@pytest.fixture
def home(session_base: Path, plain_environment: None) -> Iterator[Path]:
    """A home that other tests have used before, which saves an initdb; its server is ended with the test."""
    path = session_base / "home"
    yield path
    processes.end_everything(path)
    (path / "server.log").unlink(missing_ok=True)


@pytest.fixture
def spawn() -> Iterator[processes.Spawn]:
    """Start clients that are ended with the test."""
    started: list[subprocess.Popen[str]] = []

    def spawned(home: Path, *, idle_stop: float = 0.2, code: str = "") -> subprocess.Popen[str]:
        process = processes.client(home, idle_stop=idle_stop, code=code or processes.CLIENT + processes.STAY)
        started.append(process)
        return process

    yield spawned
    for process in started:
        process.kill()
        process.communicate(timeout=10)


@contextmanager
def _open_directory() -> Iterator[Path]:
    """A directory that an account lent by root can pass through; pytest's own are closed to others."""
    path = Path(tempfile.mkdtemp(prefix="gd-")).resolve()
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)
