"""Files planted by another account are not followed, and replaceable homes are rejected."""

from __future__ import annotations

import logging
import os
import pwd
from datetime import timedelta
from pathlib import Path

import pytest

from gen_durable.embedded import EmbeddedPostgres, binaries
from gen_durable.embedded import home as homes
from gen_durable.embedded.keeper import Keeper, KeeperConfig
from gen_durable.errors import UnreachableError
from tests.embedded.processes import is_running

AT_ONCE = timedelta(0)
SECRET = "4711\nsecret\n"
is_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")

pytestmark = pytest.mark.timeout(40)


@pytest.fixture
def secret(base: Path) -> Path:
    path = base / "secret"
    path.write_text(SECRET)
    return path


def put(kind: str, place: Path, secret: Path) -> None:
    place.unlink(missing_ok=True)
    match kind:
        case "symlink":
            place.symlink_to(secret)
        case "hard link":
            os.link(secret, place)
        case "fifo":
            os.mkfifo(place)
        case _:
            place.mkdir()


@pytest.mark.parametrize("kind", ["symlink", "hard link", "fifo", "directory"])
@pytest.mark.parametrize("name", ["postmaster.pid", "PG_VERSION"])
def test_planted_file_in_the_data_is_neither_followed_nor_quoted(
    made: Path, secret: Path, kind: str, name: str
) -> None:
    put(kind, made / "data" / name, secret)
    server = EmbeddedPostgres(made, idle_stop=AT_ONCE)
    with pytest.raises(UnreachableError, match=rf"{name} is not a regular file of ") as refused:
        server.ensure()
    assert "secret" not in str(refused.value).replace(str(secret), "")
    assert secret.read_text() == SECRET
    assert not is_running(made)


@pytest.mark.parametrize("kind", ["symlink", "hard link", "fifo", "directory"])
def test_keeper_does_not_write_through_a_planted_pid_file(base: Path, secret: Path, kind: str) -> None:
    """Planted while the server runs: the keeper checks again before it starts the next one."""
    (base / "data").mkdir()
    put(kind, base / "data" / "postmaster.pid", secret)
    keeper = Keeper.__new__(Keeper)
    keeper._data = base / "data"
    keeper._config = KeeperConfig("", "", "", "", 0, {}, None)
    with pytest.raises(PermissionError, match=r"postmaster\.pid is not a regular file of "):
        keeper._disown_postmaster_pid()
    with pytest.raises(PermissionError):
        keeper._was_ready(4711)
    assert secret.read_text() == SECRET


def test_keeper_removes_no_sockets_behind_a_link(base: Path) -> None:
    for name in ("elsewhere", "run"):
        (base / name).mkdir()
        (base / name / ".s.PGSQL.5432").touch()
    keeper = Keeper.__new__(Keeper)
    keeper._config = KeeperConfig("", "", "", str(base / "run" / ".s.PGSQL.5432"), 0, {}, None)
    keeper._remove_sockets()
    assert list((base / "run").iterdir()) == []
    (base / "run").rmdir()
    (base / "run").symlink_to(base / "elsewhere")
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        keeper._remove_sockets()
    assert len(list((base / "elsewhere").iterdir())) == 1


@pytest.mark.parametrize(
    ("parent", "home", "problem"),
    [
        (0o777, 0o711, "can be written by other accounts"),
        (0o1777, 0o711, None),
        (0o711, 0o777, "can be written by other accounts"),
        (0o711, 0o1777, "can be written by other accounts"),
    ],
)
def test_home_that_others_could_replace_is_rejected(
    base: Path, plain_environment: None, parent: int, home: int, problem: str | None
) -> None:
    above = base / "above"
    (above / "home").mkdir(parents=True)
    (above / "home").chmod(home)
    above.chmod(parent)
    located = homes.locate(above / "home")
    if problem is None:
        located.make()
        return
    with pytest.raises(UnreachableError, match=problem) as refused:
        located.make()
    assert "GEN_DURABLE_HOME" in refused.value.advice
    with pytest.raises(UnreachableError, match=problem):
        EmbeddedPostgres(above / "home").ensure()
    assert list((above / "home").iterdir()) == []


@is_root
@pytest.mark.parametrize("owned", ["above", "above/home"])
def test_home_below_a_directory_of_another_account_is_rejected(
    base: Path, plain_environment: None, owned: str
) -> None:
    (base / "above" / "home").mkdir(parents=True)
    os.chown(base / owned, pwd.getpwnam("nobody").pw_uid, -1)
    with pytest.raises(UnreachableError, match=rf"{base / owned} belongs to uid \d+ \(nobody\)"):
        EmbeddedPostgres(base / "above" / "home").ensure()
    assert list((base / "above" / "home").iterdir()) == []


@is_root
def test_missing_home_is_not_made_below_a_directory_of_another_account(
    base: Path, plain_environment: None
) -> None:
    (base / "above").mkdir()
    os.chown(base / "above", pwd.getpwnam("nobody").pw_uid, -1)
    with pytest.raises(UnreachableError, match="belongs to uid"):
        EmbeddedPostgres(base / "above" / "home").ensure()
    assert list((base / "above").iterdir()) == []


@is_root
def test_default_home_of_root_is_not_below_a_directory_of_another_account(
    base: Path, plain_environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root of a container in a mounted project: the home is elsewhere."""
    monkeypatch.setattr(homes, "_SYSTEM", base / "system")
    project = base / "project"
    project.mkdir()
    os.chown(project, pwd.getpwnam("nobody").pw_uid, -1)
    monkeypatch.chdir(project)
    assert homes.locate(None).path.parent == base / "system"
    # Existing data is not silently replaced by an empty server.
    major = binaries.find().major
    (project / ".gen_durable" / f"pg{major}" / "data").mkdir(parents=True)
    with pytest.raises(UnreachableError, match="belongs to uid"):
        homes.locate(None).make()


@is_root
@pytest.mark.parametrize("link", [".gen_durable", ".gen_durable/pg{major}"])
def test_link_of_another_account_does_not_choose_the_home(
    base: Path, plain_environment: None, monkeypatch: pytest.MonkeyPatch, link: str
) -> None:
    """The target is ours and safe, but another account chose that we write there."""
    monkeypatch.setattr(homes, "_SYSTEM", base / "system")
    (base / "ours").mkdir()
    (base / "project").mkdir()
    place = base / "project" / link.format(major=binaries.find().major)
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(base / "ours")
    monkeypatch.chdir(base / "project")
    assert homes.locate(None).path.is_relative_to(base / "ours")  # a link of our own is followed
    os.chown(place, pwd.getpwnam("nobody").pw_uid, -1, follow_symlinks=False)
    assert homes.locate(None).path.parent == base / "system"
    with pytest.raises(UnreachableError, match=r"is a link that belongs to uid \d+ \(nobody\)"):
        EmbeddedPostgres(place).ensure()
    assert list((base / "ours").iterdir()) == []


@is_root
def test_server_as_nobody_logs_a_warning(
    empty_home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("GEN_DURABLE_PG_USER", "nobody")
    with (
        caplog.at_level(logging.WARNING, "gen_durable.embedded"),
        EmbeddedPostgres(empty_home, idle_stop=AT_ONCE),
    ):
        pass
    assert [record.getMessage() for record in caplog.records if "as 'nobody'" in record.getMessage()]
