"""Commands that change something: each takes `--reason` and `--actor`, and records both in the audit log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import psycopg
import pytest

from gen_durable.cli.root import root
from gen_durable.testing import Harness
from tests.cli.conftest import Gd, parsed
from tests.cli.machines import Checkout

READ_ONLY = {
    *("ls", "show", "history", "diff", "wait", "workers", "explain", "doctor"),
    *("queues ls", "limits ls", "schedules ls", "schedules show", "outbox ls", "audit ls"),
}
WITHOUT_AUDIT = {"demo", "worker", "check", "graph", *(f"db {verb}" for verb in ("status", "sql", "url"))}
# They have tests of their own: they create and drop the audit log.
MIGRATIONS = {"db migrate", "db down"}

_ADD: list[object] = ["schedules", "add", "nightly", "Parcel", "1", "--every", "1h"]
_EVENTS = {"pause": "paused", "resume": "resumed", "trigger": "triggered", "rm": "removed"}
# Setup, the command, and the subject and event that it leaves; `#1` is the instance 1.
CHANGES: dict[str, tuple[list[list[object]], list[object], tuple[str, str]]] = {
    "insert": ([], ["insert", "Parcel", "1"], ("#2", "created")),
    "signal": ([], ["signal", 1, "payment"], ("#1", "signalled")),
    "cancel": ([], ["cancel", 1], ("#1", "cancelled")),
    "retry": ([["cancel", 1]], ["retry", 1], ("#1", "retried")),
    "fork": ([], ["fork", 1], ("#2", "created")),
    "edit": ([], ["edit", 1, "--step", "ship", "--yes"], ("#1", "edited")),
    "delete": ([], ["delete", 1], ("#1", "deleted")),
    "restore": ([["delete", 1]], ["restore", 1], ("#1", "restored")),
    "queues pause": ([], ["queues", "pause", "checkout"], ("queue:checkout", "paused")),
    "queues resume": ([], ["queues", "resume", "checkout"], ("queue:checkout", "resumed")),
    "queues set": ([], ["queues", "set", "checkout", "--concurrency", 3], ("queue:checkout", "set")),
    "limits set": ([], ["limits", "set", "crm=100/1m"], ("limit:crm", "set")),
    "limits rm": ([["limits", "set", "crm=3"]], ["limits", "rm", "crm"], ("limit:crm", "removed")),
    "schedules add": ([], _ADD, ("schedule:nightly", "set")),
    **{
        f"schedules {verb}": (
            [_ADD, ["schedules", "pause", "nightly"]] if verb == "resume" else [_ADD],
            ["schedules", verb, "nightly"],
            ("schedule:nightly", event),
        )
        for verb, event in _EVENTS.items()
    },
    "outbox replay": ([], ["outbox", "replay", 1], ("#1", "replayed")),
    "audit level": ([], ["audit", "level", "all"], ("audit", "set")),
}


def commands(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command


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
