"""Each term of a search selects the rows that the same condition in Python selects, on real rows."""

from __future__ import annotations

import json
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, TypeAlias

import asyncpg
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.rows import dict_row

from gen_durable._core.query import Query, Term, Value
from gen_durable._core.query_terms import parse
from gen_durable._db import search
from gen_durable._db.runner import run_asyncpg, run_psycopg
from gen_durable._db.search import Filter
from gen_durable._verbs.where import narrowed
from gen_durable.instance import LIVE_STATUSES, TERMINAL_STATUSES

# 600 rows: every status with many combinations of the other columns.
ROWS: Final = """
insert into gen_durable.gen_durable
       (id, fsm, fsm_version, step, rest_step, status, queue, priority, state, last_error, error, attempt, lease_token, locked_by,
        gated, awaits, parent_id, parent_round, schedule, correlation_key, correlation_scope, unique_key, unique_scope,
        concurrency_key, rate_limit, compensation, deleted_at, inserted_at, updated_at, eligible_at, finished_at)
overriding system value
select n, case when n % 3 = 0 then 'shop.' || n % 2 when n % 7 = 0 then 'shop' else 'mail' end, 1 + n % 4, 's' || n % 5,
       's' || n % 5, status, 'q' || n % 4, n % 9 - 4,
       case n % 6 when 0 then '{"order": 42, "to": {"city": "Rome", "items": [1, "x"]}}' when 1 then '{"order": "42", "to": null}'
                  when 2 then '{"order": 4.20e1, "a.b": true}' when 3 then '7' when 4 then '["Rome", 42]' else '{}' end::jsonb,
       case when n % 5 = 0 then case n % 3 when 0 then 'Timeout: a read TIMED out' when 1 then 'ValueError: %_\\x' else 'no reason' end end,
       case when n % 10 = 0 then '{"type": "Timeout", "message": "x"}'::jsonb end,
       n % 4, case when is_executing then 1 end, case when is_executing or n % 17 = 0 then 'w' || n % 2 end,
       status = 'runnable' and n % 3 = 0, case when n % 2 = 0 then array['paid', 'p' || n % 3] end,
       case when n % 6 = 0 then n % 4 end, case when n % 6 = 0 then 1 end, case when n % 8 = 0 then 'nightly' || n % 3 end,
       case when n % 11 = 0 then 'k' || n % 3 end, case when n % 11 = 0 then '{}'::gen_durable.durable_status[] end,
       case when n % 13 = 0 then convert_to('k' || n % 4, 'UTF8') end,
       case when n % 13 = 0 then '{}'::gen_durable.durable_status[] end,
       case when n % 4 = 0 then 'tenant:' || n % 3 end,
       case when n % 5 = 0 then 'crm' when n % 7 = 0 then 'crm:' || n % 2 when n % 9 = 0 then 'crm2' end,
       case when n % 12 = 0 then case when n % 24 = 0 then '{"end": "failed"}' else '{"undone": []}' end::jsonb end,
       case when n % 9 = 0 then now() end, now() - (601 - n) * interval '1 minute' - interval '1 s', now(),
       now() + (n % 5 - 2) * interval '1 minute', case when is_ended then now() - n % 40 * interval '1 minute' - interval '1 s' end
  from generate_series(1, 600) as n
 cross join lateral (select (enum_range(null::gen_durable.durable_status))[1 + n / 2 % 7] as status) chosen
 cross join lateral (
   select status = 'executing' as is_executing, status in ('done', 'failed', 'cancelled') as is_ended) more
"""
READ: Final = """
select g.*, g.status::text as status, statement_timestamp() as now from gen_durable.gen_durable g order by g.id desc"""

Row: TypeAlias = Mapping[str, Any]
Compare: TypeAlias = Callable[[Any, Any], bool]


class Population(NamedTuple):
    """A session, and all rows that it reads."""

    conn: Any
    rows: Sequence[Row]

    def __repr__(self) -> str:
        return f"{len(self.rows)} rows"


@pytest.fixture
def population(durable_dsn: str) -> Iterator[Population]:
    with psycopg.connect(durable_dsn, row_factory=dict_row) as conn:
        conn.execute("set plan_cache_mode = force_generic_plan; set enable_seqscan = off")
        conn.execute("alter table gen_durable.gen_durable disable trigger user")
        conn.execute(ROWS.encode())
        conn.execute(
            "update gen_durable.gen_durable set updated_at = now() - id % 50 * interval '1 minute' - interval '1 s'"
        )
        conn.execute(
            "insert into gen_durable.machines (fsm, fsm_version, initial_step, queue, steps)"
            " values ('mail', 1, 's0', 'q', '[\"s0\", \"s1\"]'), ('shop', 1, 's0', 'q', null)"
        )
        yield Population(conn, conn.execute(READ.encode()).fetchall())
        conn.rollback()


