"""The collector reads one page and the dependent rows of the instances that it deletes."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gen_durable._db import collect, requests
from tests.plans.explain import Explainer, check
from tests.plans.statements import ENDED

pytestmark = pytest.mark.asyncio(loop_scope="session")

HOUR = timedelta(hours=1)
BELONGINGS = {
    "gen_durable_pkey",
    "signals_target",
    "signals_dedup",
    "executions_commit",
    "executions_aborted",
    "audit_events_instance",
    "stream_items_pkey",
}


INDEXES = {"deleted": "gen_durable_deleted", "expired": "gen_durable_expiring"}


@pytest.mark.parametrize("status", ["done", "failed"])
async def test_page_of_ended_rows(explainer: Explainer, status: collect.Ended) -> None:
    swept, (found,) = await explainer.run(collect.sweep(status, HOUR, collect.START))
    assert 400 < swept.deleted <= 500  # some are children that a waiting parent still needs
    assert swept.next is not None
    check(found, {"gen_durable_finished", *BELONGINGS}, blocks=120 * 500)


async def test_nothing_to_collect_is_one_probe(explainer: Explainer) -> None:
    for status in ("done", "failed", "cancelled", "expired", "deleted"):
        swept, (found,) = await explainer.run(collect.sweep(status, timedelta(days=3000), collect.START))
        assert (swept.deleted, swept.next) == (0, None)
        assert not found.seq_scans, found
        # The table of audit events is empty, so it may be probed first.
        used = found.indexes - {"audit_events_instance"}
        assert used == {INDEXES.get(status, "gen_durable_finished")}, found
        assert found.blocks <= 30, found


async def test_page_of_expired_rows(explainer: Explainer) -> None:
    await explainer.connection.execute(
        "update gen_durable.gen_durable set expires_at = now() - interval '1 s' where id = any ($1)",
        list(ENDED[:600]),
    )
    swept, (found,) = await explainer.run(collect.sweep("expired", timedelta(0), collect.START))
    assert (swept.deleted, swept.next is None) == (500, False)
    check(found, {"gen_durable_expiring", *BELONGINGS}, blocks=120 * 500)


async def test_page_of_deleted_rows(explainer: Explainer) -> None:
    await explainer.connection.execute(
        "update gen_durable.gen_durable set deleted_at = now() - interval '2 h' where id = any ($1)",
        list(ENDED[:600]),
    )
    swept, (found,) = await explainer.run(collect.sweep("deleted", HOUR, collect.START))
    assert (swept.deleted, swept.next is None) == (500, False)
    check(found, {"gen_durable_deleted", *BELONGINGS}, blocks=120 * 500)


async def test_page_of_children_that_are_kept(explainer: Explainer) -> None:
    """Children of waiting parents: each costs one read of its parent, and nothing is written."""
    await explainer.connection.execute(
        "update gen_durable.gen_durable set finished_at = now() - interval '1 year'"
        " where parent_id is not null and status = 'done' and id < 100000"
    )
    swept, (found,) = await explainer.run(collect.sweep("done", timedelta(days=300), collect.START))
    assert (swept.deleted, swept.next is None) == (0, False)
    check(found, {"gen_durable_finished", "gen_durable_pkey"}, blocks=20 * 500)


async def test_table_walk_reads_only_its_blocks(explainer: Explainer) -> None:
    following, (found,) = await explainer.run(collect.walk_executions(HOUR, 256))
    assert following == 512
    assert not found.seq_scans, found
    assert not found.indexes, found
    following, (found,) = await explainer.run(collect.walk_signals(256))
    assert not found.seq_scans, found
    assert found.indexes <= {"gen_durable_pkey"}, found


async def test_expired_events_are_found_by_a_table_walk(explainer: Explainer) -> None:
    first = await explainer.connection.fetchval(
        "select pg_relation_size('gen_durable.outbox') / current_setting('block_size')::int"
    )
    await explainer.connection.execute(
        "insert into gen_durable.outbox (instance_id, step_seq, n, sink, type, subject, data, created_at)"
        " select n, 1, 1, 's', 't', 'u', '{}', now() - n * interval '1 s' from generate_series(1, 40000) n"
    )
    (expired, following), (found,) = await explainer.run(collect.walk_pending(HOUR, first))
    assert expired
    assert following == first + 256
    assert not found.seq_scans, found
    assert not found.indexes, found


async def test_old_messages_are_found_by_a_table_walk(explainer: Explainer) -> None:
    await explainer.connection.execute(
        "insert into gen_durable.received_messages (message_id, correlation_key, signal, received_at)"
        " select n::text, repeat('k', 100), 's', now() - n * interval '1 s' from generate_series(1, 40000) n"
    )
    following, (found,) = await explainer.run(collect.walk_messages(HOUR, 0))
    assert following == 256
    assert not found.seq_scans, found
    assert not found.indexes, found


async def test_answers_of_requests_are_found_by_index(explainer: Explainer) -> None:
    await explainer.connection.execute(
        "insert into gen_durable.answered_requests (actor, key, digest, answer, answered_at)"
        " select 'ada', n::text, sha256(n::text::bytea), '{}', now() - n * interval '1 s' from generate_series(1, 20000) n"
    )
    claimed, (_, found) = await explainer.run(requests.claim("ada", "7", b""))
    assert (claimed is None, found.indexes, found.seq_scans) == (False, {"answered_requests_pkey"}, set())
    _, (found,) = await explainer.run(requests.store("ada", "7", "{}"))
    assert (found.indexes, found.seq_scans) == ({"answered_requests_pkey"}, set())
    has_more, (found,) = await explainer.run(collect.sweep_requests(HOUR))
    assert has_more
    assert not found.seq_scans, found
    assert found.indexes == {"answered_requests_old", "answered_requests_pkey"}, found


async def test_published_events_are_found_by_index(explainer: Explainer) -> None:
    await explainer.connection.execute(
        "insert into gen_durable.outbox (instance_id, step_seq, n, sink, type, subject, data, published_at)"
        " select n, 1, 1, 's', 't', 'u', '{}', now() - n * interval '1 s' from generate_series(1, 20000) n"
    )
    has_more, (found,) = await explainer.run(collect.sweep_events(HOUR))
    assert has_more
    check(found, {"outbox_published", "outbox_pkey"}, blocks=20 * 500)
