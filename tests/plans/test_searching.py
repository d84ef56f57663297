"""Each term of a search is served by an index, or checked on a bounded number of rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gen_durable._core.query_terms import TERMS, parse
from gen_durable._db import machines, search
from gen_durable._db.search import BOUND, Filter
from gen_durable._verbs.where import narrowed
from tests.plans.explain import Explained, Explainer
from tests.plans.statements import ENDED, PARENTS

pytestmark = pytest.mark.asyncio(loop_scope="session")

PKEY = {"gen_durable_pkey"}
EXECUTING = {"gen_durable_lease"}
BACKLOG = {"gen_durable_gated", "gen_durable_pick", "gen_durable_machine"}
RESTING = {"gen_durable_resting"}
LIVE_OR_RESTING = EXECUTING | BACKLOG | RESTING
CORRELATION = {"gen_durable_correlation", "gen_durable_correlation_former"}
UNIQUE = {"gen_durable_unique", "gen_durable_unique_former"}
KEYED = {"gen_durable_concurrency", "gen_durable_concurrency_resting", "gen_durable_lease"}
DELETED = {"gen_durable_deleted", "gen_durable_deleted_live"}
# Runnable rows are sorted by id. There are 80,000 of them, and as many blocks are read if none is known to be visible to all.
SORTED = 90_000
# The candidates of a bounded condition, by some index, and their rows by the primary key.
CHECKED = 8 * BOUND

# What a search may read: its indexes, and a number of blocks.
INDEXED: Mapping[str, tuple[set[str], float]] = {
    "machine:Machine1 status:failed": (RESTING, 1000),
    "machine:Machine* status:failed": (RESTING, 1500),
    "machine:Nothing.*": (LIVE_OR_RESTING, SORTED),
    "-machine:Machine1 status:failed,done": (RESTING, 3000),
    "machine:Machine1 step:step status:ended": (RESTING, 2000),
    "-step:step status:done": (RESTING, 1500),
    "version:2 status:ended": (RESTING, 500),
    "version:>1 status:ended": (RESTING, 500),
    "status:waiting": (RESTING, 3000),
    "-status:live": (RESTING, 3000),
    "status:due": (BACKLOG - {"gen_durable_gated"}, 10_000),
    "status:later queue:q1": (BACKLOG - {"gen_durable_gated"}, 10_000),
    "status:gated": ({"gen_durable_gated"}, 10_000),
    "status:compensating": ({"gen_durable_compensation"}, 10),
    "status:deleted": (DELETED, 10),
    "queue:q1,q2 status:failed": (RESTING, 1000),
    "-queue:q1 status:failed": (RESTING, 1000),
    f"key:order:{ENDED[3]}": (CORRELATION | UNIQUE, 40),
    "key:unique:15,nothing": (CORRELATION | UNIQUE, 60),
    "id:42,43,100000": (PKEY, 40),
    "fingerprint:3fa90c21b7d4": (PKEY, 40),
    f"parent:{PARENTS[4]},{PARENTS[5]}": ({"gen_durable_parent"}, 120),
    "schedule:nightly,daily": ({"gen_durable_schedule"}, 20),
    "concurrency:key7,key8": (KEYED, 6000),
    "age:<1h": (PKEY, 400),
    "age:>1d": (PKEY, 400),
    "inserted:>2099-01-01": (PKEY, 200),
}
BOUNDED: Mapping[str, tuple[set[str], float]] = {
    "error:~timeout": (PKEY, CHECKED),
    "error:ValueError status:failed": (RESTING | PKEY, CHECKED),
    "state.order:199000": (PKEY, CHECKED),
    "state.order:1 machine:Machine1 status:done": (RESTING | PKEY, CHECKED),
    "attempt:>3": (PKEY, CHECKED),
    "attempt:>3 status:failed": (RESTING | PKEY, CHECKED),
    "priority:10": (PKEY, CHECKED),
    "stuck:>10m status:waiting": (RESTING | PKEY, CHECKED),
    "ended:<1h status:failed": (RESTING | PKEY, CHECKED),
    "awaits:paid": (RESTING | PKEY, CHECKED),
    "awaits:nothing machine:Machine2": (RESTING | PKEY, CHECKED),
    "worker:worker": (EXECUTING | PKEY, CHECKED),
    "worker:nothing": (EXECUTING | PKEY, CHECKED),
    "limit:crm": (PKEY, CHECKED),
    "status:retrying": (BACKLOG | PKEY, SORTED + CHECKED),
    "-key:order:14": (PKEY, CHECKED),
    "-id:5": (PKEY, CHECKED),
    "-parent:19": (PKEY, CHECKED),
    "-schedule:nightly": (PKEY, CHECKED),
    "-concurrency:key7": (PKEY, CHECKED),
    f"error:~x parent:{PARENTS[4]}": ({"gen_durable_parent"} | PKEY, 200),
    "error:~x age:<1h": (PKEY, CHECKED),
}


async def test_every_term_is_here() -> None:
    terms = {term.name for text in (*INDEXED, *BOUNDED) for term in parse(text).terms}
    assert terms == set(TERMS)


async def of(explainer: Explainer, text: str) -> Filter:
    (wanted, _), _ = await explainer.run(narrowed(Filter(), parse(text)))
    return wanted


def check(explained: list[Explained], indexes: set[str], blocks: float) -> None:
    used = {index for found in explained for index in found.indexes}
    # Probed once for runnable rows, if there are any.
    assert used <= indexes | PKEY | {"gen_durable_deleted_live"}, explained
    assert not any(found.seq_scans for found in explained), explained
    assert sum(found.blocks for found in explained) <= blocks, explained


@pytest.mark.parametrize("text", INDEXED)
async def test_indexed_terms_read_what_they_select(explainer: Explainer, text: str) -> None:
    indexes, blocks = INDEXED[text]
    wanted = await of(explainer, text)
    assert not wanted.is_bounded
    page, explained = await explainer.run(search.page(wanted, 100, None))
    check(explained, indexes, blocks)
    ids, explained = await explainer.run(search.ids_upwards(wanted, 100, 0, 2**62))
    check(explained, indexes, blocks)
    assert bool(page) == bool(ids)
    counted, explained = await explainer.run(search.examine("tally", wanted, BOUND, None))
    check(explained, indexes, blocks + CHECKED)
    assert sum(row["count"] for row in counted.rows) >= len(page)


@pytest.mark.parametrize("text", BOUNDED)
@pytest.mark.parametrize("read", ["page", "ids", "ids_upwards", "tally"])
async def test_other_terms_are_checked_on_a_bounded_number_of_rows(
    explainer: Explainer, read: Any, text: str
) -> None:
    indexes, blocks = BOUNDED[text]
    wanted = await of(explainer, text)
    assert wanted.is_bounded
    found, explained = await explainer.run(
        search.examine(read, wanted, 100, None, 0 if read == "ids_upwards" else None)
    )
    assert len(found.rows) <= 100
    check(explained, indexes, blocks)


@pytest.mark.parametrize("kind", ["queue", "schedule", "worker", "concurrency_limit", "rate_limit"])
async def test_completion_reads_no_instance(explainer: Explainer, kind: Any) -> None:
    for plan in (search.names(kind), machines.names()):
        _, explained = await explainer.run(plan)
        assert not any(found.seq_scans or found.blocks > 20 for found in explained)


# A backlog is among the newest rows: then a page of it reads nothing else.
@pytest.mark.parametrize(
    "text", ["status:due", "status:live", "machine:Machine1", "machine:Machine1 status:runnable"]
)
async def test_page_of_a_large_backlog_reads_the_newest_rows_only(explainer: Explainer, text: str) -> None:
    wanted = await of(explainer, text)
    page, explained = await explainer.run(search.ids(wanted, 50, None))
    assert len(page) == 50
    assert explained[-1].indexes <= PKEY | {"gen_durable_deleted_live"}, explained
    assert sum(found.blocks for found in explained) <= 2500, explained


@pytest.mark.parametrize(
    "text",
    ["status:due", "status:live", "machine:Machine2", "queue:keyed", "-status:done queue:q1"],
)
@pytest.mark.parametrize(("place", "limit"), [(2**62, 50), (150_000, 1500), (1500, 50), (3, 50)])
async def test_page_of_a_backlog_is_the_newest_rows(
    explainer: Explainer, text: str, place: int, limit: int
) -> None:
    wanted = await of(explainer, text)
    matching = sorted((await explainer.run(search.among(wanted, range(1, 200_001))))[0])
    assert matching
    page, _ = await explainer.run(search.ids(wanted, limit, place))
    assert page == [id for id in reversed(matching) if id < place][:limit]
    oldest, _ = await explainer.run(search.ids_upwards(wanted, limit, place // 2, 2**62))
    assert oldest == [id for id in matching if id > place // 2][:limit]
