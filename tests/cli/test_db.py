"""`gen-durable db …` on a schema that exists for one test."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner, Result

from gen_durable._db.migrate import LATEST
from gen_durable.cli.root import root
from tests.cli.conftest import Gd

Run = Callable[..., Result]


@pytest.fixture
def schema() -> str:
    return f"cli_{uuid.uuid4().hex[:12]}"


@pytest.fixture
def run(schema: str) -> Iterator[Run]:
    def call(*arguments: str, answer: str = "") -> Result:
        return CliRunner().invoke(
            root, ["db", *arguments, "--schema", schema], input=answer, prog_name="gen-durable"
        )

    yield call
    call("down", "--yes")


def test_tables_are_installed_looked_at_and_taken_back(run: Run, schema: str) -> None:
    nothing = (1, f"schema '{schema}' has no tables of gen_durable (latest version: {LATEST})\n")
    latest = (0, f"schema '{schema}' is at version {LATEST} (the latest)\n")
    assert told(run("status")) == nothing
    assert told(run("migrate")) == latest
    assert told(run("migrate")) == latest
    assert told(run("status")) == latest
    assert told(run("down", "--yes")) == (0, nothing[1])
    assert told(run("status")) == nothing


def test_nothing_is_dropped_without_a_yes(run: Run, schema: str) -> None:
    run("migrate")
    question = f"Drop tables of schema '{schema}', with all instances in them? [y/N]: "
    refused = run("down", answer="n\n")
    assert (refused.exit_code, refused.stdout, refused.stderr) == (
        1,
        "",
        f"{question}n\nnothing was changed\n",
    )
    unanswered = run("down")
    assert (unanswered.exit_code, unanswered.stdout, unanswered.stderr) == (
        2,
        "",
        f"{question}\ngen-durable: nothing was changed; answer the question, or say --yes\n",
    )
    assert run("status").exit_code == 0
    assert run("down", answer="y\n").exit_code == 0
    assert run("status").exit_code == 1


def test_a_version_that_does_not_exist_is_refused_in_a_sentence(run: Run) -> None:
    refused = run("migrate", "--to", "99")
    assert refused.exit_code == 2
    assert refused.stderr.startswith("gen-durable: there is no schema version 99;")


def test_sql_needs_no_database(schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEN_DURABLE_DSN", "postgresql://nobody@127.0.0.1:1/nowhere")
    printed = CliRunner().invoke(root, ["db", "sql", "--schema", schema])
    assert printed.exit_code == 0
    assert printed.stdout.startswith("begin;\n\nset local search_path = pg_catalog, pg_temp;\n\ndo $$ begin")
    assert f'create schema "{schema}"' in printed.stdout
    assert printed.stdout.endswith("commit;\n")
    assert "gen_durable." not in code(printed.stdout)


@pytest.mark.parametrize("port", [1, 99999])
@pytest.mark.parametrize("command", ["status", "migrate"])
def test_an_unreachable_database_is_told_in_a_few_lines(command: str, port: int) -> None:
    dsn = f"postgresql://app:s3:cret@127.0.0.1:{port}/shop"
    failed = CliRunner().invoke(root, ["db", command, "--dsn", dsn])
    assert (failed.exit_code, failed.stdout) == (2, "")
    assert len(failed.stderr.splitlines()) <= 4
    assert f"cannot reach PostgreSQL at postgresql://app@127.0.0.1:{port}/shop" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert "s3" not in failed.stderr
    assert "cret" not in failed.stderr


def test_a_schema_name_that_cannot_be_is_refused() -> None:
    refused = CliRunner().invoke(root, ["db", "sql", "--schema", "Robert'); drop"])
    assert refused.exit_code == 2
    assert refused.stderr.startswith("gen-durable: settings.schema must match")


def told(result: Result) -> tuple[int, str]:
    return result.exit_code, result.output


def code(script: str) -> str:
    return "\n".join(line.partition("--")[0] for line in script.splitlines())


@pytest.mark.parametrize(
    ("dsn", "shown"),
    [
        (
            "postgresql://app:s3:cret@db.local:6432/shop?sslmode=require",
            "postgresql://app@db.local:6432/shop?sslmode=require",
        ),
        (
            "postgresql:///shop?user=app&password=s3cret&sslmode=require",
            "postgresql:///shop?user=app&sslmode=require",
        ),
        ("postgresql:///shop?password=s3cret", "postgresql:///shop"),
        ("host=db.local password='s3 cret' dbname=shop", "host=db.local dbname=shop"),
        ("postgresql:///shop", "postgresql:///shop"),
    ],
)
def test_the_url_has_no_password_unless_it_is_asked_for(dsn: str, shown: str) -> None:
    assert told(CliRunner().invoke(root, ["db", "url", "--dsn", dsn])) == (0, f"{shown}\n")
    assert told(CliRunner().invoke(root, ["db", "url", "--dsn", dsn, "--password"])) == (0, f"{dsn}\n")


def test_the_url_of_the_server_in_use_is_one_that_drivers_take(
    durable_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEN_DURABLE_DSN", durable_dsn)
    printed = CliRunner().invoke(root, ["db", "url"]).stdout.strip()
    with psycopg.connect(printed) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


def test_a_newer_schema_that_works_with_this_code(gd: Gd, sql: psycopg.Connection[Any]) -> None:
    sql.execute("insert into gen_durable.migrations values (%s, now(), %s)", [LATEST + 1, LATEST])
    age = f"this gen_durable is of version {LATEST} and works with it"
    for command in ("status", "migrate"):
        result = gd("db", command)
        assert result.stdout == f"schema 'gen_durable' is at version {LATEST + 1} ({age})\n"
        assert result.exit_code == 0
    assert gd("ls").exit_code == 0
    sql.execute("update gen_durable.migrations set oldest_code = version where version = %s", [LATEST + 1])
    assert gd("db", "status").exit_code == 1
    assert gd("db", "migrate").exit_code == 2
    assert "upgrade the package" in gd("ls").stderr
