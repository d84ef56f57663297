"""Obstacles to a start, and their error messages."""

from __future__ import annotations

import inspect
import os
import shutil
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from gen_durable.embedded import EmbeddedPostgres, binaries, unsupported
from gen_durable.embedded import home as homes
from gen_durable.embedded.probe import is_answering
from gen_durable.errors import SettingsError, UnreachableError
from tests.embedded.conftest import furnish
from tests.embedded.processes import (
    KEEP,
    end_everything,
    holds_within,
    is_running,
    keepers,
    postmasters,
    query,
)

AT_ONCE = timedelta(0)

pytestmark = pytest.mark.timeout(40)


@pytest.fixture
def long_home(empty_home: Path, data: Path) -> Iterator[Path]:
    path = empty_home / ("long" * 30) / ("longer" * 20)
    furnish(path, data)
    yield path
    end_everything(path)
    shutil.rmtree(homes.locate(path).socket_directory, ignore_errors=True)


@pytest.fixture
def without_programs(monkeypatch: pytest.MonkeyPatch, base: Path) -> None:
    monkeypatch.delenv("GEN_DURABLE_PG_BIN", raising=False)
    monkeypatch.setenv("PATH", str(base))
    monkeypatch.setattr(binaries, "_WHEELS", ("gen_durable_no_such_wheel",))
    monkeypatch.setattr(binaries, "_DEBIAN", base)


def test_stale_pid_file_with_a_foreign_pid_is_ignored(home: Path) -> None:
    with EmbeddedPostgres(home, idle_stop=AT_ONCE) as server:
        query(server.ensure(), KEEP)
        recorded = {
            path: path.read_text() for path in (home / "data/postmaster.pid", home / "run/.s.PGSQL.5432.lock")
        }
    assert holds_within(10, lambda: not is_running(home))

    owner = (home / "data").stat()
    # PostgreSQL ignores pids of other accounts, so this process runs as the same account.
    stranger = subprocess.Popen(["sleep", "60"], user=owner.st_uid)
    try:
        for path, text in recorded.items():
            path.write_text(f"{stranger.pid}\n" + text.partition("\n")[2])
            os.chown(path, owner.st_uid, owner.st_gid)
            path.chmod(0o600)
        with EmbeddedPostgres(home, idle_stop=AT_ONCE) as server:
            assert query(server.ensure(), "select answer from kept") == 42
            assert stranger.poll() is None
            assert stranger.pid not in postmasters(home)
    finally:
        stranger.kill()
        stranger.wait()


def test_server_without_a_keeper_is_replaced(home: Path) -> None:
    with EmbeddedPostgres(home, idle_stop=AT_ONCE) as server:
        dsn = server.ensure()
        query(dsn, KEEP)
    assert holds_within(10, lambda: not is_running(home))

    postgres = binaries.find().directory / "postgres"
    settings = ["-c", f"unix_socket_directories={home}/run", "-c", "listen_addresses="]
    with (home / "server.log").open("ab") as log:
        orphan = subprocess.Popen(
            [postgres, "-D", home / "data", *settings], user=(home / "data").stat().st_uid, stderr=log
        )
    try:
        assert holds_within(10, lambda: is_answering(home / "run" / ".s.PGSQL.5432"))
        assert query(server.ensure(), "select answer from kept") == 42
        assert orphan.wait(10) == 0
        assert len(keepers(home)) == 1
    finally:
        orphan.kill()
        orphan.wait()
        server.close()


def test_path_too_long_for_a_socket_is_rejected(long_home: Path) -> None:
    with EmbeddedPostgres(long_home, idle_stop=AT_ONCE) as server:
        dsn = server.ensure()
        assert query(dsn, "select 1") == 1
        assert query(dsn, "show data_directory") == str(long_home / "data")
        sockets = homes.locate(long_home).socket_directory
        assert sockets.stat().st_mode & 0o777 == 0o700
    assert holds_within(10, lambda: not is_running(long_home))

    sockets.chmod(0o777)
    with pytest.raises(UnreachableError, match="is not a directory that only uid"):
        server.ensure()
    sockets.rmdir()
    sockets.symlink_to(long_home)
    with pytest.raises(UnreachableError, match="is not a directory that only uid"):
        server.ensure()
    sockets.unlink()


