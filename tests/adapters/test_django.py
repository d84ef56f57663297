"""Django: client, migrations, commands and admin."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured, SynchronousOnlyOperation
from django.core.management import CommandError, call_command
from django.db import connection, connections, transaction
from django.db.transaction import TransactionManagementError
from django.test import Client as Browser
from django.test import override_settings

from gen_durable import Client, Inserted, Spec
from gen_durable._db.migrate import LATEST
from gen_durable.config import Settings
from gen_durable.errors import DatabaseError, UsageError
from gen_durable.testing import Harness
from tests.adapters import site
from tests.clients.machines import Checkout, Number, Order, Payment

site.set_up()

from gen_durable.contrib.django import DjangoClient, conf, database_dsn  # noqa: E402
from gen_durable.contrib.django.management.commands.gen_durable import Command  # noqa: E402
from gen_durable.contrib.django.models import AuditEvent, Execution, Instance  # noqa: E402

KEYS = (f"django:{n}" for n in itertools.count())


@pytest.fixture(scope="module", autouse=True)
def database(dsn: str) -> Iterator[None]:
    with site.on(dsn):
        with override_settings(MIGRATION_MODULES=site.AT_ONCE):
            call_command("migrate", verbosity=0, run_syncdb=True)
        yield


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the environment variables that the commands set."""
    for name in ("DSN", "DSN_SOURCE", "SCHEMA", "LEASE"):
        monkeypatch.setenv(f"GEN_DURABLE_{name}", "")


@pytest.fixture
def durable() -> DjangoClient:
    return DjangoClient()


def seen(dsn: str, key: str) -> int:
    """What other connections see."""
    with psycopg.connect(dsn) as conn:
        query = "select count(*) from gen_durable.gen_durable where correlation_key like %s"
        row = conn.execute(query, (f"{key}%",)).fetchone()
        assert row is not None
        return int(row[0])


def work(client: Client, key: str, **options: Any) -> None:
    client.insert(Checkout, Order(1), correlation_key=key, **options)
    client.insert_all([Spec(Number, n, correlation_key=f"{key}:{n}") for n in range(2)], **options)
    client.signal(key, Checkout.payment, Payment(1), **options)
    client.cancel(f"{key}:1", **options)


@pytest.mark.clause("ADAPT-1", "ADAPT-5")
def test_insert_commits_or_rolls_back_with_the_atomic_block(dsn: str, durable: DjangoClient) -> None:
    key = next(KEYS)
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        work(durable, key)
        raise ZeroDivisionError
    assert seen(dsn, key) == 0
    with transaction.atomic():
        work(durable, key)
        assert seen(dsn, key) == 0
        assert durable.count(correlation_key=key) == 1, "what reads takes part as well"
    assert seen(dsn, key) == 3


@pytest.mark.clause("ADAPT-1", "ADAPT-3")
def test_client_accepts_a_django_connection(dsn: str) -> None:
    key = next(KEYS)
    client = Client("postgresql://nowhere")
    for conn in (connection, connections["default"]):
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            work(client, key, conn=conn)
            raise ZeroDivisionError
    assert seen(dsn, key) == 0
    work(client, key, conn=connection)
    assert seen(dsn, key) == 3, "outside of a block each verb is its own"


@pytest.mark.clause("ADAPT-5")
def test_inner_atomic_block_rolls_back_only_its_inserts(dsn: str, durable: DjangoClient) -> None:
    key, other = next(KEYS), next(KEYS)
    with transaction.atomic():
        durable.insert(Number, 1, correlation_key=key)
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            durable.insert(Number, 1, correlation_key=other)
            raise ZeroDivisionError
    assert (seen(dsn, key), seen(dsn, other)) == (1, 0)


