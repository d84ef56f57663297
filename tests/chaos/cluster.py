"""A PostgreSQL server that the test may stop, freeze, kill and restart."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from gen_durable.embedded import account, binaries
from gen_durable.embedded.keeper import _bound_to_us
from gen_durable.embedded.probe import is_answering

__all__ = ["DURABLE", "FORGETFUL", "Cluster", "Installation"]

_MEMORY: Final = Path("/dev/shm")
_ENOUGH: Final = 2**30
_PATIENCE: Final = 20.0
# Below the ephemeral ports, so that no other process takes the port while the server is down.
_PORTS: Final = (20_000, 30_000)
FORGETFUL: Final = {"fsync": "off", "full_page_writes": "off"}
# For servers that crash: acknowledged commits must survive.
DURABLE: Final = {"fsync": "on", "full_page_writes": "on"}
_OPTIONS: Final = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "150",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
    "shared_buffers": "32MB",
    "autovacuum_naptime": "5s",
}


class Installation:
    """The binaries, the account that runs them, and a template data directory."""

    def __init__(self, directory: Path, template: Path) -> None:
        self.account = account.choose(directory / "data")
        self.programs = binaries.stage(binaries.find(), directory, self.account)
        self.template = template

    @classmethod
    @contextmanager
    def open(cls, template: Path | None = None) -> Iterator[Installation]:
        """Use this template, or create one."""
        with _directory(is_in_memory=True) as directory:
            installation = cls(directory, template or directory / "template")
            installation.own(directory)
            if template is None:
                installation._initdb()
            yield installation

    @contextmanager
    def cluster(self, options: Mapping[str, str]) -> Iterator[Cluster]:
        """Start a server on a copy of the template; on disk if it has to survive a crash."""
        with _directory(is_in_memory=options.get("fsync") != "on") as directory:
            self.own(directory)
            # cp is the fastest way to copy a thousand files with their owner.
            subprocess.run(["cp", "-a", self.template, directory / "data"], check=True)
            cluster = Cluster(self, directory, options)
            try:
                cluster.start()
                yield cluster
            finally:
                cluster.end()

    @contextmanager
    def standby_of(self, primary: Cluster) -> Iterator[Cluster]:
        """Start a standby; the DSN of the primary then names both."""
        with _directory(is_in_memory=True) as directory:
            self.own(directory)
            copy = ("-D", str(directory / "data"), "-R", "-X", "stream", "-c", "fast", "--no-sync")
            where = ("-h", "127.0.0.1", "-p", str(primary.port), "-U", "postgres")
            assert self.run("pg_basebackup", *copy, *where).wait(_PATIENCE) == 0
            standby = Cluster(self, directory, FORGETFUL)
            try:
                standby.start()
                primary.standbys.append(standby)
                yield standby
            finally:
                standby.end()

    def keep(self, cluster: Cluster) -> None:
        """Use the data directory of this stopped server as the template."""
        shutil.rmtree(self.template)
        (cluster.directory / "data").rename(self.template)

    def run(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a PostgreSQL program that dies with this process."""
        owner = self.account
        return subprocess.Popen(
            [self.programs / program, *arguments],
            user=None if owner is None else owner.uid,
            group=None if owner is None else owner.gid,
            extra_groups=None if owner is None else [owner.gid],
            env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE if program == "initdb" else subprocess.DEVNULL,
            preexec_fn=_bound_to_us(signal.SIGQUIT),
        )

    def own(self, directory: Path) -> None:
        """Chown a directory tree to the account of the server."""
        directory.chmod(0o700)
        for path in (directory, *directory.rglob("*")):
            if self.account is not None:
                os.chown(path, self.account.uid, self.account.gid)
            if path.is_dir():
                path.chmod(0o700)

    def _initdb(self) -> None:
        options = ("--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
        process = self.run("initdb", "-D", str(self.template), "--wal-segsize=1", *options)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors.decode()


class Cluster:
    """One server; it keeps its port over restarts."""

    def __init__(self, installation: Installation, directory: Path, options: Mapping[str, str]) -> None:
        self._installation = installation
        self.directory = directory
        self.port = _free_port()
        self.standbys: list[Cluster] = []
        self._options = {
            **_OPTIONS,
            **options,
            "port": str(self.port),
            "unix_socket_directories": str(directory),
            "logging_collector": "off",
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def dsn(self) -> str:
        hosts = ",".join(f"127.0.0.1:{each.port}" for each in (self, *self.standbys))
        wanted = "&target_session_attrs=read-write" if self.standbys else ""
        return f"postgresql://postgres@{hosts}/postgres?sslmode=disable{wanted}"

    def start(self) -> None:
        """Start it, and wait until it answers, after crash recovery if needed."""
        assert self._process is None
        settings = [word for name, value in self._options.items() for word in ("-c", f"{name}={value}")]
        data = str(self.directory / "data")
        self._process = self._installation.run("postgres", "-D", data, *settings)
        give_up = time.monotonic() + _PATIENCE
        while not is_answering(self.directory / f".s.PGSQL.{self.port}"):
            assert self._process.poll() is None, "the server ended instead of starting"
            assert time.monotonic() < give_up, "the server does not answer"
            time.sleep(0.01)

    def stop(self) -> None:
        """Stop it in fast mode; connections are closed."""
        self._end(signal.SIGINT)

    def crash(self) -> None:
        """Stop it in immediate mode; the next start runs recovery."""
        self._end(signal.SIGQUIT)

    def freeze(self) -> None:
        """Stop all its processes, as in a paused virtual machine or a hanging disk."""
        self._send(signal.SIGSTOP)

    def thaw(self) -> None:
        self._send(signal.SIGCONT)

    def end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.thaw()
            self.crash()

    def _end(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(_PATIENCE)
        self._process = None

    def _send(self, number: signal.Signals) -> None:
        """Signal all its processes, the postmaster first, so that no new children appear."""
        assert self._process is not None
        postmaster = self._process.pid
        os.kill(postmaster, number)
        children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text(encoding="ascii")
        for pid in map(int, children.split()):
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def _free_port() -> int:
    while True:
        port = random.randrange(*_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


@contextmanager
def _directory(*, is_in_memory: bool) -> Iterator[Path]:
    has_room = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _ENOUGH
    parent = _MEMORY if is_in_memory and has_room else None
    path = Path(tempfile.mkdtemp(prefix="gen_durable-chaos-", dir=parent))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
