"""`gen-durable db start`, `stop` and `status` in processes, on a home of their own."""

from __future__ import annotations

import json
import os
import pwd
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest

from gen_durable import Client
from gen_durable._db.migrate import LATEST
from gen_durable.embedded import EmbeddedPostgres, binaries
from tests.cli.program import exit_code, start
from tests.embedded.processes import holds_within, initdbs, is_running, keepers, kill, postmasters, query

pytestmark = pytest.mark.timeout(50)

APP = """
from gen_durable import Context, Done, Machine, Outcome, step

class Hello(Machine[int, int]):
    @step
    async def run(self, ctx: Context[int]) -> Outcome[int]:
        return Done(ctx.state + 1)
"""


class Ran(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def environment(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of `gen-durable` in this process and in new ones. It has data, and its server does not run."""
    monkeypatch.delenv("GEN_DURABLE_DSN", raising=False)
    monkeypatch.setenv("GEN_DURABLE_HOME", str(made))
    return made


@pytest.fixture
def run(environment: Path, tmp_path: Path) -> Run:
    def call(*arguments: str) -> Ran:
        errors = tmp_path / "errors"
        errors.unlink(missing_ok=True)
        ours, its = os.pipe()
        process = start(*arguments, output=its, errors=errors)
        with os.fdopen(ours, encoding="utf-8") as output:
            printed = output.read()
        ran = Ran(exit_code(process), printed, errors.read_text(encoding="utf-8"))
        assert "Traceback" not in ran.err, ran.err
        return ran

    return call


@pytest.fixture
def worker(environment: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    (tmp_path / "app.py").write_text(APP)
    command = [sys.executable, "-m", "gen_durable", "worker", str(tmp_path / "app.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert f"runs Hello v1 on the embedded PostgreSQL in {environment}, " in process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.clause("EMB-1")
def test_start_prints_only_the_dsn_and_outlives_its_shell(environment: Path, run: Run) -> None:
    program = shlex.join([sys.executable, "-m", "gen_durable"])
    script = f'export GEN_DURABLE_DSN=$({program} db start) && printf %s "$GEN_DURABLE_DSN" && {program} db migrate >&2'
    shell = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert shell.stdout == EmbeddedPostgres(environment).dsn
    assert shell.stderr.splitlines() == [
        f"embedded PostgreSQL {binaries.find().major} started in {environment}; it runs until: gen-durable db stop",
        f"schema 'gen_durable' is at version {LATEST} (the latest)",
    ]
    assert query(shell.stdout, "select 1") == 1
    (pid,) = postmasters(environment)
    again = run("db", "start")
    assert (again.code, again.out) == (0, f"{shell.stdout}\n")
    assert " already runs in " in again.err
    assert postmasters(environment) == [pid]


def test_start_that_is_killed_can_be_repeated(empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GEN_DURABLE_DSN", raising=False)
    monkeypatch.setenv("GEN_DURABLE_HOME", str(empty_home))
    command = [sys.executable, "-m", "gen_durable", "db", "start"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as killed:
        assert holds_within(20, lambda: bool(initdbs(empty_home)))
        killed.kill()
    started = subprocess.run(command, capture_output=True, text=True, check=True)
    assert query(started.stdout.strip(), "select 1") == 1
    assert (len(keepers(empty_home)), len(postmasters(empty_home))) == (1, 1)


@pytest.mark.clause("EMB-1")
@pytest.mark.parametrize("killed", [keepers, postmasters], ids=["keeper", "server"])
def test_killed_server_starts_again_and_is_kept(
    environment: Path, run: Run, killed: Callable[[Path], list[int]]
) -> None:
    dsn = run("db", "start").out.strip()
    query(dsn, "create table own as select 42 as answer")
    kill(*killed(environment))
    assert run("db", "start").out.strip() == dsn
    assert query(dsn, "select answer from own") == 42
    assert json.loads(run("db", "status", "--json").out)["embedded"]["kept"]


@pytest.mark.clause("EMB-5")
def test_status_and_stop_before_the_first_start(
    run: Run, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = base / "new"
    monkeypatch.setenv("GEN_DURABLE_HOME", str(home))
    assert run("db", "status") == (
        1,
        f"no embedded server in {home}. Create it: gen-durable db start\n",
        "",
    )
    found = json.loads(run("db", "status", "--json").out)
    assert (found["embedded"]["running"], found["embedded"]["postgres"], found["schema"]) == (
        False,
        None,
        None,
    )
    assert run("db", "stop") == (0, "", f"the embedded server in {home} is not running\n")
    assert not home.exists()


@pytest.mark.clause("EMB-5")
def test_status_of_a_server(environment: Path, run: Run) -> None:
    dsn = EmbeddedPostgres(environment).dsn
    stopped = run("db", "status")
    assert (stopped.code, stopped.err) == (1, "")
    assert stopped.out.splitlines()[0].endswith(
        ": not running; a worker, a client or `gen-durable db start` starts it"
    )
    assert not is_running(environment)

    run("db", "start")
    without_tables = run("db", "status")
    assert without_tables.code == 1
    assert without_tables.out.splitlines()[-1].startswith("schema 'gen_durable' has no gen_durable tables")
    with Client(), closing(psycopg.connect(dsn, application_name="tool\x1b[2J")):
        found = run("db", "status")
        document = json.loads(run("db", "status", "--json").out)
    assert (found.code, found.err) == (0, "")
    head, shown_dsn, home, size, *connected, schema = found.out.splitlines()
    assert head == f"embedded PostgreSQL {binaries.find().major}: running until `gen-durable db stop`"
    assert (shown_dsn.split(), home.split()) == (["dsn", dsn], ["home", str(environment)])
    assert size.split()[0::2] == ["size", "MB"]
    assert connected[0].startswith(f"  client pid {os.getpid()}: ")
    assert sorted(connected[1:]) == ["  1 session of gen_durable", r"  1 session of tool\x1b[2J"]
    assert schema == f"schema 'gen_durable' is at version {LATEST} (the latest)"

    assert document["dsn"] == dsn
    assert document["schema"] == {"name": "gen_durable", "version": LATEST, "latest": LATEST, "usable": True}
    embedded = document["embedded"]
    assert (embedded["running"], embedded["kept"], embedded["home"]) == (True, True, str(environment))
    assert embedded["size"] > 20 * 2**20
    assert [each["pid"] for each in embedded["clients"]] == [os.getpid()]


@pytest.mark.clause("EMB-5")
def test_status_does_not_keep_an_automatic_server_running(environment: Path, run: Run) -> None:
    with Client():
        pass
    last_lease = (environment / "clients.lock").stat().st_mtime_ns
    found = run("db", "status")
    assert found.out.splitlines()[0].endswith(": running; stops when its last worker or client has left")
    assert (environment / "clients.lock").stat().st_mtime_ns == last_lease


def test_status_of_another_server_shows_no_password(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEN_DURABLE_DSN", "postgresql://app:s3cret@127.0.0.1:1/shop")
    for options in ([], ["--json"]):
        refused = run("db", "status", *options)
        assert (refused.code, refused.out) == (2, "")
        assert "postgresql://app@127.0.0.1:1/shop" in refused.err
        assert "s3cret" not in refused.err


@pytest.mark.clause("EMB-2")
def test_stop_names_the_clients_and_changes_nothing(
    environment: Path, run: Run, worker: subprocess.Popen[str]
) -> None:
    run("db", "start")
    refused = run("db", "stop")
    assert (refused.code, refused.out) == (1, "")
    first, client, *_ = refused.err.splitlines()
    assert first == (
        f"nothing was changed: the embedded server in {environment} has clients. To stop it anyway: --force"
    )
    assert client.startswith(f"  client pid {worker.pid}: ")
    assert "app.py" in client
    assert json.loads(run("db", "stop", "--json").out)["stopped"] is False
    assert is_running(environment)

    worker.send_signal(signal.SIGTERM)
    assert worker.wait(20) == 0
    stopped = run("db", "stop")
    assert (stopped.code, stopped.err) == (0, f"stopped the embedded server in {environment}\n")
    assert not is_running(environment)


@pytest.mark.clause("EMB-3")
def test_worker_continues_after_a_forced_stop_and_a_start(
    environment: Path, run: Run, worker: subprocess.Popen[str]
) -> None:
    stopped = run("db", "stop", "--force", "--json")
    assert stopped.code == 0
    found = json.loads(stopped.out)
    assert (found["stopped"], [each["pid"] for each in found["clients"]]) == (True, [worker.pid])
    time.sleep(2.5)
    assert not is_running(environment), "the worker does not restart it"
    run("db", "start")
    assert run("insert", "Hello", "1").code == 0
    waited = run("wait", "1", "--timeout", "20s", "--json")
    assert (waited.code, worker.poll()) == (0, None)


def test_stop_that_is_killed_still_stops_the_server(environment: Path, run: Run) -> None:
    run("db", "start")
    (keeper,) = keepers(environment)
    kill(keeper, number=signal.SIGSTOP)
    stop = subprocess.Popen([sys.executable, "-m", "gen_durable", "db", "stop"])
    assert holds_within(10, lambda: (environment / "mode").read_text() == "stopped")
    stop.kill()
    stop.wait()
    kill(keeper, number=signal.SIGCONT)
    assert holds_within(10, lambda: not is_running(environment))
    assert run("db", "start").code == 0


def test_start_and_stop_warn_if_clients_use_another_server(
    environment: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    dsn = run("db", "start").out.strip()
    monkeypatch.setenv("GEN_DURABLE_DSN", dsn)
    assert "GEN_DURABLE_DSN" not in run("db", "start").err
    monkeypatch.setenv("GEN_DURABLE_DSN", "postgresql://app:s3cret@db.local/shop")
    for command in ("start", "stop"):
        warned = run("db", command)
        assert warned.code == 0
        assert warned.err.splitlines()[-1] == (
            "GEN_DURABLE_DSN names another server, which workers and clients use: postgresql://app@db.local/shop"
        )


def test_obstacles_are_named(
    environment: Path, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    version = environment / "data" / "PG_VERSION"
    version.write_text("9\n")
    found = run("db", "status")
    assert (found.code, found.out.splitlines()[0][:22]) == (1, "embedded PostgreSQL 9:")
    refused = run("db", "start")
    assert (refused.code, refused.out) == (2, "")
    assert "was created by PostgreSQL 9, but" in refused.err
    assert "GEN_DURABLE_PG_BIN" in refused.err
    assert not (environment / "mode").exists()

    monkeypatch.setenv("GEN_DURABLE_PG_BIN", str(tmp_path))
    refused = run("db", "start")
    assert (refused.code, refused.out) == (2, "")
    assert "GEN_DURABLE_PG_BIN must contain working postgres and initdb programs" in refused.err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_server_of_another_account_is_refused(environment: Path, run: Run) -> None:
    before = environment.stat()
    os.chown(environment, pwd.getpwnam("nobody").pw_uid, -1)
    try:
        for command in ("start", "stop"):
            refused = run("db", command)
            assert (refused.code, refused.out) == (2, "")
            assert f"{environment} belongs to uid " in refused.err
            assert "GEN_DURABLE_HOME" in refused.err
    finally:
        os.chown(environment, before.st_uid, before.st_gid)


def test_dev_creates_the_tables_and_releases_the_server(environment: Path, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    command = [sys.executable, "-m", "gen_durable", "dev", "app.py", "--port=0"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(3)]
            process.send_signal(signal.SIGTERM)
            assert (process.wait(), process.stdout.read()) == (0, "")
        finally:
            process.kill()
    assert any(
        f" dev on the embedded PostgreSQL in {environment}, schema gen_durable" in line for line in lines
    )
    assert "worker runs Hello v1, queues default=10\n" in lines
    found = EmbeddedPostgres(environment).status()
    assert found.is_running
    assert not found.clients
