"""`gen-durable worker` in a process of its own."""

from __future__ import annotations

import os
import re
import signal
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner

from gen_durable import Context, Done, Machine, Outcome, Status, Worker, step, upgrade
from gen_durable.cli.root import root
from gen_durable.cli.worker_options import served
from gen_durable.testing import Harness
from tests.cli.program import exit_code, start

APP = """
from gen_durable import Context, Done, Machine, Outcome, step

class Hello(Machine[int, int], version=3):
    @step
    async def run(self, ctx: Context[int]) -> Outcome[int]:
        return Done(ctx.state)

class Mail(Hello, name="mail", queue="mail"):
    pass
"""

# It logs, then stops its process.
LOGGING_APP = """
import asyncio, logging, os, signal
from gen_durable import Context, Done, Machine, Outcome, step

log = logging.getLogger("shop")

class Hello(Machine[int, int]):
    @step
    async def run(self, ctx: Context[int]) -> Outcome[int]:
        log.debug("not shown")
        log.info("hello %d", ctx.state)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.5)
        return Done(ctx.state)
"""
TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"


@pytest.fixture
def app(tmp_path: Path) -> Path:
    path = tmp_path / "app.py"
    path.write_text(APP)
    return path


@pytest.fixture
def schema() -> Iterator[str]:
    name = f"cli_{uuid.uuid4().hex[:12]}"
    yield name
    CliRunner().invoke(root, ["db", "down", "--yes", "--schema", name])


def run_until_signal(stop: signal.Signals, errors: Path, *arguments: str) -> tuple[int, str, str]:
    """Run `gen-durable worker …`, stop it after its first line, and return exit code, stdout and stderr."""
    ours, its = os.pipe()
    process = start("worker", *arguments, output=its, errors=errors)
    with os.fdopen(ours, encoding="utf-8") as output:
        line = output.readline()
        process.send(stop)
        printed = line + output.read()
    return exit_code(process), printed, errors.read_text(encoding="utf-8")


@pytest.mark.clause("CLI-5")
def test_start_line_and_graceful_stop(app: Path, schema: str, tmp_path: Path) -> None:
    for stop in (signal.SIGTERM, signal.SIGINT):
        code, printed, errors = run_until_signal(
            stop, tmp_path / "errors", str(app), "--queue", "default=4", "--schema", schema
        )
        assert printed.startswith("gen-durable "), stop
        assert "Hello v3, mail v1" in printed, stop
        assert printed.endswith("queues default=4; queue mail left to other workers\n"), stop
        assert (code, printed.count("\n"), errors) == (0, 1, ""), stop


@pytest.mark.parametrize(
    ("queue", "hint"), [("defualt=3", "; did you mean 'default'?"), ("x=3", ""), ("mail=3", None)]
)
def test_queue_without_machines_warns(
    app: Path, schema: str, tmp_path: Path, queue: str, hint: str | None
) -> None:
    code, printed, errors = run_until_signal(
        signal.SIGTERM, tmp_path / "errors", str(app), "--queue", queue, "--schema", schema
    )
    warning = "WARNING worker serves none of the queues of its machines (default, mail)"
    assert (code, printed.count("\n")) == (0, 1)
    assert errors.partition(" WARNING")[2] == ("" if hint is None else f"{warning}{hint}\n"[7:])
    others = "queue default" if hint is None else "queues default, mail"
    assert printed.endswith(f"; {others} left to other workers\n")


def log_of_a_run(tmp_path: Path, app: str, dsn: str, *options: str) -> list[str]:
    """Run a worker until one of its steps stops it, and return its log."""
    (tmp_path / "app.py").write_text(app)
    errors = tmp_path / "errors"
    errors.write_text("")
    with psycopg.connect(dsn) as connection:
        connection.execute("select gen_durable.insert('Hello', '7', step => 'run')")
    ours, its = os.pipe()
    process = start("worker", str(tmp_path / "app.py"), "--dsn", dsn, *options, output=its, errors=errors)
    with os.fdopen(ours, encoding="utf-8") as output:
        output.read()
    assert exit_code(process) == 0
    return errors.read_text(encoding="utf-8").splitlines()


