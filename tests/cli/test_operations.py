"""`gen-durable workers | queues | explain | doctor`, and the options of a worker that operators need."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from gen_durable._core.model import Execution
from gen_durable._db import workers
from gen_durable.testing import Harness
from tests.cli.conftest import Gd, execute, output, parsed, refused
from tests.cli.machines import Checkout, Parcel
from tests.support.worker_rows import WORKER_ROW


def test_workers(gd: Gd, shop: Harness) -> None:
    assert output(gd("workers")) == (0, "", "no workers\n")
    shop._database.run(workers.announce(WORKER_ROW, timedelta(hours=1), in_flight=3))
    lines = gd("workers").stdout.splitlines()
    assert lines[0].split() == ["NAME", "STATE", "UP", "SEEN", "LEASED", "VERSION", "SERVES", "MACHINES"]
    assert lines[1].split() == ["w", "live", "0s", "0s", "3/10", "1", "default", "10", "A", "v1"]
    (worker,) = parsed(gd("workers", "--json"))
    assert (worker["name"], worker["is_live"], worker["machines"]) == ("w", True, [["A", 1]])
    assert worker["blocked"] is None
    assert (worker["capacities"], worker["capacity"], worker["in_flight"]) == ({"default": 10}, None, 3)


def test_worker_whose_event_loop_is_blocked(gd: Gd, shop: Harness) -> None:
    shop._database.run(workers.announce(WORKER_ROW, timedelta(hours=1)))
    shop._database.run(workers.blocked("w", timedelta(hours=1), None, timedelta(seconds=7)))
    assert gd("workers").stdout.splitlines()[1].split()[:3] == ["w", "blocked", "0s"]
    shop._database.run(
        workers.blocked(
            "w",
            timedelta(hours=1),
            Execution(7, 1, "A", 1, "s", 0, 0, "{}", "default"),
            timedelta(seconds=7),
        )
    )
    assert gd("workers").stdout.splitlines()[1].split()[:5] == ["w", "blocked", "by", "A", "7"]
    blocked = parsed(gd("workers", "--json"))[0]["blocked"]
    assert (blocked["machine"], blocked["step"], blocked["id"]) == ("A", "s", 7)
    shop._database.run(workers.announce(WORKER_ROW, timedelta(hours=1)))
    assert parsed(gd("workers", "--json"))[0]["blocked"] is None


def test_queues(gd: Gd, shop: Harness) -> None:
    shop.insert(Checkout, {})
    unknown = "warning: no worker serves queue mail\n"
    assert output(gd("queues", "pause", "mail", "--actor", "ann")) == (0, "queue mail paused\n", unknown)
    assert output(gd("queues", "set", "mail", "--concurrency", 3)) == (
        0,
        "concurrency of queue mail set to 3 per worker\n",
        "",
    )
    mail = next(each for each in parsed(gd("queues", "--json")) if each["name"] == "mail")
    assert (mail["is_paused"], mail["concurrency"], mail["due"]) == (True, 3, 0)
    assert "paused by ann" in gd("queues").stdout
    assert output(gd("queues", "set", "mail", "--reset")) == (
        0,
        "concurrency of queue mail reset to that of each worker\n",
        "",
    )
    assert output(gd("queues", "resume", "mail")) == (0, "queue mail resumed\n", "")
    assert gd("queues", "set", "mail").exit_code == 2
    assert "the queue" in refused(gd("queues", "pause", ""))


def test_changes_of_queues_and_limits_as_json(gd: Gd, shop: Harness) -> None:
    shop._database.run(workers.announce(WORKER_ROW, timedelta(hours=1)))
    paused = parsed(gd("queues", "pause", "default", "--actor", "ann", "--json"))
    assert (paused["name"], paused["is_paused"], paused["paused_by"]) == ("default", True, "ann")
    assert parsed(gd("queues", "set", "default", "--concurrency", 3, "--json"))["concurrency"] == 3
    assert parsed(gd("queues", "resume", "default", "--json"))["is_paused"] is False
    tenant = {"name": "tenant", "kind": "concurrency", "slots": 3}
    crm = {"name": "crm", "kind": "rate", "allowed": 100, "per_seconds": 60.0, "burst": 100}
    assert parsed(gd("limits", "set", "tenant=3", "crm=100/1m", "--json")) == [tenant, crm]
    assert parsed(gd("limits", "rm", "crm", "--json")) == {"name": "crm", "removed": True}


def test_pause_waits_for_confirmations(gd: Gd, shop: Harness) -> None:
    confirmed = (0, "queue mail paused, confirmed by all live workers\n", "")
    assert output(gd("queues", "pause", "mail", "--wait"))[:2] == confirmed[:2]
    shop._database.run(workers.announce(WORKER_ROW, timedelta(hours=1)))
    late = gd("queues", "pause", "mail", "--wait", "--timeout", "200ms")
    assert (late.exit_code, late.stdout) == (3, "")
    assert late.stderr.splitlines()[-1].startswith(
        "gen-durable: queue 'mail' is paused, but not confirmed by w. Wait longer"
    )
    mail = shop._database.run(workers.pause_queue("mail", None))
    assert mail.paused_at is not None
    shop._database.run(workers.announce(WORKER_ROW, timedelta(hours=1), paused={"mail": mail.paused_at}))
    assert output(gd("queues", "pause", "mail", "--wait"))[:2] == confirmed[:2]
    assert gd("queues", "pause", "mail", "--timeout", "1s").exit_code == 2


def test_explain_ends_with_the_fix(gd: Gd, shop: Harness, sql: psycopg.Connection[Any]) -> None:
    shop.insert(Parcel, -1)
    shop.insert(Checkout, {})
    shop.drain()
    assert gd("explain", 1).stdout.splitlines()[-1] == "  retry: gen-durable retry 1"
    assert gd("explain", 2).stdout.splitlines()[-1] == "  send it: gen-durable signal 2 payment"
    declared = '{"payment": {"type": "integer"}}'
    sql.execute("update gen_durable.machines set signals = %s where fsm = 'Checkout'", [declared])
    assert gd("explain", 2).stdout.splitlines()[-1] == "  send it: gen-durable signal 2 payment PAYLOAD"
    sql.execute(
        "update gen_durable.gen_durable set status = 'runnable', attempt = 1,"
        " eligible_at = now() + interval '1 h' where id = 2"
    )
    assert gd("explain", 2).stdout.splitlines()[-1] == "  run it now: gen-durable edit 2 --wake"


def test_explain(gd: Gd, shop: Harness, sql: psycopg.Connection[Any]) -> None:
    ref = shop.insert(Checkout, {})
    lines = gd("explain", ref.id).stdout.splitlines()
    assert lines[0] == f"Checkout {ref.id} has status runnable at step {lines[0].split()[-1]}"
    assert lines[1].strip().startswith("no live worker serves queue")
    queue = parsed(gd("explain", ref.id, "--json"))["queue"]
    gd("queues", "pause", queue, "--actor", "ann")
    paused, unserved = gd("explain", ref.id).stdout.splitlines()[1:]
    assert paused.startswith(f'  queue "{queue}" paused at ')
    assert paused.endswith(f" by ann; resume: gen-durable queues resume {queue}")
    assert unserved == lines[1]
    execute(sql, ref.id)
    explained = parsed(gd("explain", ref.id, "--json"))
    assert [reason["reason"] for reason in explained["reasons"]] == ["executing"]
    assert refused(gd("explain", 999)).startswith("no instance has id 999. If it is a correlation key:")
    assert refused(gd("explain", "nobody")) == "no instance has correlation key 'nobody'"


def test_doctor(gd: Gd, shop: Harness, sql: psycopg.Connection[Any]) -> None:
    sql.execute("revoke create on schema public from public")  # as since PostgreSQL 15
    assert output(gd("doctor")) == (0, "no problems found\n", "")
    shop.insert(Checkout, {})
    code, printed, _ = output(gd("doctor"))
    assert code == 1
    assert printed.startswith("problem: no live worker serves queue")
    result = gd("doctor", "--json")
    assert (result.exit_code, [each["code"] for each in parsed(result)]) == (1, ["queue.unserved"])
    gd("queues", "pause", "default")
    queue = parsed(result)[0]["facts"]["queue"]
    gd("queues", "pause", queue)
    result = gd("doctor", "--json")
    assert (result.exit_code, [each["code"] for each in parsed(result)]) == (0, ["queue.paused"])


def test_doctor_finds_a_missing_schema(gd: Gd) -> None:
    result = gd("doctor", "--schema", "nowhere", "--json")
    assert (result.exit_code, parsed(result)[0]["code"]) == (1, "schema.version")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "Missing argument 'TARGET'"),
        (["--no-queues", "--queue", "a=1"], "--no-queues excludes --queue and --prefix"),
        (["--no-queues", "--health", "nowhere"], "health must be a port or host:port"),
    ],
)
def test_worker_usage_errors(gd: Gd, options: list[str], message: str) -> None:
    result = gd("worker", *options)
    assert result.exit_code == 2
    assert message in result.stderr