def test_data_of_another_major_version_is_rejected(empty_home: Path) -> None:
    (empty_home / "data").mkdir(parents=True)
    (empty_home / "data" / "PG_VERSION").write_text("9\n")
    with pytest.raises(UnreachableError) as caught:
        EmbeddedPostgres(empty_home).ensure()
    assert "was created by PostgreSQL 9" in caught.value.cause
    assert "GEN_DURABLE_PG_BIN" in caught.value.advice
    assert not is_running(empty_home)


def test_start_failure_shows_the_server_log(home: Path) -> None:
    server = EmbeddedPostgres(home, options={"work_mem": "plenty"})
    with pytest.raises(UnreachableError, match=r"FATAL: .*work_mem") as caught:
        server.ensure()
    assert str(home / "server.log") in caught.value.advice
    assert len(str(caught.value).splitlines()) <= 4
    assert not is_running(home)


def test_large_log_is_rotated(home: Path) -> None:
    homes.locate(home).make()
    (home / "server.log").touch()
    os.truncate(home / "server.log", 9 * 2**20)
    with EmbeddedPostgres(home, idle_stop=AT_ONCE):
        assert (home / "server.log").stat().st_size < 2**20
        assert (home / "server.log.old").stat().st_size == 9 * 2**20


def test_unwritable_home_is_rejected(base: Path, empty_home: Path) -> None:
    (base / "file").write_text("")
    with pytest.raises(UnreachableError, match="GEN_DURABLE_HOME"):
        EmbeddedPostgres(base / "file" / "empty_home").ensure()


@pytest.mark.usefixtures("without_programs")
def test_missing_binaries_are_reported(empty_home: Path) -> None:
    for server in (EmbeddedPostgres(empty_home), EmbeddedPostgres()):
        with pytest.raises(UnreachableError) as caught:
            server.ensure()
        assert "pip install 'gen_durable[embedded]'" in caught.value.advice
        assert "GEN_DURABLE_DSN" in caught.value.advice


@pytest.mark.usefixtures("without_programs")
def test_newest_system_binaries_are_used(base: Path) -> None:
    for major in (9, 14, 16):
        _pretend(base / str(major) / "bin", major)
    assert binaries.find() == binaries.Binaries(base / "16" / "bin", 16)


@pytest.mark.usefixtures("without_programs")
def test_binaries_on_the_path_are_used(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend(base / "some" / "where", 15)
    monkeypatch.setenv("PATH", str(base / "some" / "where"))
    assert binaries.find() == binaries.Binaries(base / "some" / "where", 15)


@pytest.mark.usefixtures("without_programs")
def test_wheel_binaries_precede_system_binaries(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend(base / "99" / "bin", 99)
    package = base / "packages" / "gen_durable_some_wheel"
    _pretend(package / "pginstall" / "bin", 16)
    _pretend(package / "pginstall18" / "bin", 18)
    # Importing it would fail; the module is only located.
    (package / "__init__.py").write_text("raise AssertionError\n")
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.setattr(binaries, "_WHEELS", ("gen_durable_no_such_wheel", "gen_durable_some_wheel"))
    assert binaries.find() == binaries.Binaries(package / "pginstall18" / "bin", 18)


def test_configured_binaries_come_first_and_must_work(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend(base / "mine", 17)
    monkeypatch.setenv("GEN_DURABLE_PG_BIN", str(base / "mine"))
    assert binaries.find() == binaries.Binaries(base / "mine", 17)
    monkeypatch.setenv("GEN_DURABLE_PG_BIN", str(base))
    with pytest.raises(SettingsError, match="GEN_DURABLE_PG_BIN"):
        binaries.find()


def test_default_home(base: Path, empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(base)
    major = binaries.find().major
    default = homes.locate(None)
    assert default.path == base / ".gen_durable" / f"pg{major}"
    default.make()
    assert (base / ".gen_durable" / ".gitignore").read_text() == "*\n"
    default.make()

    monkeypatch.setenv("GEN_DURABLE_HOME", str(empty_home))
    assert homes.locate(None).path == empty_home
    assert homes.locate(base / "given").path == base / "given"


def test_windows_is_rejected_with_advice() -> None:
    assert inspect.signature(unsupported.EmbeddedPostgres) == inspect.signature(EmbeddedPostgres)
    with pytest.raises(UnreachableError, match="GEN_DURABLE_DSN"), unsupported.EmbeddedPostgres():
        pass


def _pretend(directory: Path, major: int) -> None:
    directory.mkdir(parents=True)
    for program in ("postgres", "initdb"):
        path = directory / program
        path.write_text(f"#!/bin/sh\necho '{program} (PostgreSQL) {major}.1'\n")
        path.chmod(0o755)
