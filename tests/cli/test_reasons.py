"""Commands that change something: each takes `--reason` and `--actor`, and records both in the audit log."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from gen_durable.cli.root import root
from gen_durable.testing import Harness
from tests.cli.changes import CHANGES, MIGRATIONS, READ_ONLY, WITHOUT_AUDIT, commands
from tests.cli.conftest import Gd, parsed
from tests.cli.machines import Checkout


@pytest.mark.clause("AUD-14")
def test_every_command_that_changes_something_takes_a_reason() -> None:
    found = dict(commands(root))
    assert set(found) == READ_ONLY | WITHOUT_AUDIT | MIGRATIONS | set(CHANGES)
    for name, command in found.items():
        options = {option for parameter in command.params for option in parameter.opts}
        takes_reason = name in CHANGES or name in MIGRATIONS
        assert {"--reason", "--actor"} <= options if takes_reason else "--reason" not in options, name


@pytest.mark.clause("AUD-13")
@pytest.mark.clause("AUD-14")
@pytest.mark.parametrize("level", ["failures", "all"])
@pytest.mark.parametrize("name", CHANGES)
def test_the_reason_is_in_the_audit_log(
    gd: Gd, shop: Harness, sql: psycopg.Connection[Any], name: str, level: str
) -> None:
    shop.set_audit("all" if level == "all" and name != "audit level" else "failures")
    shop.insert(Checkout, {})
    sql.execute(
        "insert into gen_durable.outbox (instance_id, step_seq, n, sink, type, subject, data, dead_at)"
        " values (1, 1, 1, 'crm', 't', 's', '{}', now())"
    )
    if name.startswith("batches "):
        shop.start_batch("retry", ids=[1])
    setup, command, (subject, event) = CHANGES[name]
    for arguments in setup:
        assert gd(*arguments).exit_code == 0
    changed = gd(*command, "--reason", "ticket 7", "--actor", "ada")
    assert changed.exit_code == 0, changed.output
    events = [
        (each["subject"] or f"#{each['instance_id']}", each["event"])
        for each in parsed(gd("audit", "--json"))
        if (each["reason"], each["actor"]) == ("ticket 7", "ada")
    ]
    assert events[0] == (subject, event), "the latest; a delete also cancels"
    assert len(events) == (2 if name == "delete" else 1)
    lines = [line.split()[3:6] for line in gd("audit").stdout.splitlines()]
    assert [subject.replace("#", ""), event, "ada"] in lines


def test_nothing_is_written_when_the_audit_is_off(gd: Gd, shop: Harness) -> None:
    assert gd("audit", "level", "off", "--reason", "noise").exit_code == 0
    (switched,) = parsed(gd("audit", "--json"))
    assert (switched["subject"], switched["reason"]) == ("audit", "noise")
    for command in (["insert", "Parcel", "1"], ["queues", "pause", "mail"], ["limits", "set", "crm=3"]):
        assert gd(*command, "--reason", "ticket 7").exit_code == 0
    assert len(parsed(gd("audit", "--json"))) == 1


@pytest.mark.clause("AUD-7")
def test_the_audit_log_is_read_page_by_page(gd: Gd, shop: Harness) -> None:
    for number in range(5):
        gd("queues", "pause", f"q{number}")
    first = parsed(gd("audit", "--json", "--limit", 3))
    rest = parsed(gd("audit", "ls", "--json", "--before", first[-1]["number"]))
    assert [each["subject"] for each in first + rest] == [f"queue:q{number}" for number in (4, 3, 2, 1, 0)]
    assert gd("audit", "--after", 1).exit_code == 2
    assert gd("audit", "ls", 1, "--before", 1).exit_code == 2
