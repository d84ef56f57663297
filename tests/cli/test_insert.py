"""`gen-durable insert`: by the name that a worker has registered."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from gen_durable.testing import Harness
from tests.cli.conftest import Gd, parsed, refused, told
from tests.cli.machines import BIG


@pytest.mark.usefixtures("shop")
def test_a_name_and_a_state_are_enough(gd: Gd, shop: Harness) -> None:
    assert told(gd("insert", "Checkout", '{"order": 42}')) == (0, "inserted 1\n", "")
    found = shop.get(1)
    assert found is not None
    assert (found.machine, found.version, found.step, found.queue) == ("Checkout", 1, "start", "checkout")
    assert found.state == {"order": 42}


@pytest.mark.usefixtures("shop")
def test_every_option_finds_its_column(gd: Gd, sql: psycopg.Connection[Any]) -> None:
    done = gd(
        *("insert", "Parcel", "7", "--step", "pack", "--queue", "q", "--priority", "-5", "--version", "2"),
        *("--at", "2031-01-02T04:04:05+01:00", "--correlation-key", "c", "--unique-key", "u"),
        *("--concurrency-key", "tenant:7", "--max-attempts", "9", "--json"),
    )
    assert parsed(done) == {"id": 1, "inserted": True, "status": "runnable"}
    row = sql.execute(
        "select step, queue, priority, fsm_version, eligible_at, correlation_key, unique_key, concurrency_key,"
        " max_attempts, state from gen_durable.gen_durable"
    ).fetchone()
    at = datetime(2031, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert row == ("pack", "q", -5, 2, at, "c", b"u", "tenant:7", 9, 7)


def test_it_may_count_for_a_rate_limit(gd: Gd, shop: Harness, sql: psycopg.Connection[Any]) -> None:
    limited = ("insert", "Checkout", "--rate-limit", "crm:7", "--weight", 3)
    assert refused(gd(*limited)).startswith("there is no rate limit 'crm'; set it with")
    gd("limits", "set", "crm=100/1m/2")
    assert refused(gd(*limited)).startswith("a weight of 3 is more than the burst of rate limit 'crm', 2")
    gd("limits", "set", "crm=100/1m/10")
    assert told(gd(*limited))[0] == 0
    row = sql.execute("select rate_limit, weight from gen_durable.gen_durable").fetchone()
    assert row == ("crm:7", 3)
    assert refused(gd("insert", "Checkout", "--weight", 3)).startswith(
        "cannot insert Checkout: weight is given without rate_limit"
    )


@pytest.mark.usefixtures("shop")
def test_it_may_run_later(gd: Gd, sql: psycopg.Connection[Any]) -> None:
    assert gd("insert", "Checkout", "--in", "1m30s").exit_code == 0
    row = sql.execute("select eligible_at - inserted_at, state from gen_durable.gen_durable").fetchone()
    assert row == (timedelta(seconds=90), {})


def test_the_state_may_come_by_standard_input_and_numbers_keep_their_digits(
    gd: Gd, shop: Harness, sql: psycopg.Connection[Any]
) -> None:
    exact = f'{{"big": {BIG}, "price": 0.10000000000000000000000000001}}'
    assert told(gd("insert", "Checkout", "-", answer=exact)) == (0, "inserted 1\n", "")
    assert sql.execute("select state::text from gen_durable.gen_durable").fetchone() == (exact,)


@pytest.mark.parametrize("option", ["--unique-key", "--idempotency-key", "--correlation-key"])
def test_a_key_that_is_taken_gives_the_first_instance_and_its_status(
    gd: Gd, shop: Harness, option: str
) -> None:
    gd("insert", "Checkout", option, "k")
    shop.drain()
    again = gd("insert", "Checkout", option, "k")
    assert told(again) == (0, "1 has that key already; it is awaiting_signal\n", "")
    assert parsed(gd("insert", "Checkout", option, "k", "--json")) == {
        "id": 1,
        "inserted": False,
        "status": "awaiting_signal",
    }


def test_a_job_without_a_payload_needs_none(gd: Gd, shop: Harness) -> None:
    assert gd("insert", "ops.nightly.v1").exit_code == 0
    assert gd("insert", "ops.nightly.v1", "null").exit_code == 0
    shop.drain()
    assert (shop.assert_done(1), shop.assert_done(2)) == ("swept", "swept")


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["Chekout"],
            "no worker has registered a machine 'Chekout'; did you mean 'Checkout'? "
            "(there are Checkout, Parcel, Shipment, ops.nightly.v1); start its worker once",
        ),
        (
            ["Parcel", "--version", "1"],
            "no worker has registered version 1 of Parcel (there are 2); start its worker once",
        ),
        (["Checkout", "{"], "the state cannot be used: Input data was truncated"),
        (["Checkout", ""], "the state cannot be used: Input data was truncated"),
        (["Checkout", "[1] 2"], "the state cannot be used: JSON is malformed: trailing characters (byte"),
        (
            ["Checkout", '"\\u0000"'],
            "the state cannot be used: it contains a NUL character, which PostgreSQL cannot store; remove it",
        ),
        (
            ["Checkout", "[" * 200 + "]" * 200],
            "the state cannot be used: it is nested more than 100 levels",
        ),
        (["Checkout", '"12345"', "--max-payload", "5"], "the state cannot be used: it is 7 bytes of JSON"),
        (["Checkout", "--in", "1s", "--at", "2031-01-01T00:00Z"], "--in and --at are both given"),
        (
            ["Checkout", "--unique-key", "a", "--idempotency-key", "b"],
            "--unique-key and --idempotency-key are both",
        ),
        (
            ["Checkout", "--unique-key", "a" * 1025],
            "cannot insert Checkout: unique_key must have 1 to 1024 bytes",
        ),
        (["Checkout", "--queue", ""], "cannot insert Checkout: queue must be a name of 1 to 255 bytes"),
        (["", "{}"], "the machine is empty"),
    ],
)
def test_what_cannot_be_is_told_in_a_sentence_and_nothing_is_inserted(
    gd: Gd, sql: psycopg.Connection[Any], arguments: list[str], message: str
) -> None:
    assert refused(gd("insert", *arguments)).startswith(message)
    assert sql.execute("select count(*) from gen_durable.gen_durable").fetchone() == (0,)


@pytest.mark.usefixtures("shop")
def test_a_key_of_another_machine_is_told(gd: Gd) -> None:
    gd("insert", "Checkout", "--correlation-key", "k")
    message = refused(gd("insert", "Parcel", "1", "--correlation-key", "k"))
    assert message.startswith("cannot insert Parcel: the key 'k' is held by Checkout 1")


def test_where_no_worker_ever_was_nothing_is_known(gd: Gd) -> None:
    assert refused(gd("insert", "Checkout")) == (
        "no worker has registered a machine 'Checkout' (none has registered any); start its worker once"
    )


@pytest.mark.parametrize("when", ["tomorrow", "2031-01-01T00:00"])
def test_a_moment_has_a_time_zone(gd: Gd, when: str) -> None:
    wrong = gd("insert", "Checkout", "--at", when)
    assert wrong.exit_code == 2
    assert "2026-01-31T09:00Z" in wrong.stderr or f"write {when}Z" in wrong.stderr


def test_a_key_of_digits_is_warned_of(gd: Gd, shop: Harness) -> None:
    done = gd("insert", "Checkout", "--correlation-key", "77")
    assert told(done) == (
        0,
        "inserted 1\n",
        "gen-durable: the correlation key 77 is all digits, which commands take for an id; "
        "they find it by --where correlation-key=77\n",
    )
    assert "if that is a correlation key: --where correlation-key=77" in refused(gd("cancel", 77))
    assert "gen-durable ls --correlation-key 77 has the id" in refused(gd("signal", 77, "go"))
    assert gd("cancel", "--where", "correlation-key=77", "--yes").exit_code == 0
