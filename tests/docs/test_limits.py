"""docs/limits.md does what it says: its snippets and its commands are run."""

from __future__ import annotations

import datetime
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from psycopg import connect

import gen_durable
from gen_durable import AsyncClient, Worker
from gen_durable.cli.root import root

PAGE = (Path(__file__).parents[2] / "docs" / "limits.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
PYTHON = [text for language, text in BLOCKS if language == "python"]
PROMISE = re.compile(r"^(\S.*?)\s+# → (.+)$")


@pytest.mark.clause("FLOW-16")
async def test_the_snippets(durable_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEN_DURABLE_DSN", durable_dsn)
    worker_text, machine, looking = PYTHON
    names: dict[str, Any] = {**vars(gen_durable), "datetime": datetime}
    exec(machine, names)
    exec(worker_text, names)
    worker: Worker = names["worker"]
    async with worker, AsyncClient(durable_dsn) as client:
        assert (await client.wait(await client.insert(names["Sync"], 7))).result == "called"
        names["client"] = client
        for line in looking.splitlines():
            promise = PROMISE.match(line)
            source = promise[1] if promise else line
            value = await eval(source.removeprefix("await "), names)
            if promise:
                assert repr(value) == promise[2]


@pytest.mark.clause("FLOW-16")
def test_sql_and_the_command_line(durable_dsn: str) -> None:
    with gen_durable.Client(durable_dsn) as client, connect(durable_dsn, autocommit=True) as conn:
        for language, text in BLOCKS:
            if language == "sql":
                conn.execute(text)
        assert [str(one) for one in client.limits()] == ["crm=100/60s/10"]
        runner = CliRunner()
        for language, text in BLOCKS:
            for line in text.splitlines() if language == "sh" else ():
                _, *arguments = shlex.split(line)
                answer = runner.invoke(root, [*arguments, "--dsn", durable_dsn])
                assert answer.exit_code == 0, answer.output
        assert [str(one) for one in client.limits()] == ["crm=100/60s/10"]
        answer = runner.invoke(root, ["limits", "rm", "tenant", "--dsn", durable_dsn])
        assert answer.exit_code == 2
        assert "there is no limit 'tenant'" in answer.output
        answer = runner.invoke(root, ["limits", "ls", "--json", "--dsn", durable_dsn])
        assert '"allowed":100' in answer.output.replace(" ", "")
        answer = runner.invoke(root, ["limits", "set", "crm=fast", "--dsn", durable_dsn])
        assert answer.exit_code == 2
