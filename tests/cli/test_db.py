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
from tests.cli.conftest import Gd, parsed

Run = Callable[..., Result]


@pytest.fixture
def schema() -> str:
    return f"cli_{uuid.uuid4().hex[:12]}"


@pytest.fixture
def run(schema: str, durable_dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    monkeypatch.setenv("GEN_DURABLE_DSN", durable_dsn)

    def call(*arguments: str, answer: str = "") -> Result:
        return CliRunner().invoke(
            root, ["db", *arguments, "--schema", schema], input=answer, prog_name="gen-durable"
        )

    yield call
    call("down", "--yes")


def test_migrate_status_and_down(run: Run, schema: str) -> None:
    nothing = (1, f"schema '{schema}' has no gen_durable tables (latest version: {LATEST})\n")
    latest = (0, f"schema '{schema}' is at version {LATEST} (the latest)\n")
    assert output(run("status")) == nothing
    assert output(run("migrate")) == latest
    assert output(run("migrate")) == latest
    assert output(run("status")) == latest
    assert output(run("down", "--yes")) == (0, nothing[1])
    assert output(run("status")) == nothing


@pytest.mark.clause("AUD-14")
def test_migrate_records_its_reason(run: Run, schema: str) -> None:
    assert run("migrate", "--reason", "release 7", "--actor", "ada").exit_code == 0
    assert run("migrate", "--reason", "again").exit_code == 0, "changes nothing, so it records nothing"
    read = CliRunner().invoke(root, ["audit", "--json", "--schema", schema])
    (event,) = parsed(read)
    assert (event["subject"], event["event"]) == ("schema", "migrated")
    assert (event["reason"], event["actor"]) == ("release 7", "ada")
    assert event["data"] == {"version": LATEST, "before": 0}
    assert run("down", "--yes", "--reason", "no longer used").exit_code == 0


def test_down_needs_confirmation(run: Run, schema: str) -> None:
    run("migrate")
    question = f"Drop tables of schema '{schema}' with all their instances? [y/N]: "
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
        f"{question}\ngen-durable: nothing was changed: no confirmation. Add --yes.\n",
    )
    assert run("status").exit_code == 0
    assert run("down", answer="y\n").exit_code == 0
    assert run("status").exit_code == 1


def test_unknown_schema_version(run: Run) -> None:
    refused = run("migrate", "--to", "99")
    assert refused.exit_code == 2
    assert refused.stderr.startswith("gen-durable: schema version 99 does not exist;")


def test_sql_needs_no_database(schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEN_DURABLE_DSN", "postgresql://app@127.0.0.1:1/nowhere")
    printed = CliRunner().invoke(root, ["db", "sql", "--schema", schema])
    assert printed.exit_code == 0
    assert printed.stdout.startswith("begin;\n\nset local search_path = pg_catalog, pg_temp;\n\ndo $$ begin")
    assert f'create schema "{schema}"' in printed.stdout
    assert printed.stdout.endswith("commit;\n")
    assert "gen_durable." not in code(printed.stdout)


@pytest.mark.parametrize("port", [1, 99999])
@pytest.mark.parametrize("command", ["status", "migrate"])
def test_unreachable_database(command: str, port: int) -> None:
    dsn = f"postgresql://app:s3:cret@127.0.0.1:{port}/shop"
    failed = CliRunner().invoke(root, ["db", command, "--dsn", dsn])
    assert (failed.exit_code, failed.stdout) == (2, "")
    assert len(failed.stderr.splitlines()) <= 4
    assert f"cannot reach PostgreSQL at postgresql://app@127.0.0.1:{port}/shop" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert "s3" not in failed.stderr
    assert "cret" not in failed.stderr


def test_invalid_schema_name() -> None:
    refused = CliRunner().invoke(root, ["db", "sql", "--schema", "Robert'); drop"])
    assert refused.exit_code == 2
    assert refused.stderr.startswith("gen-durable: settings.schema must match")


def output(result: Result) -> tuple[int, str]:
    """Return the exit code and the last line; `status` describes an embedded server above it."""
    return result.exit_code, result.output.splitlines(keepends=True)[-1]


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
def test_url_has_no_password_by_default(dsn: str, shown: str) -> None:
    assert output(CliRunner().invoke(root, ["db", "url", "--dsn", dsn])) == (0, f"{shown}\n")
    assert output(CliRunner().invoke(root, ["db", "url", "--dsn", dsn, "--password"])) == (0, f"{dsn}\n")


def test_url_is_usable_by_drivers(durable_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEN_DURABLE_DSN", durable_dsn)
    printed = CliRunner().invoke(root, ["db", "url"]).stdout.strip()
    with psycopg.connect(printed) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


def test_status_says_that_the_environment_gave_the_dsn(gd: Gd, monkeypatch: pytest.MonkeyPatch) -> None:
    unreachable = "postgresql://app@127.0.0.1:1/shop"
    monkeypatch.setenv("GEN_DURABLE_DSN", unreachable)
    assert "the DSN came from GEN_DURABLE_DSN" in gd("db", "status").stderr
    assert "the DSN was given as an argument" in gd("db", "status", "--dsn", unreachable).stderr


def test_newer_compatible_schema(gd: Gd, sql: psycopg.Connection[Any]) -> None:
    sql.execute("insert into gen_durable.migrations values (%s, now(), %s)", [LATEST + 1, LATEST])
    age = f"this gen_durable has version {LATEST} and works with it"
    for command in ("status", "migrate"):
        result = gd("db", command)
        assert output(result) == (0, f"schema 'gen_durable' is at version {LATEST + 1} ({age})\n")
    assert gd("ls").exit_code == 0
    sql.execute("update gen_durable.migrations set oldest_code = version where version = %s", [LATEST + 1])
    assert gd("db", "status").exit_code == 1
    for newer in (["db", "migrate"], ["db", "down", "--yes"], ["ls"]):
        result = gd(*newer)
        assert result.exit_code == 2
        assert "upgrade the package" in result.stderr
