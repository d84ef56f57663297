"""Options that a machine or job declares for all of its inserts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from gen_durable import (
    AsyncClient,
    Backoff,
    Context,
    Done,
    LimitError,
    Machine,
    Outcome,
    RateLimit,
    Schedule,
    ScheduleChildren,
    Spec,
    UsageError,
    job,
    step,
)
from gen_durable.errors import OptionError
from gen_durable.testing import DrainCounts, Harness
from tests.support.rows import SqlConnection

FIELDS = "priority max_attempts concurrency_key rate_limit weight"
PER_HOUR = RateLimit("crm", 1000, per=timedelta(hours=1))


class Order(msgspec.Struct):
    tenant: int
    name: str = ""


class Import(
    Machine[Order, None], priority=5, max_attempts=2, concurrency_key="importer", rate_limit=("crm", "all")
):
    @step(retry=Backoff(base=timedelta(0)))
    async def run(self, ctx: Context[Order]) -> Outcome[None]:
        return Done()


class PerTenant(
    Machine[Order, None],
    concurrency_key=lambda order: ("tenant", order.tenant) if order.tenant else None,
    rate_limit=lambda order: ("crm", order.tenant),
):
    @step
    async def run(self, ctx: Context[Order]) -> Outcome[None]:
        return Done()


class Heir(PerTenant, name="Heir", priority=-1):
    pass


@job("push", priority=7, concurrency_key=lambda order: f"push:{order.tenant}")
async def push(order: Order) -> None: ...


@pytest.fixture
def limited(durable: Harness) -> Harness:
    durable.set_limit(PER_HOUR)
    return durable


@pytest.mark.clause("INS-12")
def test_insert_gets_the_defaults_of_the_machine(limited: Harness, sql: SqlConnection) -> None:
    plain = limited.insert(Import, Order(1))
    own = limited.insert(
        Import, Order(1), priority=0, max_attempts=9, concurrency_key="own", rate_limit="crm", weight=2
    )
    weighed = limited.insert(Import, Order(1), weight=3)
    (spec,) = limited.insert_all([Spec(Import, {"tenant": 1}, schedule_in=timedelta(hours=1))])
    assert sql.columns(plain.id, FIELDS) == (5, 2, "importer", "crm:all", None)
    assert sql.columns(own.id, FIELDS) == (0, 9, "own", "crm", 2)
    assert sql.columns(weighed.id, FIELDS) == (5, 2, "importer", "crm:all", 3)
    assert sql.columns(spec.id, FIELDS) == (5, 2, "importer", "crm:all", None)


@pytest.mark.clause("INS-13")
def test_default_key_is_computed_from_the_state(limited: Harness, sql: SqlConnection) -> None:
    refs = [
        limited.insert(PerTenant, Order(7)),
        limited.insert(PerTenant, {"tenant": 8}, weight=2),
        limited.insert(PerTenant, Order(0), concurrency_key="own"),
        limited.insert(PerTenant, Order(0)),
        limited.insert(Heir, Order(9)),
        limited.insert(push, Order(3)),
    ]
    assert [sql.columns(ref.id, FIELDS) for ref in refs] == [
        (0, None, "tenant:7", "crm:7", None),
        (0, None, "tenant:8", "crm:8", 2),
        (0, None, "own", "crm:0", None),
        (0, None, None, "crm:0", None),
        (-1, None, "tenant:9", "crm:9", None),
        (7, None, "push:3", None, None),
    ]


@pytest.mark.clause("INS-12", "INS-13")
def test_none_as_key_or_limit_means_none(limited: Harness, sql: SqlConnection) -> None:
    for machine in (Import, PerTenant):
        bare = limited.insert(machine, Order(7), concurrency_key=None, rate_limit=None)
        assert sql.columns(bare.id, "concurrency_key rate_limit") == (None, None)
        spec = Spec(machine, Order(7), concurrency_key=None, rate_limit=None)
        limited.put_schedule(Schedule(machine.__name__, spec, every=timedelta(hours=1)))
        scheduled = limited.trigger_schedule(machine.__name__)
        assert sql.columns(scheduled.id, "concurrency_key rate_limit") == (None, None)
        insert = "select id from gen_durable.insert(%s, '{\"tenant\": 7}', concurrency_key => '', rate_limit => '')"
        by_sql = sql.value(insert, machine.__definition__.name)
        assert sql.columns(by_sql, "concurrency_key rate_limit") == (None, None)
    with pytest.raises(UsageError, match="weight is given without rate_limit"):
        limited.insert(Import, Order(1), rate_limit=None, weight=2)


@pytest.mark.clause("INS-13")
def test_schedule_whose_computed_key_is_none_inserts(limited: Harness, sql: SqlConnection) -> None:
    limited.put_schedule(Schedule("hourly", Spec(PerTenant, Order(0)), every=timedelta(hours=1)))
    scheduled = limited.trigger_schedule("hourly")
    assert sql.columns(scheduled.id, "concurrency_key rate_limit") == (None, "crm:0")


@pytest.mark.clause("INS-13")
def test_error_in_a_computed_key_names_the_option(durable: Harness) -> None:
    @job("broken", concurrency_key=lambda order: order["tenant"])
    async def broken(order: dict[str, int]) -> None: ...

    @job("number", concurrency_key=lambda order: order["tenant"])
    async def number(order: dict[str, Any]) -> None: ...

    with pytest.raises(
        UsageError,
        match=r"concurrency_key= of machine 'broken' raised KeyError: 'tenant' .* pass concurrency_key=",
    ) as caught:
        durable.insert(broken, {})
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(UsageError, match="concurrency_key of 'number' is of type int; give a text"):
        durable.insert(number, {"tenant": 1})
    assert durable.instances() == []


@pytest.mark.clause("INS-12", "INS-13")
def test_children_and_schedules_get_the_defaults(limited: Harness, sql: SqlConnection) -> None:
    class Parent(Machine[None, None]):
        @step
        async def spawn(self, ctx: Context[None]) -> Outcome[None]:
            return ScheduleChildren([Spec(Import, Order(1)), Spec(PerTenant, Order(2))], then=self.join)

        @step
        async def join(self, ctx: Context[None]) -> Outcome[None]:
            return Done()

    limited.insert(Parent)
    limited.put_schedule(Schedule("hourly", Spec(PerTenant, Order(3)), every=timedelta(hours=1)))
    limited.trigger_schedule("hourly")
    limited.drain(collapse=False)
    found = sql(
        f"select fsm, {FIELDS.replace(' ', ', ')} from gen_durable.gen_durable where id > 1 order by id"
    )
    assert [tuple(row.values()) for row in found] == [
        ("PerTenant", 0, None, "tenant:3", "crm:3", None),
        ("Import", 5, 2, "importer", "crm:all", None),
        ("PerTenant", 0, None, "tenant:2", "crm:2", None),
    ]


def register(durable: Harness, *machines: Any) -> None:
    for machine in machines:
        durable.use(machine)
    durable.drain()


@pytest.mark.clause("INS-12")
def test_sql_inserts_get_the_defaults_of_the_machine(limited: Harness, sql: SqlConnection) -> None:
    register(limited, Import)
    (plain,) = sql("select id from gen_durable.insert('Import', '{\"tenant\": 1}')")
    (own,) = sql(
        "select id from gen_durable.insert('Import', priority => 1, max_attempts => 4, concurrency_key => 'own',"
        " rate_limit => 'crm', weight => 2)"
    )
    (none,) = sql(
        """select id from gen_durable.insert_all('[{"fsm": "Import", "concurrency_key": null, "rate_limit": null}]')"""
    )
    assert sql.columns(plain["id"], FIELDS) == (5, 2, "importer", "crm:all", None)
    assert sql.columns(own["id"], FIELDS) == (1, 4, "own", "crm", 2)
    assert sql.columns(none["id"], FIELDS) == (5, 2, None, None, None)


@pytest.mark.clause("INS-13")
@pytest.mark.parametrize("missing", ["concurrency_key", "rate_limit"])
def test_sql_insert_without_a_computed_key_is_refused(
    limited: Harness, sql: SqlConnection, missing: str
) -> None:
    register(limited, PerTenant)
    given = {"concurrency_key": "tenant:1", "rate_limit": "crm:1"}
    options = ", ".join(f"{name} => '{value}'" for name, value in given.items() if name != missing)
    with pytest.raises(Exception, match=f"machine 'PerTenant' computes {missing} from the state"):
        sql(f"select gen_durable.insert('PerTenant', {options})")
    every = ", ".join(f"{name} => '{value}'" for name, value in given.items())
    (found,) = sql(f"select id from gen_durable.insert('PerTenant', {every})")
    assert sql.columns(found["id"], FIELDS) == (0, None, "tenant:1", "crm:1", None)


@pytest.mark.clause("INS-12")
def test_schedule_of_sql_gets_defaults_and_stalls_without_the_limit(
    durable: Harness, sql: SqlConnection
) -> None:
    register(durable, Import, PerTenant)
    with pytest.raises(LimitError):
        durable.insert(Import, Order(1))
    durable.put_schedule(Schedule("hourly", Spec(Import, Order(1)), every=timedelta(hours=1)))
    # As `gen-durable schedules add` stores it: without what it was not given.
    sql("""update gen_durable.schedules set spec = '{"fsm": "Import", "state": {"tenant": 1}}'""")
    triggered = durable.trigger_schedule("hourly")
    assert sql.columns(triggered.id, FIELDS) == (5, 2, "importer", "crm:all", None)
    assert durable.drain() == DrainCounts()
    durable.set_limit(PER_HOUR)
    assert durable.drain() == DrainCounts(done=1)
    sql("""update gen_durable.schedules set spec = '{"fsm": "PerTenant", "state": {"tenant": 1}}'""")
    with pytest.raises(UsageError, match="computes concurrency_key from the state"):
        durable.trigger_schedule("hourly")


@pytest.mark.clause("INS-12", "INS-13")
def test_dead_letter_gets_the_defaults_of_its_receiver(durable: Harness, sql: SqlConnection) -> None:
    class Letters(
        Machine[dict[str, Any], None], name="letters", priority=3, concurrency_key="dead", rate_limit="crm"
    ):
        @step
        async def run(self, ctx: Context[dict[str, Any]]) -> Outcome[None]:
            return Done()

    @job("computing", concurrency_key=lambda letter: "never")
    async def computing(letter: dict[str, Any]) -> None: ...

    @job("static.v1", max_attempts=1, dead_letter="letters")
    async def static(order: Order) -> None:
        raise ValueError

    @job("computed.v1", max_attempts=1, dead_letter="computing")
    async def computed(order: Order) -> None:
        raise ValueError

    register(durable, Letters, computing)
    durable.insert(static, Order(1))
    durable.insert(computed, Order(1))
    durable.drain()
    (letter,) = durable.instances(Letters)
    (other,) = durable.instances(computing)
    assert sql.columns(letter.id, FIELDS) == (3, None, "dead", "crm", None)
    assert sql.columns(other.id, FIELDS) == (0, None, None, None, None)


@pytest.mark.clause("INS-12")
def test_default_max_attempts_bounds_the_retries_of_a_step(durable: Harness) -> None:
    class Stubborn(Machine[int, None], max_attempts=2, retry=Backoff(max_attempts=9, base=timedelta(0))):
        @step
        async def run(self, ctx: Context[int]) -> Outcome[None]:
            raise ValueError

    durable.insert(Stubborn, 1)
    durable.insert(Stubborn, 1, max_attempts=3)
    assert durable.drain() == DrainCounts(retry=3, stopped=2)


def test_async_function_cannot_be_a_default_key() -> None:
    async def key(order: Order) -> str:
        return "k"

    with pytest.raises(OptionError, match="job 'j': concurrency_key is an async function"):
        job("j", concurrency_key=key)  # type: ignore[arg-type]


async def test_client_without_a_worker_applies_the_defaults(durable_dsn: str, sql: SqlConnection) -> None:
    async with AsyncClient(durable_dsn) as client:
        ref = await client.insert(push, Order(3))
    assert sql.columns(ref.id, FIELDS) == (7, None, "push:3", None, None)
