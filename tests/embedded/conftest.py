from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from gen_durable.embedded import EmbeddedPostgres
from gen_durable.embedded import home as homes
from tests.embedded import processes
from tests.embedded.once import made_once


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


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What the keeper's initdb has made, from a server at rest."""
    with made_once(tmp_path_factory, "embedded-data", _make_data) as path:
        yield path


@pytest.fixture
def made(data: Path, empty_home: Path) -> Path:
    """A home that has data already, for tests that are not about initdb."""
    furnish(empty_home, data)
    return empty_home


@pytest.fixture
def home(session_base: Path, data: Path, plain_environment: None) -> Iterator[Path]:
    """A home that other tests have used before; its server is ended with the test."""
    path = session_base / "home"
    if not path.exists():
        furnish(path, data)
    yield path
    processes.end_everything(path)
    (path / "server.log").unlink(missing_ok=True)


@pytest.fixture
def spawn() -> Iterator[processes.Spawn]:
    """Start clients that are ended with the test."""
    started: list[processes.Client] = []

    def spawned(home: Path, *, idle_stop: float = 0.2, manner: str = "stays") -> processes.Client:
        client = processes.Client(home, idle_stop, manner)
        started.append(client)
        return client

    yield spawned
    for client in started:
        client.close()


def furnish(home: Path, data: Path) -> None:
    """Make a home with a copy of these data."""
    homes.locate(home).make()
    # A thousand files, with their owner: a program that does nothing else is the quickest.
    subprocess.run(["cp", "-a", data, home / "data"], check=True)


def _make_data(path: Path) -> None:
    with _open_directory() as base, pytest.MonkeyPatch.context() as environment:
        # An initdb that heeds it makes another collation.
        environment.setenv("LC_ALL", "tr_TR.UTF-8")
        home = base / "home"
        with EmbeddedPostgres(home, idle_stop=timedelta(0)):
            pass
        assert processes.holds_within(20, lambda: not processes.is_running(home))
        subprocess.run(["mv", home / "data", path], check=True)


@contextmanager
def _open_directory() -> Iterator[Path]:
    """A directory that an account lent by root can pass through; pytest's own are closed to others."""
    path = Path(tempfile.mkdtemp(prefix="gd-")).resolve()
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)
