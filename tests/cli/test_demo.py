"""The demo, with fewer orders."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from gen_durable import Client, Settings
from gen_durable._schema import drop_schema
from gen_durable.demo.machines import Checkout, Order
from gen_durable.demo.scenario import SCHEMA
from tests.cli.program import exit_code, start
from tests.support.waiting import PATIENCE


@pytest.mark.timeout(90)
def test_demo_after_an_interrupted_demo(tmp_path: Path) -> None:
    asyncio.run(drop_schema(None, SCHEMA))
    errors = tmp_path / "errors"
    program = [sys.executable, "-m", "gen_durable", "demo", "--orders", "50", "--keep"]
    with Client(settings=Settings(schema=SCHEMA)) as client:
        client.insert(Checkout, Order(1, 3, os.devnull), correlation_key="order:1")
        with (
            errors.open("w") as stderr,
            subprocess.Popen(program, stdout=subprocess.PIPE, stderr=stderr, text=True) as demo,
        ):
            try:
                assert demo.stdout is not None
                lines = list(itertools.takewhile(lambda line: "until Ctrl-C" not in line, demo.stdout))
                (url,) = [line.split()[1] for line in lines if line.startswith("Dashboard: ")]
                with httpx.Client(follow_redirects=True) as http:
                    assert http.get(url).status_code == 200
                    assert http.get(url.partition("?")[0] + "api/session").json()["environment"] == "demo"
                client.wait("order:51", until="parked", timeout=PATIENCE)
                demo.send_signal(signal.SIGINT)
                assert (demo.wait(), demo.stdout.read()) == (0, "")
            finally:
                demo.kill()
    printed = "".join(lines)
    assert "50 checkouts inserted, 50 done: nothing was lost" in printed
    assert "Killed worker 1 (SIGKILL). Labels it had printed but not committed: " in printed
    assert "FAIL" not in printed
    assert "\x1b" not in printed
    assert errors.read_text() == ""
    (remove,) = [line.removeprefix("Remove it:") for line in lines if line.startswith("Remove it:")]
    *command, option, schema = remove.split()
    assert (command[1:], option, schema) == (["db", "down"], "--schema", SCHEMA)
    removed = subprocess.run([*command, option, schema, "--yes"], capture_output=True, text=True, check=False)
    assert removed.returncode == 0, removed.stderr


def test_demo_without_a_database(tmp_path: Path) -> None:
    ours, its = os.pipe()
    process = start(
        *("demo", "--dsn", "postgresql://app:s3:cret@127.0.0.1:1/shop"),
        output=its,
        errors=tmp_path / "errors",
    )
    with os.fdopen(ours, encoding="utf-8") as output:
        assert output.read() == ""
    assert exit_code(process) == 2
    errors = (tmp_path / "errors").read_text(encoding="utf-8")
    assert "cannot reach PostgreSQL at postgresql://app@127.0.0.1:1/shop" in errors
    assert len(errors.splitlines()) <= 4