_COMPARE: Final[Mapping[str, Compare]] = {
    "": operator.eq,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_WORDS: Final[Mapping[str, Callable[[Row], bool]]] = {
    "live": lambda row: row["status"] in LIVE_STATUSES,
    "ended": lambda row: row["status"] in TERMINAL_STATUSES,
    "waiting": lambda row: row["status"] in ("awaiting_signal", "awaiting_children"),
    "pending": lambda row: row["status"] == "runnable",
    "leased": lambda row: row["status"] in ("executing", "awaiting_signal", "awaiting_children"),
    "succeeded": lambda row: row["status"] == "done",
    "due": lambda row: row["status"] == "runnable" and not row["gated"] and row["eligible_at"] <= row["now"],
    "later": lambda row: row["status"] == "runnable" and not row["gated"] and row["eligible_at"] > row["now"],
    "gated": lambda row: row["status"] == "runnable" and row["gated"],
    "retrying": lambda row: row["status"] == "runnable" and row["attempt"] > 0,
    "compensating": lambda row: "end" in (row["compensation"] or {}) and row["finished_at"] is None,
    "deleted": lambda row: row["deleted_at"] is not None,
}
# In minutes. The ages of rows are some minutes and one second, so no row crosses a bound while a test runs.
_DURATIONS: Final = {"1m": 1, "10m": 10, "1h": 60, "5h": 300, "9h": 540}


def expected(query: Query, row: Row) -> bool:
    """Whether a row matches, in Python."""
    asks_deleted = any(
        term.name == "status" and not term.is_negated and "deleted" in [value.text for value in term.values]
        for term in query.terms
    )
    return (asks_deleted or row["deleted_at"] is None) and all(
        any(_matches(term, value, row) for value in term.values) != term.is_negated for term in query.terms
    )


_COLUMNS: Final = {
    "step": "step",
    "queue": "queue",
    "version": "fsm_version",
    "id": "id",
    "priority": "priority",
    "concurrency": "concurrency_key",
    "parent": "parent_id",
    "schedule": "schedule",
}
_MATCHES: Final[Mapping[str, Callable[[Row, str, Compare], bool]]] = {
    "machine": lambda row, text, _: (
        row["fsm"].startswith(text[:-1]) if text.endswith("*") else row["fsm"] == text
    ),
    "status": lambda row, text, _: _WORDS[text](row) if text in _WORDS else row["status"] == text,
    "key": lambda row, text, _: text in (row["correlation_key"], (row["unique_key"] or b"").decode()),
    "limit": lambda row, text, _: (
        text in ((row["rate_limit"] or ""), (row["rate_limit"] or "").split(":")[0])
    ),
    "worker": lambda row, text, _: row["status"] == "executing" and row["locked_by"] == text,
    "awaits": lambda row, text, _: row["status"] == "awaiting_signal" and text in (row["awaits"] or ()),
    "error": lambda row, text, _: text in (row["last_error"], (row["error"] or {}).get("type")),
    "age": lambda row, text, compare: compare(row["now"] - row["inserted_at"], _duration(text)),
    "stuck": lambda row, text, compare: (
        row["finished_at"] is None and compare(row["now"] - row["updated_at"], _duration(text))
    ),
    "ended": lambda row, text, compare: (
        row["finished_at"] is not None
        and row["status"] in TERMINAL_STATUSES
        and compare(row["now"] - row["finished_at"], _duration(text))
    ),
    "inserted": lambda row, text, compare: compare(row["inserted_at"], datetime.fromisoformat(text)),
    "attempt": lambda row, text, compare: compare(row["attempt"] + 1, int(text)),
}


def _matches(term: Term, value: Value, row: Row) -> bool:
    if term.name == "state":
        return _is_in_state(row["state"], list(term.path), value)
    if value.operator == "~":
        return value.text.lower() in (row["last_error"] or "").lower()
    compare = _COMPARE[value.operator]
    if term.name in _MATCHES:
        return _MATCHES[term.name](row, value.text, compare)
    stored = row[_COLUMNS[term.name]]
    return compare(stored, int(value.text) if isinstance(stored, int) else value.text)


def _duration(text: str) -> timedelta:
    return timedelta(minutes=_DURATIONS[text])


def _is_in_state(state: Any, path: list[str], value: Value) -> bool:
    for key in path:
        if isinstance(state, list) and key.isdecimal() and int(key) < len(state):
            state = state[int(key)]
        elif isinstance(state, dict) and key in state:
            state = state[key]
        else:
            return False
    try:
        wanted = value.text if value.is_quoted else json.loads(value.text)
    except ValueError:
        wanted = value.text
    return bool(
        type(state) in (int, float)
        if isinstance(wanted, int | float) and not isinstance(wanted, bool)
        else type(state) is type(wanted)
    ) and bool(state == wanted)


def _numbers(least: int, most: int) -> st.SearchStrategy[str]:
    return st.tuples(st.sampled_from(["", ">", ">=", "<", "<="]), st.integers(least, most)).map(
        lambda pair: f"{pair[0]}{pair[1]}"
    )


def _one(*values: str) -> st.SearchStrategy[str]:
    return st.sampled_from(values)


_STATUS: Final = _one(
    *_WORDS, "runnable", "executing", "awaiting_signal", "awaiting_children", "done", "failed"
)
_VALUES: Final = {
    "machine": _one("shop", "shop.0", "shop.*", "shop*", "mail", "x"),
    "step": _one("s0", "s1", "s2", "nowhere"),
    "status": _STATUS,
    "queue": _one("q0", "q1", "q2", "x"),
    "key": _one("k0", "k1", "k2", "k3", "x"),
    "id": st.integers(1, 620).map(str),
    "version": _numbers(1, 4),
    "attempt": _numbers(0, 5),
    "priority": _numbers(-5, 5),
    "concurrency": _one("tenant:0", "tenant:1", "tenant"),
    "limit": _one("crm", "crm:0", "crm2", "cr"),
    "parent": _one("1", "2", "99"),
    "schedule": _one("nightly0", "nightly1", "x"),
    "awaits": _one("paid", "p0", "p2", "x"),
    "worker": _one("w0", "w1", "x"),
    "error": _one("~timed OUT", '~"read timed"', "~%_", "~Error", "Timeout", '"no reason"', "x").map(
        lambda text: text if " " not in text or '"' in text else f'{text[0]}"{text[1:]}"'
    ),
    "state.order": _one("42", '"42"', "42.0", "x"),
    "state.to.city": _one("Rome", "null", "rome"),
    "state.to.items.1": _one("x", "1"),
    "state.to": _one("null", "true"),
    'state."a.b"': _one("true", '"true"', "x"),
    "state.0": _one("Rome", "42"),
    "state": _one("7", '"7"'),
}
_SINGLE: Final = {
    "age": st.tuples(_one("<", "<=", ">", ">="), _one(*_DURATIONS)).map("".join),
    "stuck": st.tuples(_one("<", "<=", ">", ">="), _one(*_DURATIONS)).map("".join),
    "ended": st.tuples(_one("<", "<=", ">", ">="), _one(*_DURATIONS)).map("".join),
}


@st.composite
def searches(draw: st.DrawFn) -> str:
    names = draw(st.lists(_one(*_VALUES, *_SINGLE), min_size=1, max_size=4, unique=True))
    terms = []
    for name in names:
        values = _SINGLE.get(name)
        alternatives = (
            [draw(values)]
            if values is not None
            else draw(st.lists(_VALUES[name], min_size=1, max_size=3, unique=True))
        )
        terms.append(f"{draw(_one('', '', '-'))}{name}:{','.join(alternatives)}")
    return " ".join(terms)


def check(conn: Any, rows: Sequence[Row], text: str) -> None:
    query = parse(text)
    found = [row["id"] for row in rows if expected(query, row)]
    wanted, _ = run_psycopg(conn, narrowed(Filter(), query), "gen_durable")
    assert run_psycopg(conn, search.ids(wanted, 1000, None), "gen_durable") == found, text
    page = run_psycopg(conn, search.page(wanted, 7, 300), "gen_durable")
    assert [row["id"] for row in page] == [id for id in found if id < 300][:7], text
    assert run_psycopg(conn, search.count(wanted), "gen_durable") == len(found), text
    tally = {
        (row["fsm"], row["status"]): row["count"]
        for row in run_psycopg(conn, search.tally(wanted), "gen_durable")
    }
    upwards = run_psycopg(conn, search.ids_upwards(wanted, 20, 150, 500), "gen_durable")
    assert upwards == [id for id in found[::-1] if 150 < id < 500][:20], text
    matching = [row for row in rows if row["id"] in set(found)]
    assert tally == Counter((row["fsm"], row["status"]) for row in matching), text
    everything = [row["id"] for row in rows]
    assert sorted(run_psycopg(conn, search.among(wanted, everything), "gen_durable")) == sorted(found), text


@settings(deadline=None, max_examples=100, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_searches_return_exactly_the_matching_rows(
    population: Population, monkeypatch: pytest.MonkeyPatch, data: st.DataObject
) -> None:
    monkeypatch.setattr(search, "BOUND", data.draw(_one_of_bounds))
    check(*population, data.draw(searches()))


_one_of_bounds: Final = st.sampled_from([60, 10_000])


@pytest.mark.parametrize("name", [*_VALUES, *_SINGLE])
@settings(deadline=None, max_examples=8, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_each_term_alone_and_negated(population: Population, name: str, data: st.DataObject) -> None:
    many = st.lists(_VALUES.get(name, st.nothing()), min_size=1, max_size=2, unique=True).map(",".join)
    value = data.draw(_SINGLE.get(name, many))
    for sign in ("", "-"):
        check(*population, f"{sign}{name}:{value}")


def test_times_of_inserts(population: Population) -> None:
    conn, all_rows = population
    moment = all_rows[200]["inserted_at"].astimezone(UTC).isoformat()
    for each in ("<", "<=", ">", ">="):
        check(conn, all_rows, f"inserted:{each}{moment}")
        check(conn, all_rows, f"-inserted:{each}{moment} status:failed")
    check(conn, all_rows, f"inserted:>{moment} inserted:<{all_rows[50]['inserted_at'].isoformat()} age:<1h")


def test_values_without_a_name_select_by_machine_step_or_key(population: Population) -> None:
    conn, all_rows = population
    for text, same in (
        ("mail", "machine:mail"),
        ("s1", "step:s1"),
        ("k2", "key:k2"),
        ("s2", "key:s2"),
        ("14 mail", "id:14 machine:mail"),
    ):
        wanted, _ = run_psycopg(conn, narrowed(Filter(), parse(text)), "gen_durable")
        assert run_psycopg(conn, search.ids(wanted, 1000, None), "gen_durable") == [
            row["id"] for row in all_rows if expected(parse(same), row)
        ]


def test_a_search_combines_with_a_filter(population: Population) -> None:
    conn, all_rows = population
    base = Filter(
        fsms=["mail", "shop"], statuses=["failed", "done"], correlation_keys=["k1"], with_deleted=True
    )
    query = parse("machine:shop,shop.0 status:failed,runnable key:k1")
    wanted, _ = run_psycopg(conn, narrowed(base, query), "gen_durable")
    assert run_psycopg(conn, search.ids(wanted, 1000, None), "gen_durable") == [
        row["id"]
        for row in all_rows
        if row["fsm"] == "shop" and row["status"] == "failed" and row["correlation_key"] == "k1"
    ]


def test_examining_continues_below_the_last_checked_row(
    population: Population, monkeypatch: pytest.MonkeyPatch
) -> None:
    conn, all_rows = population
    monkeypatch.setattr(search, "BOUND", 50)
    query = parse("queue:q1 error:~timed")
    wanted, _ = run_psycopg(conn, narrowed(Filter(), query), "gen_durable")
    found, before, bounded = [], None, []
    while True:
        part = run_psycopg(conn, search.examine("ids", wanted, 3, before), "gen_durable")
        found += [row["id"] for row in part.rows]
        bounded.append(part.is_bounded)
        assert len(part.rows) <= 3
        if part.next is None:
            break
        before = part.next
    assert found == [row["id"] for row in all_rows if expected(query, row)]
    assert bounded[0]
    assert not bounded[-1]


TYPED: Final = (
    "machine:shop.* version:>1 step:s1 queue:q1,q2 -status:done",
    "status:due,failed,deleted attempt:>1 priority:<3",
    "key:k1,k2 -id:3,4 -key:k3",
    "concurrency:tenant:1 -parent:1 -schedule:x",
    "limit:crm worker:w0,w1",
    "awaits:paid error:~x,Timeout",
    "state.order:42,x state.to.city:Rome age:>1m stuck:<9h inserted:>2001-01-01T00:00Z",
    "parent:1,2 schedule:nightly0",
)


async def test_searches_return_the_same_with_asyncpg(durable_dsn: str) -> None:
    conn = await asyncpg.connect(durable_dsn)
    transaction = conn.transaction()
    await transaction.start()
    try:
        await conn.execute("alter table gen_durable.gen_durable disable trigger user")
        await conn.execute(ROWS)
        await conn.set_type_codec("jsonb", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
        all_rows = await conn.fetch(READ)
        for text in TYPED:
            query = parse(text)
            wanted, _ = await run_asyncpg(conn, narrowed(Filter(), query), "gen_durable")
            found = await run_asyncpg(conn, search.ids(wanted, 1000, None), "gen_durable")
            assert found == [row["id"] for row in all_rows if expected(query, row)], text
    finally:
        await transaction.rollback()
        await conn.close()