@pytest.mark.clause("ADAPT-5")
def test_broken_transaction_is_refused(dsn: str, durable: DjangoClient) -> None:
    key = next(KEYS)
    elsewhere = DjangoClient()
    elsewhere._opened.schema = "nowhere"  # type: ignore[union-attr]
    with transaction.atomic():
        durable.insert(Number, 1, correlation_key=key)
        with pytest.raises(DatabaseError):
            elsewhere.insert(Number, 1)
        with pytest.raises(TransactionManagementError):
            durable.insert(Number, 1, correlation_key=key)
    assert seen(dsn, key) == 0
    durable.insert(Number, 1, correlation_key=key)
    assert seen(dsn, key) == 1


@pytest.mark.clause("ADAPT-5")
def test_client_needs_no_with_block(durable: DjangoClient) -> None:
    with durable as same:
        order = same.insert(Number, 1)
    assert isinstance(order, Inserted)
    assert durable.wait(order, timeout=timedelta(0)).status == "runnable"
    assert durable.settings.lease == timedelta(seconds=90)


@pytest.mark.clause("ADAPT-6")
async def test_client_raises_in_async_code_and_works_in_a_thread(dsn: str, durable: DjangoClient) -> None:
    key = next(KEYS)
    with pytest.raises(SynchronousOnlyOperation):
        durable.insert(Number, 1)

    def place() -> None:
        with transaction.atomic():
            durable.insert(Number, 1, correlation_key=key)
        connection.close()

    await sync_to_async(place)()
    assert seen(dsn, key) == 1


@pytest.mark.clause("ADAPT-7")
def test_migrations_create_and_drop_tables_in_any_schema(dsn: str) -> None:
    def version() -> list[tuple[int]]:
        with connection.cursor() as cursor:
            cursor.execute("select to_regclass('elsewhere.migrations') is not null")
            if cursor.fetchone() == (False,):
                return []
            cursor.execute("select max(version) from elsewhere.migrations")
            return list(cursor.fetchall())

    with override_settings(GEN_DURABLE={"SCHEMA": "elsewhere"}):
        call_command("migrate", "gen_durable", "zero", verbosity=0)  # nothing there: nothing to take
        assert version() == []
        call_command("migrate", "gen_durable", verbosity=0)
        assert version() == [(LATEST,)]
        DjangoClient().insert(Number, 1)
        call_command("migrate", "gen_durable", "zero", verbosity=0)
        assert version() == []
    call_command("migrate", "gen_durable", verbosity=0)  # installed before, by another way
    assert DjangoClient().doctor() is not None


@pytest.mark.clause("ADAPT-7")
def test_every_increment_has_a_django_migration() -> None:
    ours = re.compile(r"^ \[X\] (\d{4})_", re.MULTILINE)
    output = io.StringIO()
    call_command("showmigrations", "gen_durable", stdout=output)
    assert [int(number) for number in ours.findall(output.getvalue())] == list(range(1, LATEST + 1)), (
        "every directory of _db/migrations needs a module of its name in contrib/django/migrations"
    )
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)


@pytest.mark.clause("ADAPT-7")
def test_sqlmigrate_prints_the_statements() -> None:
    output = io.StringIO()
    call_command("sqlmigrate", "gen_durable", "0001", stdout=output, no_color=True)
    text = output.getvalue()
    assert text.startswith("BEGIN;")
    assert 'create table "gen_durable".gen_durable (' in text
    assert 'insert into "gen_durable".migrations values (1, default, 1);' in text
    assert len(re.findall("^(begin|commit);", text, re.MULTILINE | re.IGNORECASE)) == 2


@pytest.mark.clause("ADAPT-7")
def test_migrations_skip_other_databases() -> None:
    class NoMigrations:
        def allow_migrate(self, *_: object, **__: object) -> bool:
            return False

    with (
        override_settings(GEN_DURABLE={"SCHEMA": "refused"}, DATABASE_ROUTERS=[NoMigrations()]),
        connection.schema_editor() as editor,
    ):
        from gen_durable.contrib.django.increments import Increment

        Increment(1).database_forwards("gen_durable", editor, None, None)
    with connection.cursor() as cursor:
        cursor.execute("select to_regnamespace('refused') is null")
        assert cursor.fetchone() == (True,)


