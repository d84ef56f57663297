"""Settings, several engines in one process, and bounds."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from gen_durable import (
    Await,
    Client,
    Context,
    Done,
    EncodeError,
    GenDurableError,
    Machine,
    Next,
    Outcome,
    ScheduleChildren,
    Settings,
    Signal,
    Spec,
    Transaction,
    UsageError,
    Worker,
    step,
)
from gen_durable.errors import OptionError
from gen_durable.testing import Harness
from gen_durable.testing._databases import Databases
from tests.support.conformance import SPEC, table_of
from tests.support.machines import Say, probe
from tests.support.rows import SqlConnection
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE


@pytest.mark.clause("CFG-1")
def test_settings_and_defaults_match_the_specification() -> None:
    defaults = {
        name: f"{value.total_seconds():.9g} s" if isinstance(value, timedelta) else str(value)
        for name, value in msgspec.structs.asdict(Settings()).items()
    }
    assert defaults == {row[0]: row[1] for row in table_of(SPEC.read_text(encoding="utf-8"), "setting")}
    assert Settings().renew_after() * 3 == Settings().lease


@pytest.mark.clause("CFG-5", "SCH-9")
async def test_several_engines_run_in_one_process(durable_dsn: str, durable_databases: Databases) -> None:
    class Where(Machine[str, str]):
        def __init__(self, name: str) -> None:
            self.name = name

        @step
        async def run(self, ctx: Context[str]) -> Outcome[str]:
            return Done(self.name)

    shop = msgspec.structs.replace(CALM, schema="shop")
    with durable_databases.fresh() as elsewhere:
        async with (
            Worker([here := Where("here")], dsn=durable_dsn, settings=CALM) as first,
            Worker([Where("shop")], dsn=durable_dsn, settings=shop) as second,
            Worker([Where("elsewhere")], dsn=elsewhere, settings=CALM) as third,
        ):
            workers = (first, second, third)
            refs = [await one.insert(here, "", unique_key="u") for one in workers]
            ended = [await one.wait(ref, timeout=PATIENCE) for one, ref in zip(workers, refs, strict=True)]
            counts = [await one.count() for one in workers]
    assert [one.result for one in ended] == ["here", "shop", "elsewhere"]
    assert counts == [1, 1, 1]


@pytest.mark.clause("CFG-6")
async def test_pooler_mode_works_on_a_direct_connection(durable_dsn: str) -> None:
    """Pooler mode prepares no statements and sets no session state, so it works on any session."""
    prepared: list[int] = []

    async def look(transaction: Transaction) -> None:
        prepared.append(await transaction.fetchval("select count(*) from pg_prepared_statements"))

    def two(ctx: Context[int]) -> Outcome[Any]:
        if ctx.awaited:
            return ScheduleChildren([Spec(Say, "a", unique_key="u")], then="two")
        return Done(len(ctx.children), effect=look)

    pooled = msgspec.structs.replace(CALM, pooler="transaction")
    machine = probe(lambda ctx: Await("go", then="two"), two)
    async with Worker([machine, Say], dsn=durable_dsn, settings=pooled) as worker:
        ref = await worker.insert(machine, 7, concurrency_key="k")
        await worker.wait(ref, timeout=PATIENCE, until="parked")
        await worker.signal(ref, "go")
        assert (await worker.wait(ref, timeout=PATIENCE)).result == 1
    with Client(durable_dsn, settings=pooled) as client:
        assert client.wait(ref).result == 1
    assert prepared == [0]


LONG = timedelta(days=36525)


@pytest.mark.clause("LIM-1")
def test_option_beyond_its_bound_is_rejected(durable: Harness) -> None:
    beyond: list[Any] = [
        {"queue": "q" * 256},
        {"unique_key": b"u" * 1025},
        {"correlation_key": "ü" * 513},
        {"concurrency_key": "k" * 1025},
        {"schedule_in": LONG + timedelta(1)},
        {"priority": 32768},
        {"priority": -32769},
    ]
    for options in beyond:
        with pytest.raises(UsageError):
            durable.insert(Say, "hi", **options)
    assert durable.count() == 0


@pytest.mark.clause("LIM-1")
def test_values_at_the_bounds_are_accepted(durable: Harness) -> None:
    ref = durable.insert(
        *(Say, "hi"),
        queue="q" * 255,
        unique_key=b"u" * 1024,
        correlation_key="ü" * 512,
        concurrency_key="k" * 1024,
        priority=-32768,
    )
    durable.insert(Say, "later", schedule_in=LONG, priority=32767)
    durable.signal(ref, "s" * 255, dedup_key="d" * 1024)
    durable.drain(collapse=False)
    durable.assert_done(ref)


@pytest.mark.clause("LIM-1")
def test_names_beyond_their_bound_are_rejected(durable: Harness) -> None:
    ref = durable.insert(Say, "hi")
    for name, key in (("s" * 256, None), ("go", "d" * 1025)):
        with pytest.raises(UsageError):
            durable.signal(ref, name, dedup_key=key)
    with pytest.raises(OptionError):
        Signal("s" * 256)
    with pytest.raises(OptionError):
        type("M" * 256, (Say,), {})
    with pytest.raises(UsageError):
        Next("two", delay=LONG + timedelta(1))


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


WITHIN = {"size": "x" * (2**20 - 2), "depth": nested(100), "digits": 10**399}
BEYOND = {"size": "x" * (2**20 - 1), "depth": nested(101), "digits": 10**400}


class Big(Machine[str, Any]):
    """Returns one of these payloads."""

    @step
    async def within(self, ctx: Context[str]) -> Outcome[Any]:
        return Done(WITHIN[ctx.state])

    @step
    async def beyond(self, ctx: Context[str]) -> Outcome[Any]:
        return Done(BEYOND[ctx.state])

    def handle(self, error: Exception, ctx: Context[str]) -> Outcome[Any]:
        return Done(isinstance(error, EncodeError))


@pytest.mark.clause("LIM-2")
def test_payload_beyond_its_bound_is_rejected(durable: Harness, subtests: pytest.Subtests) -> None:
    for what in WITHIN:
        with subtests.test(what=what):
            within, beyond = durable.insert(Big, what), durable.insert(Big, what, step=Big.beyond)
            durable.signal(within, "go", WITHIN[what])
            with pytest.raises(EncodeError):
                durable.signal(beyond, "go", BEYOND[what])
            durable.drain()
            assert durable.assert_done(within) == WITHIN[what]
            assert durable.assert_done(beyond) is True


@pytest.mark.clause("LIM-4")
def test_full_inbox_rejects_signals(durable: Harness, sql: SqlConnection) -> None:
    ref = durable.insert(Say, "hi", schedule_in=timedelta(hours=1))
    sql(
        "insert into gen_durable.signals (target_id, name) select %s, 'go' from generate_series(1, 9999)",
        ref.id,
    )
    sql("update gen_durable.gen_durable set has_signals = true, inbox_count = 9999")
    durable.signal(ref, "the last one")
    with pytest.raises(GenDurableError, match=r"the inbox .* is full"):
        durable.signal(ref, "one too many")
    assert sql.signals(ref.id) == 10_000


@pytest.mark.clause("LIM-5")
def test_too_many_children_fail_the_step(durable_dsn: str) -> None:
    def spawn(ctx: Context[int]) -> Outcome[Any]:
        return ScheduleChildren([Spec(Say, str(n)) for n in range(ctx.state)], then="two")

    machine = probe(spawn, handle=lambda error, ctx: Done(str(error)))
    with Harness(durable_dsn, settings=Settings.load(max_children=3)) as durable:
        enough, too_many = durable.insert(machine, 3), durable.insert(machine, 4)
        durable.drain()
        durable.assert_done(enough, 3)
        assert "schedules 4 children" in durable.assert_done(too_many)
