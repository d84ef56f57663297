"""Both clients have the same methods."""

from __future__ import annotations

import inspect

import pytest

from gen_durable import AsyncClient, Client

VERBS = sorted(name for name in vars(Client) if not name.startswith("_"))


def test_both_clients_have_the_same_methods() -> None:
    assert VERBS == [
        "audit",
        "audit_level",
        "audit_log",
        "cancel",
        "cancel_all",
        "check",
        "children",
        "count",
        "delete_all",
        "delete_schedule",
        "doctor",
        "edit",
        "events",
        "executions",
        "explain",
        "fork",
        "get",
        "get_schedule",
        "history",
        "insert",
        "insert_all",
        "limits",
        "list",
        "pause_queue",
        "pause_schedule",
        "put_schedule",
        "queues",
        "remove_limit",
        "replay",
        "restore",
        "resume_queue",
        "resume_schedule",
        "retry",
        "retry_all",
        "schedules",
        "set_audit",
        "set_limit",
        "set_queue",
        "signal",
        "soft_delete",
        "trigger_schedule",
        "wait",
        "wait_all",
        "workers",
    ]
    assert {name for name in vars(AsyncClient) if not name.startswith("_")} == {*VERBS, "lifespan"}


@pytest.mark.parametrize("verb", [*VERBS, "__init__"])
def test_both_clients_have_the_same_signatures(verb: str) -> None:
    def signatures(client: type) -> str:
        # Only the type of conn= differs.
        return str(inspect.signature(getattr(client, verb))).replace("AsyncConnection", "Connection")

    assert signatures(AsyncClient) == signatures(Client)


@pytest.mark.parametrize("verb", VERBS)
def test_one_client_awaits_and_the_other_blocks(verb: str) -> None:
    assert inspect.iscoroutinefunction(getattr(AsyncClient, verb))
    assert not inspect.iscoroutinefunction(getattr(Client, verb))
