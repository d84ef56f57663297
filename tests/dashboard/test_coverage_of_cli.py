"""The dashboard can do what the command line can: every change, with its options."""

from __future__ import annotations

from typing import Final

import msgspec
import pytest

import gen_durable.dashboard.app  # noqa: F401 - registers the endpoints
from gen_durable.cli.root import root
from gen_durable.dashboard.api.schedules import Options
from gen_durable.dashboard.endpoints import endpoints
from tests.cli.changes import CHANGES, commands

# The endpoints that make the change of a command.
ENDPOINTS: Final[dict[str, list[str]]] = {
    "insert": ["/machines/{name}/instances"],
    "signal": ["/instances/{id}/signal"],
    **{
        f"{verb}": [f"/instances/{{id}}/{verb}", "/batches"]
        for verb in ("cancel", "retry", "delete", "restore")
    },
    "edit": ["/instances/{id}/edit"],
    "fork": ["/instances/{id}/fork"],
    "batches run": ["/batches/{id}/run"],
    "batches stop": ["/batches/{id}/stop"],
    "queues pause": ["/queues/{name}/pause"],
    "queues resume": ["/queues/{name}/resume"],
    "queues set": ["/queues/{name}/concurrency"],
    "limits set": ["/limits/concurrency/{name}", "/limits/rate/{name}"],
    "limits rm": ["/limits/{kind}/{name}/remove"],
    "schedules add": ["/schedules/{name}"],
    **{f"schedules {verb}": [f"/schedules/{{name}}/{verb}"] for verb in ("pause", "resume", "trigger")},
    "schedules rm": ["/schedules/{name}/delete"],
    "outbox replay": ["/outbox/replay", "/outbox/replay-dead"],
    "audit level": ["/audit/level"],
}
# Options of the command line that have another name, or an endpoint of their own.
NAMES: Final = {
    "targets": "id",
    "to": "id",
    "where": "q",
    "no_undo": "undo",
    "new": "name",
    "machine": "name",
    "reset": "concurrency",
    "dead": "sink",
}
# The connection, the output, and what a program needs; the dashboard shows a preview and asks for a confirmation.
OF_THE_COMMAND_LINE: Final = {
    *("dsn", "schema", "pooler", "settings_file", "max_payload", "max_inbox"),
    *("actor", "as_json", "yes", "dry_run", "wait", "timeout"),
}
# The dashboard always checks against what workers have registered.
NOT_IN_A_BROWSER: Final = {"no_validate"}


def test_every_change_has_an_endpoint() -> None:
    assert set(ENDPOINTS) == set(CHANGES)
    assert {("POST", path) for paths in ENDPOINTS.values() for path in paths} <= set(endpoints)


@pytest.mark.parametrize("name", ENDPOINTS)
def test_every_option_has_a_field(name: str) -> None:
    fields = {"reason"}
    for path in ENDPOINTS[name]:
        endpoint = endpoints["POST", path]
        assert endpoint.body is not None
        fields |= {field.name for field in msgspec.structs.fields(endpoint.body)} | set(endpoint.in_path)
        if "options" in fields:
            fields |= {field.name for field in msgspec.structs.fields(Options)}
    options = (
        {str(each.name) for each in dict(commands(root))[name].params}
        - OF_THE_COMMAND_LINE
        - NOT_IN_A_BROWSER
    )
    assert {each for each in options if not {each, NAMES.get(each, each)} & fields} == set()