@pytest.mark.clause("ADAPT-8")
def test_command_line_uses_the_database_of_the_project(
    durable: DjangoClient, capfd: pytest.CaptureFixture[str]
) -> None:
    key = next(KEYS)
    durable.insert(Number, 1, correlation_key=key)
    call_command("gen_durable", "ls", "--correlation-key", key, "--json")
    with pytest.raises(SystemExit) as ended:
        Command().run_from_argv(["manage.py", "gen_durable", "db", "status"])
    output = capfd.readouterr().out
    assert key in output
    assert f"schema 'gen_durable' is at version {LATEST}" in output
    assert ended.value.code == 0
    with pytest.raises(CommandError, match="no instance has"):
        call_command("gen_durable", "show", "missing")
    Command().print_help("manage.py", "gen_durable")
    assert "Run gen-durable on the database of this project" in capfd.readouterr().out


@pytest.mark.clause("ADAPT-8")
def test_connection_error_names_the_django_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.settings_dict, "HOST", "127.0.0.1")
    monkeypatch.setitem(connection.settings_dict, "PORT", "1")
    with pytest.raises(CommandError, match=r"came from DATABASES\['default'\] of the Django project$"):
        call_command("gen_durable", "ls")


@pytest.mark.clause("ADAPT-8")
def test_worker_runs_the_target_of_the_settings(monkeypatch: pytest.MonkeyPatch, dsn: str) -> None:
    ran: list[Any] = []
    monkeypatch.setattr("gen_durable.worker.Worker.run", lambda worker, **_: ran.append(worker))
    call_command("gen_durable", "worker")
    (worker,) = ran
    assert [machine.name for machine in worker.machines] == ["Checkout"]
    assert worker.settings.lease == timedelta(seconds=90)
    with override_settings(GEN_DURABLE={}), pytest.raises(CommandError, match="Missing argument 'TARGET'"):
        call_command("gen_durable", "worker")


@pytest.mark.clause("ADAPT-9")
def test_admin_is_read_only(durable: DjangoClient) -> None:
    from django.contrib.auth.models import Permission, User

    key = next(KEYS)
    order = durable.insert(Checkout, Order(7), correlation_key=key)
    durable.cancel(order, actor="ada", reason="<changed> her mind")
    staff = User.objects.create(username=key, is_staff=True)
    browser = Browser()
    browser.force_login(staff)
    assert browser.get("/admin/gen_durable/instance/").status_code == 403
    staff.user_permissions.set(Permission.objects.filter(content_type__app_label="gen_durable"))
    views = [f"view_{model}" for model in ("auditevent", "execution", "instance", "outboxevent")]
    assert set(staff.get_all_permissions()) == {
        f"gen_durable.{name}" for name in (*views, "operate_instance", "administer_instance")
    }
    for model in ("auditevent", "outboxevent", "instance"):
        assert browser.get(f"/admin/gen_durable/{model}/").status_code == 200
        assert browser.get(f"/admin/gen_durable/{model}/add/").status_code == 403
    found = browser.get("/admin/gen_durable/instance/", {"q": key, "status": "cancelled"})
    assert found.content.decode().count(key) >= 1
    assert (
        browser.get("/admin/gen_durable/instance/", {"q": "missing"}).content.decode().count("field-fsm") == 0
    )
    page = browser.get(f"/admin/gen_durable/instance/{order.id}/change/").content.decode()
    assert "&lt;changed&gt; her mind" in page
    assert 'name="_save"' not in page
    for action in ("change", "delete"):
        answer = browser.post(
            f"/admin/gen_durable/instance/{order.id}/{action}/", {"status": "done", "post": "yes"}
        )
        assert answer.status_code == 403


@pytest.mark.clause("ADAPT-9")
def test_models_are_read_only(durable: DjangoClient) -> None:
    order = durable.insert(Number, 1)
    row = Instance.objects.get(pk=order.id)
    assert (str(row), row.status, row.state) == (f"Number {order.id}", "runnable", "1")
    assert not Execution.objects.filter(job_id=order.id).exists()
    for write in (
        row.save,
        row.delete,
        Instance.objects.all().delete,
        lambda: Instance.objects.update(status="done"),
        lambda: AuditEvent.objects.create(event="created"),
    ):
        with pytest.raises(UsageError, match="read-only; use DjangoClient"):
            write()


