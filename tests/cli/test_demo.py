"""The demo, with fewer orders."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gen_durable import Client, Settings
from gen_durable._schema import drop_schema
from gen_durable.demo.machines import Checkout, Order
from gen_durable.demo.scenario import SCHEMA
from tests.cli.program import exit_code, start


@pytest.mark.timeout(90)
def test_demo_after_an_interrupted_demo() -> None:
    asyncio.run(drop_schema(None, SCHEMA))
    with Client(settings=Settings(schema=SCHEMA)) as client:
        client.insert(Checkout, Order(1, 3, os.devnull), correlation_key="order:1")
    output = subprocess.run(
        [sys.executable, "-m", "gen_durable", "demo", "--orders", "50"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert output.returncode == 0, output.stdout + output.stderr
    assert "50 checkouts inserted, 50 done: nothing was lost" in output.stdout
    assert "Killed worker 1 (SIGKILL). Labels it had printed but not committed: " in output.stdout
    *command, option, schema = output.stdout.splitlines()[-1].removeprefix("Remove it:").split()
    assert (command[1:], option, schema) == (["db", "down"], "--schema", SCHEMA)
    removed = subprocess.run([*command, option, schema, "--yes"], capture_output=True, text=True, check=False)
    assert removed.returncode == 0, removed.stderr
    assert "FAIL" not in output.stdout
    assert "\x1b" not in output.stdout
    assert output.stderr == ""


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
