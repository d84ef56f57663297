"""The commands of `gen-durable`: which change something, and how."""

from __future__ import annotations

from collections.abc import Iterator

import click

READ_ONLY = {
    *("ls", "show", "history", "diff", "wait", "workers", "explain", "doctor"),
    *("stats", "top", "machines", "stream", "watch", "tail", "batches ls", "batches show"),
    *("queues ls", "limits ls", "schedules ls", "schedules show", "outbox ls", "outbox tail", "audit ls"),
}
WITHOUT_AUDIT = {
    *("demo", "dev", "worker", "dash", "openapi", "check", "graph"),
    *(f"db {verb}" for verb in ("start", "stop", "status", "sql", "url")),
}
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
    "batches run": ([], ["batches", "run", 1], ("batch:1", "resumed")),
    "batches stop": ([], ["batches", "stop", 1], ("batch:1", "stopped")),
    "audit level": ([], ["audit", "level", "all"], ("audit", "set")),
}


def commands(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command