@pytest.mark.clause("ADAPT-10")
@pytest.mark.parametrize(
    ("configured", "error"),
    [
        ({"SCHEAM": "x"}, r"GEN_DURABLE\['SCHEAM'\] is not a setting; did you mean 'SCHEMA'\?"),
        ({"schema": "x"}, r"GEN_DURABLE\['schema'\] is not a setting; did you mean 'SCHEMA'\?"),
        ({"SCHEMA": "No!"}, r"GEN_DURABLE: settings\.schema must match"),
        ({"LEASE": 5}, r"GEN_DURABLE: settings\.lease must be a timedelta, got 5"),
        ({"DATABASE": "other"}, r"GEN_DURABLE\['DATABASE'\] is 'other'; DATABASES has 'default'"),
        ("gen_durable", "GEN_DURABLE must be a dict, got 'gen_durable'"),
    ],
)
def test_invalid_settings_are_named(configured: Any, error: str) -> None:
    with override_settings(GEN_DURABLE=configured), pytest.raises(ImproperlyConfigured, match=error):
        conf.read()


@pytest.mark.clause("ADAPT-10")
def test_other_databases_than_postgresql_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections["default"], "vendor", "sqlite")
    with pytest.raises(ImproperlyConfigured, match=r"DATABASES\['default'\] is .+ needs PostgreSQL"):
        DjangoClient()


@pytest.mark.clause("ADAPT-10")
def test_dsn_of_a_project(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert psycopg.conninfo.conninfo_to_dict(database_dsn()) == psycopg.conninfo.conninfo_to_dict(dsn)
    monkeypatch.setitem(connections["default"].settings_dict, "PASSWORD", "a:b@c/d")
    monkeypatch.setitem(
        connections["default"].settings_dict,
        "OPTIONS",
        {"sslmode": "require", "pool": True, "isolation_level": 1},
    )
    configured = psycopg.conninfo.conninfo_to_dict(database_dsn("default"))
    assert (configured["password"], configured["sslmode"], "pool" in configured) == (
        "a:b@c/d",
        "require",
        False,
    )


def test_host_and_port_of_the_options_are_used(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages that parse a DATABASE_URL put the parameters of its query there."""
    configured = connections["default"].settings_dict
    host, port = configured["HOST"], configured["PORT"]
    monkeypatch.setitem(configured, "OPTIONS", {"host": "/elsewhere", "port": "1"})
    assert psycopg.conninfo.conninfo_to_dict(database_dsn()) == psycopg.conninfo.conninfo_to_dict(dsn)
    monkeypatch.setitem(configured, "OPTIONS", {"host": host, "port": port})
    monkeypatch.setitem(configured, "HOST", "")
    monkeypatch.setitem(configured, "PORT", "")
    assert psycopg.conninfo.conninfo_to_dict(database_dsn()) == psycopg.conninfo.conninfo_to_dict(dsn)


@pytest.mark.clause("ADAPT-5", "ADAPT-8")
def test_example(dsn: str) -> None:
    from bookshop.machines import Checkout as BookCheckout  # type: ignore[import-not-found]
    from bookshop.models import Order as BookOrder  # type: ignore[import-not-found]

    browser = Browser(raise_request_exception=False)
    number = browser.post("/orders/", {"title": "Ulysses"}).json()["number"]
    assert browser.post("/orders/", {"title": ""}).status_code == 500
    assert seen(dsn, f"order:{number}") == BookOrder.objects.count() == 1
    with Harness(dsn, settings=Settings()) as harness:
        harness.use(BookCheckout)
        harness.drain()
        browser.post(f"/orders/{number}/pay/")
        harness.drain()
        assert harness.wait(f"order:{number}", timeout=timedelta(0)).result == "shipped"
    assert BookOrder.objects.get(pk=number).status == "shipped"
