"""`gen-durable insert`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from gen_durable import Context, Done, Machine, Outcome, job, step
from gen_durable.testing import Harness
from tests.cli.conftest import Gd, output, parsed, refused
from tests.cli.machines import BIG


@pytest.mark.usefixtures("shop")
def test_insert_with_state_only(gd: Gd, shop: Harness) -> None:
    assert output(gd("insert", "Checkout", '{"order": 42}')) == (0, "inserted 1\n", "")
    found = shop.get(1)
    assert found is not None
    assert (found.machine, found.version, found.step, found.queue) == ("Checkout", 1, "start", "checkout")
    assert found.state == {"order": 42}


@pytest.mark.usefixtures("shop")
def test_every_option_is_stored(gd: Gd, sql: psycopg.Connection[Any]) -> None:
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


def test_insert_with_a_rate_limit(gd: Gd, shop: Harness, sql: psycopg.Connection[Any]) -> None:
    limited = ("insert", "Checkout", "--rate-limit", "crm:7", "--weight", 3)
    assert refused(gd(*limited)).startswith(
        "there is no rate limit 'crm'; set it: gen-durable limits set crm=100/1m"
    )
    gd("limits", "set", "crm=100/1m/2")
    assert refused(gd(*limited)).startswith("a weight of 3 is more than the burst of rate limit 'crm', 2")
    gd("limits", "set", "crm=100/1m/10")
    assert output(gd(*limited))[0] == 0
    row = sql.execute("select rate_limit, weight from gen_durable.gen_durable").fetchone()
    assert row == ("crm:7", 3)
    assert refused(gd("insert", "Checkout", "--weight", 3)).startswith(
        "cannot insert Checkout: weight is given without rate_limit"
    )


@pytest.mark.usefixtures("shop")
def test_insert_with_a_delay(gd: Gd, sql: psycopg.Connection[Any]) -> None:
    assert gd("insert", "Checkout", "--in", "1m30s").exit_code == 0
    row = sql.execute("select eligible_at - inserted_at, state from gen_durable.gen_durable").fetchone()
    assert row == (timedelta(seconds=90), {})


def test_state_from_standard_input_keeps_large_numbers(
    gd: Gd, shop: Harness, sql: psycopg.Connection[Any]
) -> None:
    exact = f'{{"big": {BIG}, "price": 0.10000000000000000000000000001}}'
    assert output(gd("insert", "Checkout", "-", answer=exact)) == (0, "inserted 1\n", "")
    assert sql.execute("select state::text from gen_durable.gen_durable").fetchone() == (exact,)


@pytest.mark.parametrize("option", ["--unique-key", "--idempotency-key", "--correlation-key"])
def test_taken_key_returns_the_first_instance(gd: Gd, shop: Harness, option: str) -> None:
    gd("insert", "Checkout", option, "k")
    shop.drain()
    again = gd("insert", "Checkout", option, "k")
    assert output(again) == (
        0,
        "not inserted: instance 1 (awaiting_signal) has this key; see: gen-durable show 1\n",
        "",
    )
    assert parsed(gd("insert", "Checkout", option, "k", "--json")) == {
        "id": 1,
        "inserted": False,
        "status": "awaiting_signal",
    }


def test_job_without_payload(gd: Gd, shop: Harness) -> None:
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
            "no worker has registered machine 'Chekout'; did you mean 'Checkout'? "
            "(registered: Checkout, Parcel, Shipment, ops.nightly.v1); start its worker once",
        ),
        (
            ["Parcel", "--version", "1"],
            "no worker has registered version 1 of Parcel (registered: 2); start its worker once",
        ),
        (["Checkout", "{"], "the state is invalid: Input data was truncated"),
        (["Checkout", ""], "the state is invalid: Input data was truncated"),
        (["Checkout", "[1] 2"], "the state is invalid: JSON is malformed: trailing characters (byte"),
        (
            ["Checkout", '"\\u0000"'],
            "the state is invalid: it contains a NUL character, which PostgreSQL cannot store; remove it",
        ),
        (
            ["Checkout", "[" * 200 + "]" * 200],
            "the state is invalid: it is nested more than 100 levels",
        ),
        (["Checkout", '"12345"', "--max-payload", "5"], "the state is invalid: it is 7 bytes of JSON"),
        (["Checkout", "--in", "1s", "--at", "2031-01-01T00:00Z"], "--in and --at exclude each other"),
        (
            ["Checkout", "--unique-key", "a", "--idempotency-key", "b"],
            "--unique-key and --idempotency-key exclude each other",
        ),
        (
            ["Checkout", "--unique-key", "a" * 1025],
            "cannot insert Checkout: unique_key must have 1 to 1024 bytes",
        ),
        (["Checkout", "--queue", ""], "cannot insert Checkout: queue must be a name of 1 to 255 bytes"),
        (["", "{}"], "the machine is empty"),
    ],
)
def test_invalid_inserts(gd: Gd, sql: psycopg.Connection[Any], arguments: list[str], message: str) -> None:
    assert refused(gd("insert", *arguments)).startswith(message)
    assert sql.execute("select count(*) from gen_durable.gen_durable").fetchone() == (0,)


@pytest.mark.usefixtures("shop")
def test_key_taken_by_another_machine(gd: Gd) -> None:
    gd("insert", "Checkout", "--correlation-key", "k")
    message = refused(gd("insert", "Parcel", "1", "--correlation-key", "k"))
    assert message.startswith("cannot insert Parcel: the key 'k' is held by Checkout 1")


def test_insert_before_any_worker_registered(gd: Gd) -> None:
    assert refused(gd("insert", "Checkout")) == (
        "no worker has registered machine 'Checkout' (none is registered); start its worker once"
    )


@pytest.mark.parametrize("when", ["tomorrow", "2031-01-01T00:00"])
def test_time_needs_an_offset(gd: Gd, when: str) -> None:
    wrong = gd("insert", "Checkout", "--at", when)
    assert wrong.exit_code == 2
    assert "2026-01-31T09:00Z" in wrong.stderr or f"write {when}Z" in wrong.stderr


def test_correlation_key_of_digits_warns(gd: Gd, shop: Harness) -> None:
    done = gd("insert", "Checkout", "--correlation-key", "77")
    assert output(done) == (
        0,
        "inserted 1\n",
        "warning: correlation key 77 consists of digits, which commands read as an id. "
        "Use --where correlation-key=77, or ls --correlation-key 77.\n",
    )
    assert "If it is a correlation key: gen-durable cancel --where correlation-key=77" in refused(
        gd("cancel", 77)
    )
    assert "If 77 is a correlation key: gen-durable ls --correlation-key 77" in refused(
        gd("signal", 77, "go")
    )
    assert gd("cancel", "--where", "correlation-key=77", "--yes").exit_code == 0


class Imported(Machine[int, None], priority=4, max_attempts=2, concurrency_key="importer"):
    @step
    async def run(self, ctx: Context[int]) -> Outcome[None]:
        return Done()


@job("cli.push", concurrency_key=lambda tenant: ("tenant", tenant))
async def push(tenant: int) -> None: ...


_DEFAULTS = "select priority, max_attempts, concurrency_key from gen_durable.gen_durable order by id"


@pytest.mark.clause("INS-12", "INS-13")
def test_insert_gets_the_defaults_of_the_machine(gd: Gd, shop: Harness, sql: psycopg.Connection[Any]) -> None:
    shop.use(Imported)
    shop.use(push)
    shop.drain()
    assert gd("insert", "Imported", "1").exit_code == 0
    assert gd("insert", "Imported", "1", "--priority", "0", "--concurrency-key", "own").exit_code == 0
    assert "computes concurrency_key from the state" in refused(gd("insert", "cli.push", "7"))
    assert gd("insert", "cli.push", "7", "--concurrency-key", "tenant:7").exit_code == 0
    assert sql.execute(_DEFAULTS).fetchall() == [(4, 2, "importer"), (0, 2, "own"), (0, None, "tenant:7")]
