"""The whole story, smaller than what a newcomer sees."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gen_durable.cli", "demo", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.timeout(90)
def test_the_demo_ends_well_twice_in_a_row() -> None:
    for _ in range(2):
        began_at = time.monotonic()
        told = demo("--orders", "60")
        assert told.returncode == 0, told.stdout + told.stderr
        assert time.monotonic() - began_at < 30
        assert "60 checkouts inserted, 60 done: nothing lost" in told.stdout
        assert "worker 1 gets a SIGKILL in mid-step; half done: " in told.stdout
        assert "FAIL" not in told.stdout
        assert "\x1b" not in told.stdout
        assert told.stderr == ""


def test_without_a_database_the_demo_says_so_in_a_few_lines() -> None:
    failed = demo("--dsn", "postgresql://app:s3:cret@127.0.0.1:1/shop")
    assert (failed.returncode, failed.stdout) == (2, "")
    assert "cannot reach PostgreSQL at postgresql://app:***@127.0.0.1:1/shop" in failed.stderr
    assert len(failed.stderr.splitlines()) <= 4