STOPPING = "stopping: 1 step is running, waiting up to 25s; a second signal skips the wait"


def test_log_lines_have_time_and_level(durable: Harness, durable_dsn: str, tmp_path: Path) -> None:
    hello, stopping = log_of_a_run(tmp_path, LOGGING_APP, durable_dsn)
    assert re.fullmatch(rf"{TIME} INFO \[Hello 1 run 1\] hello 7", hello)
    assert re.fullmatch(rf"{TIME} WARNING {STOPPING}", stopping)
    durable.assert_done(1, 7)


def test_logging_of_the_application_is_kept(durable: Harness, durable_dsn: str, tmp_path: Path) -> None:
    for number, set_up in enumerate(
        [
            "logging.basicConfig(format='own %(message)s')",
            "logging.getLogger('gen_durable').addHandler(logging.StreamHandler())",
        ]
    ):
        printed = log_of_a_run(tmp_path, f"{LOGGING_APP}\n{set_up}\n", durable_dsn)
        assert printed == [f"{'' if number else 'own '}{STOPPING}"]


def test_every_process_logs(durable: Harness, durable_dsn: str, tmp_path: Path) -> None:
    printed = log_of_a_run(
        tmp_path, LOGGING_APP.replace("getpid", "getppid"), durable_dsn, "--processes", "2"
    )
    # Both processes may or may not have been ready before the end.
    output = [re.sub(rf"{TIME} ", "", line) for line in printed if " is worker " not in line]
    assert output == ["INFO [Hello 1 run 1] hello 7", f"WARNING {STOPPING}"]


@pytest.mark.clause("CLI-5", "ROUTE-2")
@pytest.mark.parametrize(
    ("options", "machines", "end", "warning"),
    [
        (
            ["--prefix", "ma", "--prefix", "media.=20"],
            "mail v1",
            ", prefixes ma=10, media.=20\n",
            "has prefix 'media.'; its instances fail as no_handler_registered (to leave them",
        ),
        (
            ["--prefix", "x", "--on-unknown", "leave"],
            "no machine",
            ", prefixes x=10\n",
            "its instances are left to other workers",
        ),
        (["--prefix", "Hel"], "Hello v3", ", prefixes Hel=10\n", ""),
        (
            ["--prefix", "Hel", "--queue", "mail=2", "--on-unknown", "leave"],
            "Hello v3, mail v1",
            ", queues mail=2, prefixes Hel=10\n",
            "",
        ),
    ],
)
def test_start_line_names_prefixes(
    app: Path, durable_dsn: str, tmp_path: Path, options: list[str], machines: str, end: str, warning: str
) -> None:
    code, line, errors = run_until_signal(
        signal.SIGTERM, tmp_path / "errors", str(app), "--dsn", durable_dsn, *options
    )
    assert code == 0
    assert f" runs {machines} on " in line
    assert line.endswith(end)
    assert warning in errors
    assert errors.count("\n") == bool(warning)


def test_start_line_names_versions_that_are_run_by_upgrade() -> None:
    class Second(Machine[int, int], name="many", version=2):
        @upgrade(from_version=1)
        @staticmethod
        def to_second(state: int) -> int:
            return state

        @step
        async def run(self, ctx: Context[int]) -> Outcome[int]:
            return Done(ctx.state)

    class Fourth(Second, name="many", version=4):
        @upgrade(from_version=2)
        @staticmethod
        def to_third(state: int) -> int:
            return state

        @upgrade(from_version=3)
        @staticmethod
        def to_fourth(state: int) -> int:
            return state

    def named(*machines: type[Machine[int, int]]) -> str:
        return served(Worker(machines, dsn="postgresql://localhost/none"))[0]

    assert named(Second) == "many v2 (and v1 by upgrade)"
    assert named(Fourth) == "many v4 (and v1, v2, v3 by upgrade)"
    assert named(Second, Fourth) == "many v2, many v4 (and v1, v3 by upgrade)"


