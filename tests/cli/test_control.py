"""`gen-durable cancel | retry | delete | restore`."""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from gen_durable import Status
from gen_durable._db import control
from gen_durable._db.failures import StatementError
from gen_durable._db.plan import Plan
from gen_durable._verbs.changes import Cancel, Change
from gen_durable.testing import Harness
from tests.cli.conftest import Gd, execute, output, parsed, refused
from tests.cli.machines import BIG, Checkout, Parcel, Shipment


def statuses(shop: Harness) -> dict[int, str]:
    return {each.id: str(each.status) for each in shop.list(with_deleted=True)}


def audit(sql: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    """Actions of people: events with an actor."""
    return sql.execute(
        "select instance_id, event, actor, reason from gen_durable.audit_events where actor is not null order by id"
    ).fetchall()


@pytest.mark.clause("CLI-2")
def test_cancel_one_instance_without_confirmation(
    gd: Gd, shop: Harness, sql: psycopg.Connection[Any]
) -> None:
    shop.insert(Checkout, {}, correlation_key="order:1")
    done = gd("cancel", "order:1", "--reason", "customer withdrew", "--actor", "ada")
    assert output(done) == (0, "1: cancelled\n", "")
    assert audit(sql) == [(1, "cancelled", "ada", "customer withdrew")]
    assert output(gd("cancel", 1)) == (0, "1: already ended (cancelled)\n", "")


def test_default_actor_is_the_user_of_the_process(
    gd: Gd, shop: Harness, sql: psycopg.Connection[Any]
) -> None:
    shop.insert(Checkout, {})
    gd("cancel", 1)
    assert audit(sql) == [(1, "cancelled", getpass.getuser(), None)]


def test_cancel_waits_for_a_running_step_unless_forced(
    gd: Gd, shop: Harness, sql: psycopg.Connection[Any]
) -> None:
    shop.insert(Checkout, {})
    execute(sql, 1)
    assert output(gd("cancel", 1)) == (0, "1: cancel requested; it ends when its running step ends\n", "")
    assert statuses(shop) == {1: "executing"}
    assert parsed(gd("cancel", 1, "--force", "--json")) == {
        "verb": "cancel",
        "dry_run": False,
        "count": 1,
        "outcomes": {"cancelled": 1},
        "instances": [{"id": 1, "outcome": "cancelled"}],
    }
    assert statuses(shop) == {1: "cancelled"}


@pytest.mark.clause("CLI-2")
def test_several_targets_need_confirmation(gd: Gd, shop: Harness) -> None:
    shop.insert(Checkout, {})
    shop.insert(Parcel, 1)
    question = "Cancel 2 instances (1 Checkout runnable, 1 Parcel runnable)? [y/N]: "
    assert output(gd("cancel", 1, 2, answer="n\n")) == (1, "", f"{question}n\nnothing was changed\n")
    unanswered = gd("cancel", 1, 2)
    assert (unanswered.exit_code, unanswered.stdout) == (2, "")
    assert unanswered.stderr.endswith(
        "gen-durable: nothing was changed: no confirmation to cancel 2 instances. Add --yes.\n"
    )
    assert statuses(shop) == {1: "runnable", 2: "runnable"}
    assert output(gd("cancel", 1, 2, answer="y\n")) == (0, "1: cancelled\n2: cancelled\n", f"{question}y\n")


@pytest.mark.clause("CLI-2")
def test_where_needs_confirmation_even_for_one(gd: Gd, shop: Harness) -> None:
    shop.insert(Checkout, {})
    shop.insert(Parcel, 1)
    asked = gd("cancel", "--where", "machine=Checkout", answer="\n")
    assert output(asked) == (1, "", "Cancel 1 instance (1 Checkout runnable)? [y/N]: \nnothing was changed\n")
    assert output(gd("cancel", "--where", "machine=Checkout", "--yes")) == (0, "1 cancelled\n", "")
    assert statuses(shop) == {1: "cancelled", 2: "runnable"}


def test_a_target_named_twice_counts_once(gd: Gd, shop: Harness) -> None:
    shop.insert(Checkout, {}, correlation_key="order:1")
    assert output(gd("cancel", 1, "order:1", "--yes")) == (0, "1: cancelled\n", "")


def test_an_unknown_target_changes_nothing(gd: Gd, shop: Harness) -> None:
    shop.insert(Checkout, {})
    for verb in ("cancel", "retry", "delete", "restore"):
        assert refused(gd(verb, 1, 9, "--yes")) == (
            f"no instance has id 9. If it is a correlation key: gen-durable {verb} --where correlation-key=9"
        )
    assert statuses(shop) == {1: "runnable"}


def test_where_changes_all_matches_in_batches(gd: Gd, shop: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "_BATCH", 3)
    monkeypatch.setattr(control, "_PAGE", 4)
    for _ in range(10):
        shop.insert(Checkout, {})
        shop.insert(Parcel, 1)
    done = gd("cancel", "--where", "machine=Checkout", "--where", "status=runnable", "--yes", "--json")
    found = parsed(done)
    assert (found["count"], found["outcomes"]) == (10, {"cancelled": 10})
    assert [each["id"] for each in found["instances"]] == list(range(1, 20, 2))
    assert shop.count(Parcel, status=Status.RUNNABLE) == 10


def test_instances_inserted_after_the_confirmation_are_not_changed(
    gd: Gd, shop: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.insert(Checkout, {})

    def agrees(*_: object) -> bool:
        shop.insert(Checkout, {})
        return True

    monkeypatch.setattr("gen_durable.cli.control._agrees", agrees)
    assert output(gd("cancel", "--where", "machine=Checkout")) == (0, "1 cancelled\n", "")
    assert statuses(shop) == {1: "cancelled", 2: "runnable"}


@pytest.mark.parametrize("verb", ["cancel", "retry", "delete", "restore"])
def test_where_without_matches(gd: Gd, shop: Harness, verb: str) -> None:
    assert output(gd(verb, "--where", "machine=Checkout")) == (0, "no matching instances\n", "")
    assert parsed(gd(verb, "--where", "machine=Checkout", "--json"))["count"] == 0


@pytest.mark.clause("CLI-3")
def test_dry_run_changes_nothing(gd: Gd, shop: Harness, sql: psycopg.Connection[Any]) -> None:
    shop.insert(Parcel, 1)
    shop.insert(Parcel, -1)
    shop.drain()
    shop.insert(Checkout, {})
    shop.insert(Checkout, {})
    execute(sql, 4)
    before = statuses(shop)
    assert output(gd("cancel", 1, 3, 4, "--dry-run")) == (
        0,
        "cancel would change 2 instances\n"
        "  1 Checkout executing: requested\n"
        "  1 Checkout runnable: cancelled\n"
        "  1 Parcel done: finished\n",
        "",
    )
    assert output(gd("retry", "--where", "since=1h", "--dry-run")) == (
        0,
        "retry would change 1 instance\n  1 Parcel failed: retried\n",
        "",
    )
    assert parsed(gd("delete", "--where", "machine=Parcel", "--dry-run", "--json")) == {
        "verb": "delete",
        "dry_run": True,
        "count": 2,
        "groups": [
            {"machine": "Parcel", "status": "done", "outcome": "deleted", "count": 1},
            {"machine": "Parcel", "status": "failed", "outcome": "deleted", "count": 1},
        ],
        "child_count": 0,
    }
    assert statuses(shop) == before
    assert audit(sql) == []


def test_cascade_cancels_descendants(gd: Gd, shop: Harness) -> None:
    shop.insert(Shipment, [1, 2, 3])
    shop.drain()
    shop.insert(Checkout, {})
    shop.cancel(2)
    assert output(gd("cancel", 1, "--cascade", "--dry-run"))[1] == (
        "cancel would change 3 instances\n  1 Shipment awaiting_children: cancelled\n  2 descendants\n"
    )
    asked = gd("cancel", 1, "--cascade", answer="n\n")
    assert asked.stderr.startswith("Cancel 3 instances (1 Shipment awaiting_children, and 2 descendants)?")
    done = parsed(gd("cancel", "--where", "machine=Shipment", "--cascade", "--yes", "--json"))
    assert [each["id"] for each in done["instances"]] == [1, 3, 4]
    assert statuses(shop) == {
        1: "cancelled",
        2: "cancelled",
        3: "cancelled",
        4: "cancelled",
        5: "runnable",
    }


def test_cascade_continues_below_ended_instances(gd: Gd, shop: Harness) -> None:
    shop.insert(Shipment, [1, 2])
    shop.drain()
    shop.cancel(1)
    assert output(gd("cancel", 1, "--cascade", "--yes"))[:2] == (
        0,
        "1: already ended (cancelled)\n2: cancelled\n3: cancelled\n",
    )


def test_parents_are_cancelled_before_their_children(gd: Gd, shop: Harness) -> None:
    shop.insert(Shipment, [1, 2])
    shop.drain()
    done = parsed(gd("cancel", "--where", "since=1h", "--yes", "--json"))
    assert [each["id"] for each in done["instances"]] == [1, 2, 3]
    again = parsed(gd("retry", "--where", "since=1h", "--yes", "--json"))
    assert [each["id"] for each in again["instances"]] == [3, 2, 1]


def test_an_error_says_how_many_were_changed(gd: Gd, shop: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.insert(Checkout, {})

    def fail(verb: Cancel, ids: Sequence[int]) -> Plan[list[Change]]:
        raise StatementError("55P03", "lock timeout")

    monkeypatch.setattr(Cancel, "plan", fail)
    expected = "0 instances were changed before. Repeat the command for the rest."
    assert refused(gd("cancel", 1)).endswith(expected)


def test_retry_with_a_new_state(gd: Gd, shop: Harness, sql: psycopg.Connection[Any]) -> None:
    shop.insert(Parcel, -1)
    shop.drain()
    assert output(gd("retry", 1, "--state", "7", "--reason", "fixed", "--actor", "ada")) == (
        0,
        "1: retried\n",
        "",
    )
    shop.drain()
    shop.assert_done(1)
    assert audit(sql) == [(1, "retried", "ada", "fixed")]
    assert output(gd("retry", 1)) == (
        1,
        "1: cannot retry: it is done; only failed and cancelled instances can be retried\n",
        "",
    )


def test_a_new_state_keeps_large_numbers(gd: Gd, shop: Harness, sql: psycopg.Connection[Any]) -> None:
    shop.insert(Checkout, {})
    shop.cancel(1)
    assert gd("retry", "--where", "machine=Checkout", "--yes", "--state", f'{{"big": {BIG}}}').exit_code == 0
    assert sql.execute("select state::text from gen_durable.gen_durable").fetchone() == (f'{{"big": {BIG}}}',)
    assert refused(gd("retry", 1, "--state", "{")) == "the state is invalid: Input data was truncated"


@pytest.mark.parametrize("pooler", ["none", "transaction"])
def test_a_taken_key_does_not_block_other_retries(gd: Gd, shop: Harness, pooler: str) -> None:
    for number in range(7):
        shop.insert(Checkout, {}, correlation_key=f"order:{number}")
        shop.cancel(number + 1)
    shop.insert(Checkout, {}, correlation_key="order:3")
    done = gd("retry", "--where", "status=cancelled", "--yes", "--json", "--pooler", pooler)
    assert done.exit_code == 1
    assert parsed(done)["outcomes"] == {"retried": 6, "refused": 1}
    why = (
        "cannot retry instance 4: its correlation_key belongs to Checkout 8 now; "
        "delete 8 first, or insert a new instance with another key"
    )
    assert {"id": 4, "outcome": "refused", "problem": why} in parsed(done)["instances"]
    alone = gd("retry", 4)
    assert output(alone) == (1, f"4: not changed: {why}\n", "")
    assert gd("delete", 8).exit_code == 0
    assert output(gd("retry", 4)) == (0, "4: retried\n", "")


def test_delete_and_restore(gd: Gd, shop: Harness, sql: psycopg.Connection[Any]) -> None:
    shop.insert(Checkout, {}, correlation_key="order:1")
    shop.insert(Checkout, {})
    assert output(gd("delete", "order:1", "--reason", "gdpr", "--actor", "ada")) == (0, "1: deleted\n", "")
    assert [each.id for each in shop.list()] == [2]
    assert output(gd("delete", 1)) == (0, "1: not changed: cancelled, deleted\n", "")
    deleted = "1: cannot retry: it is deleted; undo that first: gen-durable restore 1\n"
    assert output(gd("retry", 1)) == (1, deleted, "")
    assert output(gd("restore", 2)) == (0, "2: not changed: runnable, not deleted\n", "")
    assert output(gd("restore", "order:1", "--actor", "bob")) == (0, "1: restored\n", "")
    assert audit(sql) == [
        (1, "cancelled", "ada", "gdpr"),
        (1, "deleted", "ada", "gdpr"),
        (1, "restored", "bob", None),
    ]


def test_restore_by_key_finds_the_deleted_instance(gd: Gd, shop: Harness) -> None:
    shop.insert(Checkout, {}, correlation_key="order:1")
    shop.soft_delete(1)
    shop.insert(Checkout, {}, correlation_key="order:1")
    assert output(gd("restore", "order:1")) == (0, "1: restored\n", "")


def test_restore_where_selects_deleted_instances(gd: Gd, shop: Harness) -> None:
    for _ in range(3):
        shop.insert(Checkout, {})
    shop.soft_delete(1)
    shop.soft_delete(3)
    asked = gd("restore", "--where", "machine=Checkout", answer="y\n")
    assert output(asked) == (0, "2 restored\n", "Restore 2 instances (2 Checkout cancelled)? [y/N]: y\n")
    assert [each.id for each in shop.list()] == [3, 2, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cancel"], "no target: give ids or correlation keys, or --where"),
        (
            ["cancel", "--where", "machine=Checkout", "status=failed"],
            "give either targets or --where; did you mean --where status=failed?",
        ),
        (
            ["cancel", "order:60", "--where", "machine=Checkout"],
            "give either targets or --where; remove order:60 or --where",
        ),
        (
            ["retry", "--where", "machin=Checkout"],
            "--where machin=Checkout: unknown filter; did you mean 'machine'? Filters: machine, step,",
        ),
        (
            ["delete", "--where", "staus:failed"],
            "staus:failed (position 1): there is no term 'staus'; did you mean 'status'? ",
        ),
        (["delete", "--where", " "], "--where is empty. Give a search, for example --where status:failed."),
        (
            ["cancel", "--where", "machine:Checkout", "status:failed"],
            "give either targets or --where; did you mean --where 'status:failed'?",
        ),
        (
            ["cancel", "--where", "status:live", "--where", "status:due"],
            "status:due (position 13): 'status' is",
        ),
        (["restore", "--where", "status=gone"], "--where status: 'gone' is not a status"),
        (["cancel", "--where", "queue=a", "--where", "queue=b"], "--where queue is given 2 times"),
        (["cancel", "1", "--actor", ""], "--actor is empty"),
        (["cancel", str(2**63)], "the id is 9223372036854775808"),
    ],
)
def test_usage_errors(gd: Gd, arguments: list[str], message: str) -> None:
    assert refused(gd(*arguments)).startswith(message)


@pytest.mark.parametrize("verb", ["cancel", "retry", "delete", "restore"])
def test_help_documents_the_exit_codes(gd: Gd, verb: str) -> None:
    text = " ".join(gd(verb, "--help").stdout.split())
    assert "Exit code 0: " in text
    assert "; 1: " in text
    assert "; 2: usage error, instance not found, or database unreachable." in text
