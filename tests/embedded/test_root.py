"""Root runs the server under another account, and changes no other permissions."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from gen_durable.embedded import EmbeddedPostgres, account, binaries
from gen_durable.embedded import home as homes
from gen_durable.errors import SettingsError
from tests.embedded.processes import end_everything, postmasters, query

pytestmark = [
    pytest.mark.timeout(40),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root lends accounts"),
]


@pytest.fixture
def closed(base: Path) -> Path:
    """A private directory, like /root."""
    path = base / "closed"
    path.mkdir(0o700)
    return path


@pytest.fixture
def system(base: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Instead of /var/lib/gen_durable."""
    path = base / "system"
    monkeypatch.setattr(homes, "_SYSTEM", path)
    yield path
    for home in path.glob("*"):
        end_everything(home)


@pytest.fixture
def any_umask() -> Iterator[None]:
    former = os.umask(0o077)
    yield
    os.umask(former)


@pytest.mark.usefixtures("plain_environment", "any_umask")
def test_permissions_of_user_files_are_unchanged(
    closed: Path, system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = closed / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    monkeypatch.setenv("GEN_DURABLE_PG_BIN", str(_private_programs(closed)))
    monkeypatch.setenv("GEN_DURABLE_PG_USER", "nobody")
    before, accounts = _modes(closed), Path("/etc/passwd").read_bytes()

    with EmbeddedPostgres(idle_stop=timedelta(0)) as server:
        dsn = server.ensure()
        assert query(dsn, "select count(*) from pg_timezone_names where name = 'UTC'") == 1
        assert server.home.parent == system
        assert server.home.name.startswith("pg")
        (pid,) = postmasters(server.home)
        assert Path(f"/proc/{pid}").stat().st_uid == pwd.getpwnam("nobody").pw_uid

    assert _modes(closed) == before
    assert Path("/etc/passwd").read_bytes() == accounts
    assert list(project.iterdir()) == []


@pytest.mark.usefixtures("any_umask")
def test_home_is_accessible_to_the_account_at_any_umask(base: Path, empty_home: Path) -> None:
    nested = base / "a" / "b" / "empty_home"
    homes.locate(nested).make()
    assert homes.locate(nested).path == nested
    assert [path.stat().st_mode & 0o777 for path in (nested, nested.parent, base / "a")] == [0o711] * 3


def test_copied_binaries_are_kept_and_old_copies_removed(closed: Path, empty_home: Path) -> None:
    homes.locate(empty_home).make()
    found = binaries.Binaries(_private_programs(closed), 0)
    owner = _nobody()
    (empty_home / "programs-old").mkdir()

    staged = binaries.stage(found, empty_home, owner)
    made = staged.stat().st_mtime_ns
    assert binaries.stage(found, empty_home, owner) == staged
    assert staged.stat().st_mtime_ns == made
    assert account.can_run(owner, staged / "postgres")
    assert [path.name for path in empty_home.glob("programs-*")] == [staged.relative_to(empty_home).parts[0]]


def test_accessible_binaries_are_not_copied(empty_home: Path) -> None:
    found = binaries.find()
    if account.can_run(_nobody(), found.directory / "postgres"):
        assert binaries.stage(found, empty_home, _nobody()) == found.directory


def test_owner_of_the_data_is_the_default_account(empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (empty_home / "data").mkdir(parents=True)
    os.chown(empty_home / "data", _nobody().uid, _nobody().gid)
    assert account.choose(empty_home / "data") == _nobody()
    monkeypatch.setenv("GEN_DURABLE_PG_USER", "daemon")
    chosen = account.choose(empty_home / "data")
    assert chosen is not None
    assert chosen.name == "daemon"


@pytest.mark.parametrize("name", ["root", "gen-durable-no-such-account"])
def test_unusable_account_is_rejected(empty_home: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("GEN_DURABLE_PG_USER", name)
    with pytest.raises(SettingsError, match="GEN_DURABLE_PG_USER"):
        account.choose(empty_home / "data")


def _nobody() -> account.Account:
    entry = pwd.getpwnam("nobody")
    return account.Account("nobody", entry.pw_uid, entry.pw_gid)


def _private_programs(directory: Path) -> Path:
    """Binaries installed with a umask of 077."""
    source = binaries.find().directory.resolve()
    if not (source.parent / "share").is_dir():
        pytest.skip("these programs are not of one piece that could be copied")
    target = directory / "site-packages"
    target.mkdir()
    binaries._copy(source.parent, source.name, target)
    for path in target.rglob("*"):
        path.chmod(0o700 if path.is_dir() or path.stat().st_mode & 0o100 else 0o600)
    target.chmod(0o700)
    return target / source.parents[1].name / source.parent.name / source.name


def _modes(directory: Path) -> dict[Path, tuple[int, int]]:
    paths = (directory, *directory.parents, *directory.rglob("*"))
    return {path: (path.stat().st_mode, path.stat().st_uid) for path in paths}