@pytest.mark.clause("ROUTE-7", "ROUTE-8")
@pytest.mark.parametrize("option", [[], ["--on-unknown", "fail"], ["--on-unknown", "leave"]])
def test_on_unknown(app: Path, durable: Harness, durable_dsn: str, tmp_path: Path, option: list[str]) -> None:
    with psycopg.connect(durable_dsn) as connection:
        connection.execute("select gen_durable.insert('mail', '7', step => 'run', queue => 'elsewhere')")
        connection.execute("select gen_durable.insert('mail.new.v1', step => 'run')")
        connection.execute("select gen_durable.insert('Hello', '7', step => 'run')")
    output = os.open(os.devnull, os.O_WRONLY)
    process = start(
        *("worker", str(app), "--dsn", durable_dsn, "--prefix", "mail", *option),
        output=output,
        errors=tmp_path / "errors",
    )
    durable.wait(1, timeout=timedelta(seconds=30))
    if option[-1:] != ["leave"]:
        durable.wait(2, timeout=timedelta(seconds=30))
    process.send(signal.SIGTERM)
    assert exit_code(process) == 0
    durable.assert_done(1, 7)
    unknown, elsewhere = durable.get(2), durable.get(3)
    assert unknown is not None
    assert elsewhere is not None
    assert elsewhere.status is Status.RUNNABLE
    if option[-1:] == ["leave"]:
        assert unknown.status is Status.RUNNABLE
    else:
        durable.assert_failed(2, match="^no_handler_registered")


def test_unreachable_database(app: Path) -> None:
    dsn = "postgresql://app:s3:cret@127.0.0.1:1/shop"
    failed = CliRunner().invoke(root, ["worker", str(app), "--dsn", dsn])
    assert (failed.exit_code, failed.stdout) == (2, "")
    assert "cannot reach PostgreSQL at postgresql://app@127.0.0.1:1/shop" in failed.stderr
    assert len(failed.stderr.splitlines()) <= 4
    assert "Traceback" not in failed.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.py"], "nowhere.py does not exist"),
        (
            ["{app}:worker", "--threads", "3"],
            "is a Worker, which has its settings in the code. Remove --threads, or give a list of machines.",
        ),
        (["{app}", "--queue", "a=1", "--queue", "a=2"], "a queue is given twice"),
        (
            ["{app}", "--lease", "2s", "--heartbeat", "2s"],
            "settings.heartbeat must be at most half of settings.lease",
        ),
        (["{app}", "--prefix", "a.", "--prefix", "a.=2"], "a prefix is given twice"),
        (["{app}:worker", "--prefix", "a."], "is a Worker, which has its settings in the code"),
        (["{app}:worker", "--on-unknown", "leave"], "is a Worker, which has its settings in the code"),
        (["{app}", "--settings", "nowhere.toml"], "nowhere.toml cannot be read"),
    ],
)
def test_usage_errors(app: Path, arguments: list[str], message: str) -> None:
    if arguments[0] == "{app}:worker":
        app.write_text(f"{APP}\nfrom gen_durable import Worker\nworker = Worker([Hello])\n")
    refused = CliRunner().invoke(root, ["worker", *(each.format(app=app) for each in arguments)])
    assert refused.exit_code == 2
    assert message in refused.stderr
    assert refused.stderr.startswith("gen-durable: ")
    assert refused.stderr.count("\n") == 1


def test_wrong_option_shows_usage(app: Path) -> None:
    refused = CliRunner().invoke(root, ["worker", str(app), "--lease", "2"])
    assert refused.exit_code == 2
    assert "'2' is not a duration; write for example 90s" in refused.stderr
