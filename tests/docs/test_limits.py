"""What docs/guides/limits.md does not show of the commands: how they refuse."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from gen_durable.cli.root import root


@pytest.mark.clause("FLOW-16")
@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["rm", "tenant"], "limit 'tenant' does not exist"),
        (["set", "crm=fast"], "crm=fast"),
    ],
)
def test_unsupported_commands_are_rejected(command: list[str], message: str, durable_dsn: str) -> None:
    answer = CliRunner().invoke(root, ["limits", *command, "--dsn", durable_dsn])
    assert answer.exit_code == 2
    assert message in answer.output
