from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner, Result

from gen_durable._db.machines import register
from gen_durable._graph.description import describe
from gen_durable.cli.root import root
from gen_durable.testing import Harness
from tests.cli.machines import Checkout, Parcel, Shipment, nightly
from tests.support.descriptions import own

Gd = Callable[..., Result]


@pytest.fixture
def gd(durable_dsn: str, monkeypatch: pytest.MonkeyPatch) -> Gd:
    """`gen-durable …` on the database of this test."""
    monkeypatch.setenv("GEN_DURABLE_DSN", durable_dsn)

    def call(*arguments: object, answer: str | bytes | None = None) -> Result:
        return CliRunner().invoke(
            root, [str(each) for each in arguments], input=answer, prog_name="gen-durable"
        )

    return call


@pytest.fixture
def shop(durable: Harness) -> Harness:
    """A harness whose machines are registered in the database."""
    machines: list[Any] = [Checkout, Parcel, Shipment, nightly]
    for machine in machines:
        durable.use(machine)
    durable._database.run(register(own(*map(describe, machines))))
    return durable


@pytest.fixture
def sql(durable_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(durable_dsn, autocommit=True) as connection:
        yield connection


def output(result: Result) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr."""
    return result.exit_code, result.stdout, result.stderr


def refused(result: Result) -> str:
    """Return the message of an error: one or two lines, exit code 2."""
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert result.stderr.startswith("gen-durable: ")
    assert result.stderr.count("\n") <= 2
    assert "Traceback" not in result.stderr
    return result.stderr.removeprefix("gen-durable: ").rstrip("\n")


def parsed(result: Result) -> Any:
    """Return the JSON document on stdout."""
    assert result.stderr == ""
    return json.loads(result.stdout)


def execute(sql: psycopg.Connection[Any], id: int) -> None:
    """Lease an instance as a worker would."""
    sql.execute(
        "update gen_durable.gen_durable set status = 'executing', lease_token = 7, locked_by = 'w', execution = 1,"
        " lease_expires_at = now() + interval '1 h', leased_at = now() where id = %s",
        [id],
    )
