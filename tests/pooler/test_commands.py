from __future__ import annotations

import pytest
from click.testing import CliRunner

from gen_durable.cli.root import root


def test_commands(durable_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEN_DURABLE_POOLER", "transaction")
    for command, code in (["status"], 1), (["migrate"], 0), (["status"], 0), (["down", "--yes"], 0):
        done = CliRunner().invoke(root, ["db", *command, "--dsn", durable_dsn, "--schema", "elsewhere"])
        assert done.exit_code == code, done.output
