"""`gen-durable cancel | retry | delete | restore`."""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from gen_durable import Status
from gen_durable._db.failures import StatementError
from gen_durable._db.plan import Plan
from gen_durable.cli import bulk
from gen_durable.cli.verbs import Cancel, Change
from gen_durable.testing import Harness
from tests.cli.conftest import Gd, execute, parsed, refused, told
from tests.cli.machines import BIG, Checkout, Parcel, Shipment


def statuses(shop: Harness) -> dict[int, str]:
    return {each.id: str(each.status) for each in shop.list(with_deleted=True)}


def audit(sql: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    """What people did: that has an actor."""
    return sql.execute(
        "select instance_id, event, actor, reason from gen_durable.audit_events where actor is not null order by id"
    ).fetchall()


@pytest.mark.clause("CLI-2")
def test_one_instance_is_cancelled_without_a_question(
    gd: Gd, shop: Harness, sql: psycopg.Connection[Any]
) -> None:
    shop.insert(Checkout, {}, correlation_key="order:1")
    done = gd("cancel", "order:1", "--reason", "customer withdrew", "--actor", "ada")
    assert told(done) == (0, "1 is cancelled\n", "")
    assert audit(sql) == [(1, "cancelled", "ada", "customer withdrew")]
    assert told(gd("cancel", 1)) == (0, "1 had ended before: it is cancelled\n", "")


def test_the_actor_is_the_user_of_the_process(gd: Gd, shop: Harness, sql: psycopg.Connection[Any]) -> None:
    shop.insert(Checkout, {})
    gd("cancel", 1)
    assert audit(sql) == [(1, "cancelled", getpass.getuser(), None)]


def test_a_step_that_executes_may_end_first_unless_it_is_forced(
    gd: Gd, shop: Harness, sql: psycopg.Connection[Any]
) -> None:
    shop.insert(Checkout, {})
    execute(sql, 1)
    assert told(gd("cancel", 1)) == (0, "1 executes a step, and is cancelled when that ends\n", "")
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
def test_more_than_one_needs_a_yes(gd: Gd, shop: Harness) -> None:
    shop.insert(Checkout, {})
    shop.insert(Parcel, 1)
    question = "Cancel 2 instances (1 Checkout runnable, 1 Parcel runnable)? [y/N]: "
    assert told(gd("cancel", 1, 2, answer="n\n")) == (1, "", f"{question}n\nnothing was changed\n")
    unanswered = gd("cancel", 1, 2)
    assert (unanswered.exit_code, unanswered.stdout) == (2, "")
    assert unanswered.stderr.endswith(
        "gen-durable: nothing was changed: 2 instances would be; answer the question, or say --yes\n"
    )
    assert statuses(shop) == {1: "runnable", 2: "runnable"}
    assert told(gd("cancel", 1, 2, answer="y\n")) == (0, "1 is cancelled\n2 is cancelled\n", f"{question}y\n")


@pytest.mark.clause("CLI-2")
def test_a_filter_needs_a_yes_even_for_one(gd: Gd, shop: Harness) -> None:
    shop.insert(Checkout, {})
    shop.insert(Parcel, 1)
    asked = gd("cancel", "--where", "machine=Checkout", answer="\n")
    assert told(asked) == (1, "", "Cancel 1 instance (1 Checkout runnable)? [y/N]: \nnothing was changed\n")
    assert told(gd("cancel", "--where", "machine=Checkout", "--yes")) == (0, "1 cancelled\n", "")
    assert statuses(shop) == {1: "cancelled", 2: "runnable"}


def test_one_that_is_named_twice_is_one(gd: Gd, shop: Harness) -> None:
    shop.insert(Checkout, {}, correlation_key="order:1")
    assert told(gd("cancel", 1, "order:1", "--yes")) == (0, "1 is cancelled\n", "")


def test_if_one_of_them_does_not_exist_nothing_is_done(gd: Gd, shop: Harness) -> None:
    shop.insert(Checkout, {})
    for verb in ("cancel", "retry", "delete", "restore"):
        assert refused(gd(verb, 1, 9, "--yes")) == (
            "there is no instance 9; if that is a correlation key: --where correlation-key=9"
        )
    assert statuses(shop) == {1: "runnable"}


def test_all_that_match_are_done_in_batches(gd: Gd, shop: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "_BATCH", 3)
    monkeypatch.setattr(bulk, "_LOOK", 4)
    for _ in range(10):
        shop.insert(Checkout, {})
        shop.insert(Parcel, 1)
    done = gd("cancel", "--where", "machine=Checkout", "--where", "status=runnable", "--yes", "--json")
    found = parsed(done)
    assert (found["count"], found["outcomes"]) == (10, {"cancelled": 10})
    assert [each["id"] for each in found["instances"]] == list(range(1, 20, 2))
    assert shop.count(Parcel, status=Status.RUNNABLE) == 10


def test_what_is_inserted_after_the_question_is_not_touched(
    gd: Gd, shop: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gen_durable.cli import control

    shop.insert(Checkout, {})

    def agrees(*_: object) -> bool:
        shop.insert(Checkout, {})
        return True

    monkeypatch.setattr(control, "_agrees", agrees)
    assert told(gd("cancel", "--where", "machine=Checkout")) == (0, "1 cancelled\n", "")
    assert statuses(shop) == {1: "cancelled", 2: "runnable"}


@pytest.mark.parametrize("verb", ["cancel", "retry", "delete", "restore"])
def test_a_filter_that_nothing_matches_changes_nothing_and_asks_nothing(
    gd: Gd, shop: Harness, verb: str
) -> None:
    assert told(gd(verb, "--where", "machine=Checkout")) == (0, "no instance matches\n", "")
    assert parsed(gd(verb, "--where", "machine=Checkout", "--json"))["count"] == 0


@pytest.mark.clause("CLI-3")
def test_a_dry_run_shows_what_would_be_touched_and_touches_nothing(
    gd: Gd, shop: Harness, sql: psycopg.Connection[Any]
) -> None:
    shop.insert(Parcel, 1)
    shop.insert(Parcel, -1)
    shop.drain()
    shop.insert(Checkout, {})
    shop.insert(Checkout, {})
    execute(sql, 4)
    before = statuses(shop)
    assert told(gd("cancel", 1, 3, 4, "--dry-run")) == (
        0,
        "cancel would change 2 instances\n"
        "  1 Checkout executing: requested\n"
        "  1 Checkout runnable: cancelled\n"
        "  1 Parcel done: finished\n",
        "",
    )
    assert told(gd("retry", "--where", "since=1h", "--dry-run")) == (
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


def test_a_cascade_goes_down_to_the_children(gd: Gd, shop: Harness) -> None:
    shop.insert(Shipment, [1, 2, 3])
    shop.drain()
    shop.insert(Checkout, {})
    shop.cancel(2)
    assert told(gd("cancel", 1, "--cascade", "--dry-run"))[1] == (
        "cancel would change 3 instances\n  1 Shipment awaiting_children: cancelled\n  2 children below\n"
    )
    asked = gd("cancel", 1, "--cascade", answer="n\n")
    assert asked.stderr.startswith("Cancel 3 instances (1 Shipment awaiting_children and 2 children below)?")
    done = parsed(gd("cancel", "--where", "machine=Shipment", "--cascade", "--yes", "--json"))
    assert [each["id"] for each in done["instances"]] == [1, 3, 4]
    assert statuses(shop) == {
        1: "cancelled",
        2: "cancelled",
        3: "cancelled",
        4: "cancelled",
        5: "runnable",
    }


def test_a_cascade_goes_through_what_had_ended_before(gd: Gd, shop: Harness) -> None:
    shop.insert(Shipment, [1, 2])
    shop.drain()
    shop.cancel(1)
    assert told(gd("cancel", 1, "--cascade", "--yes"))[:2] == (
        0,
        "1 had ended before: it is cancelled\n2 is cancelled\n3 is cancelled\n",
    )


def test_a_parent_is_cancelled_before_its_children_could_release_it(gd: Gd, shop: Harness) -> None:
    shop.insert(Shipment, [1, 2])
    shop.drain()
    done = parsed(gd("cancel", "--where", "since=1h", "--yes", "--json"))
    assert [each["id"] for each in done["instances"]] == [1, 2, 3]
    again = parsed(gd("retry", "--where", "since=1h", "--yes", "--json"))
    assert [each["id"] for each in again["instances"]] == [3, 2, 1]


def test_a_race_is_run_again(gd: Gd, shop: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.insert(Checkout, {})
    troubles = [StatementError("40P01", "deadlock detected")] * 2
    plan = Cancel.plan

    def unlucky(verb: Cancel, ids: Sequence[int]) -> Plan[list[Change]]:
        if troubles:
            raise troubles.pop()
        return plan(verb, ids)

    monkeypatch.setattr(Cancel, "plan", unlucky)
    assert told(gd("cancel", 1)) == (0, "1 is cancelled\n", "")
    troubles = [StatementError("55P03", "lock timeout")] * 9
    assert refused(gd("cancel", 1)).endswith("0 instances were done before; run it again for the rest")


def test_a_failed_instance_goes_on_with_a_new_state(
    gd: Gd, shop: Harness, sql: psycopg.Connection[Any]
) -> None:
    shop.insert(Parcel, -1)
    shop.drain()
    assert told(gd("retry", 1, "--state", "7", "--reason", "fixed", "--actor", "ada")) == (
        0,
        "1 is retried\n",
        "",
    )
    shop.drain()
    shop.assert_done(1)
    assert audit(sql) == [(1, "retried", "ada", "fixed")]
    assert told(gd("retry", 1)) == (1, "1 was left as it is: done, not deleted\n", "")


def test_a_new_state_keeps_its_digits(gd: Gd, shop: Harness, sql: psycopg.Connection[Any]) -> None:
    shop.insert(Checkout, {})
    shop.cancel(1)
    assert gd("retry", "--where", "machine=Checkout", "--yes", "--state", f'{{"big": {BIG}}}').exit_code == 0
    assert sql.execute("select state::text from gen_durable.gen_durable").fetchone() == (f'{{"big": {BIG}}}',)
    assert refused(gd("retry", 1, "--state", "{")) == "the state cannot be used: Input data was truncated"


@pytest.mark.parametrize("pooler", ["none", "transaction"])
def test_one_whose_key_is_taken_holds_up_nobody_else(gd: Gd, shop: Harness, pooler: str) -> None:
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
    assert told(alone) == (1, f"4 was left as it is: {why}\n", "")
    assert gd("delete", 8).exit_code == 0
    assert told(gd("retry", 4)) == (0, "4 is retried\n", "")


def test_what_is_deleted_is_out_of_sight_until_it_is_restored(
    gd: Gd, shop: Harness, sql: psycopg.Connection[Any]
) -> None:
    shop.insert(Checkout, {}, correlation_key="order:1")
    shop.insert(Checkout, {})
    assert told(gd("delete", "order:1", "--reason", "gdpr", "--actor", "ada")) == (0, "1 is deleted\n", "")
    assert [each.id for each in shop.list()] == [2]
    assert told(gd("delete", 1)) == (0, "1 was left as it is: cancelled, deleted\n", "")
    assert told(gd("retry", 1)) == (1, "1 was left as it is: cancelled, deleted\n", "")
    assert told(gd("restore", 2)) == (0, "2 was left as it is: runnable, not deleted\n", "")
    assert told(gd("restore", "order:1", "--actor", "bob")) == (0, "1 is restored\n", "")
    assert audit(sql) == [
        (1, "cancelled", "ada", "gdpr"),
        (1, "deleted", "ada", "gdpr"),
        (1, "restored", "bob", None),
    ]


def test_restoring_by_key_means_the_one_that_is_deleted(gd: Gd, shop: Harness) -> None:
    shop.insert(Checkout, {}, correlation_key="order:1")
    shop.soft_delete(1)
    shop.insert(Checkout, {}, correlation_key="order:1")
    assert told(gd("restore", "order:1")) == (0, "1 is restored\n", "")


def test_restoring_all_that_match_means_those_that_are_deleted(gd: Gd, shop: Harness) -> None:
    for _ in range(3):
        shop.insert(Checkout, {})
    shop.soft_delete(1)
    shop.soft_delete(3)
    asked = gd("restore", "--where", "machine=Checkout", answer="y\n")
    assert told(asked) == (0, "2 restored\n", "Restore 2 instances (2 Checkout cancelled)? [y/N]: y\n")
    assert [each.id for each in shop.list()] == [3, 2, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cancel"], "which instances? give ids or correlation keys, or --where"),
        (
            ["cancel", "--where", "machine=Checkout", "status=failed"],
            "give instances or --where, not both; did you mean --where status=failed?",
        ),
        (
            ["cancel", "order:60", "--where", "machine=Checkout"],
            "give instances or --where, not both: leave out order:60, or --where",
        ),
        (
            ["retry", "--where", "machin=Checkout"],
            "--where machin=Checkout: write FILTER=VALUE; did you mean 'machine'?",
        ),
        (
            ["delete", "--where", "Checkout"],
            "--where Checkout: write FILTER=VALUE; the filters are machine, step,",
        ),
        (["restore", "--where", "status=gone"], "--where status: 'gone' is not a status"),
        (["cancel", "--where", "queue=a", "--where", "queue=b"], "--where queue is given 2 times"),
        (["cancel", "1", "--actor", ""], "--actor is empty"),
        (["cancel", str(2**63)], "the id is 9223372036854775808"),
    ],
)
def test_a_wrong_call_is_told_in_a_sentence(gd: Gd, arguments: list[str], message: str) -> None:
    assert refused(gd(*arguments)).startswith(message)


@pytest.mark.parametrize("verb", ["cancel", "retry", "delete", "restore"])
def test_help_tells_the_exit_codes(gd: Gd, verb: str) -> None:
    text = " ".join(gd(verb, "--help").stdout.split())
    assert "Exit code 0: they" in text
    assert "; 1: " in text
    assert "; 2: a wrong call, nobody there, or no database." in text
