"""Both clients have the same methods."""

from __future__ import annotations

import inspect
import re

import pytest

from gen_durable import AsyncClient, Client

VERBS = sorted(
    name for name, member in vars(Client).items() if not name.startswith("_") and inspect.isfunction(member)
)


def test_both_clients_have_the_same_methods() -> None:
    assert VERBS == [
        "audit",
        "audit_level",
        "audit_log",
        "batches",
        "cancel",
        "cancel_all",
        "census",
        "check",
        "children",
        "complete",
        "count",
        "delete_all",
        "delete_schedule",
        "doctor",
        "edit",
        "events",
        "executions",
        "explain",
        "follow_events",
        "fork",
        "get",
        "get_batch",
        "get_schedule",
        "history",
        "insert",
        "insert_all",
        "limits",
        "list",
        "pause_queue",
        "pause_schedule",
        "preview_batch",
        "put_schedule",
        "queues",
        "rates",
        "registered_machines",
        "remove_limit",
        "replay",
        "restore",
        "resume_queue",
        "resume_schedule",
        "retry",
        "retry_all",
        "run_batch",
        "schedules",
        "search",
        "search_count",
        "set_audit",
        "set_limit",
        "set_queue",
        "signal",
        "soft_delete",
        "start_batch",
        "start_replay",
        "stats",
        "step_rates",
        "stop_batch",
        "stream",
        "timeline",
        "trigger_schedule",
        "wait",
        "wait_all",
        "watch",
        "workers",
    ]
    assert {name for name in vars(AsyncClient) if not name.startswith("_")} == {
        *VERBS,
        "dsn",
        "lifespan",
    }
    assert isinstance(vars(Client)["dsn"], property)


@pytest.mark.parametrize("verb", [*VERBS, "__init__"])
def test_both_clients_have_the_same_signatures(verb: str) -> None:
    def signatures(client: type) -> str:
        # Only the types of conn= and of iterators differ.
        return re.sub("Async(Connection|Iterator)", r"\1", str(inspect.signature(getattr(client, verb))))

    assert signatures(AsyncClient) == signatures(Client)


@pytest.mark.parametrize("verb", VERBS)
def test_one_client_awaits_and_the_other_blocks(verb: str) -> None:
    method = getattr(AsyncClient, verb)
    assert inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)
    assert not inspect.iscoroutinefunction(getattr(Client, verb))
