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
    """The path of a new home; its server is stopped after the test."""
    path = base / "home"
    yield path
    processes.end_everything(path)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A data directory made by the keeper's initdb."""
    with made_once(tmp_path_factory, "embedded-data", _make_data) as path:
        yield path


@pytest.fixture
def made(data: Path, empty_home: Path) -> Path:
    """A home with data, without running initdb."""
    furnish(empty_home, data)
    return empty_home


@pytest.fixture
def home(session_base: Path, data: Path, plain_environment: None) -> Iterator[Path]:
    """A home shared by tests; its server is stopped after the test."""
    path = session_base / "home"
    if not path.exists():
        furnish(path, data)
    yield path
    processes.end_everything(path)
    (path / "server.log").unlink(missing_ok=True)


@pytest.fixture
def spawn() -> Iterator[processes.Spawn]:
    """Start clients that are killed after the test."""
    started: list[processes.Client] = []

    def spawned(home: Path, *, idle_stop: float = 0.2, manner: str = "stays") -> processes.Client:
        client = processes.Client(home, idle_stop, manner)
        started.append(client)
        return client

    yield spawned
    for client in started:
        client.close()


def furnish(home: Path, data: Path) -> None:
    """Make a home with a copy of this data directory."""
    homes.locate(home).make()
    # cp is the fastest way to copy a thousand files with their owner.
    subprocess.run(["cp", "-a", data, home / "data"], check=True)


def _make_data(path: Path) -> None:
    with _open_directory() as base, pytest.MonkeyPatch.context() as environment:
        # An initdb that used it would choose another collation.
        environment.setenv("LC_ALL", "tr_TR.UTF-8")
        home = base / "home"
        with EmbeddedPostgres(home, idle_stop=timedelta(0)):
            pass
        assert processes.holds_within(20, lambda: not processes.is_running(home))
        subprocess.run(["mv", home / "data", path], check=True)


@contextmanager
def _open_directory() -> Iterator[Path]:
    """A directory that other accounts can enter; pytest's own are private."""
    path = Path(tempfile.mkdtemp(prefix="gd-")).resolve()
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)
