"""Mutants of the collector."""

from __future__ import annotations

from tests.interleavings.mutants import Mutant
from tests.interleavings.product import SCHEMA, Change, number
from tests.interleavings.scenarios import collecting

_STATUS = number("sweep_ended", "status")
_AGE = f"g.finished_at < statement_timestamp() - {number('sweep_ended', 'retention')}::interval"
_EXPIRED = f"g.expires_at < statement_timestamp() - {number('sweep_expired', 'retention')}::interval"
_NEEDED = "where p.id = g.parent_id and p.status <> 'done'"

MUTANTS = [
    Mutant(
        name="children are collected whatever their parent does",
        scenario=collecting.gc_and_join(),
        reason="a parent does not see all of its children",
        changes=[Change("sweep_ended", _NEEDED, "where false")],
    ),
    Mutant(
        name="children of a parent that failed are collected",
        scenario=collecting.gc_and_retry_of_the_parent(),
        reason="collected before its parent has seen it",
        changes=[
            Change(
                "sweep_ended",
                _NEEDED,
                "where p.id = g.parent_id and p.status not in ('done', 'failed', 'cancelled')",
            )
        ],
    ),
    Mutant(
        name="a stop is taken for going on",
        scenario=collecting.gc_and_retry_of_the_parent(),
        reason="collected before its parent has seen it",
        changes=[
            Change(
                "sweep_ended",
                "(p.status = 'failed' and p.crash_count = 0 and p.step_seq > p.spawn_round)::int",
                "0",
            )
        ],
    ),
    Mutant(
        name="a row with an occupied key is collected",
        scenario=collecting.gc_and_insert(),
        reason="a key that was given for good was given again",
        changes=[
            Change(
                "sweep_ended",
                "coalesce(g.deleted_at is not null or",
                "coalesce(true or",
            )
        ],
    ),
    Mutant(
        name="chosen rows are not checked again",
        scenario=collecting.gc_and_retry(),
        reason="reported as retried, but it is gone",
        changes=[
            Change(
                "sweep_ended",
                f"where g.status = {_STATUS}::pg_catalog.text::gen_durable.durable_status and g.expires_at is null"
                f" and g.deleted_at is null\n     and g.collected_at is null\n     and {_AGE}\n",
                "where true\n",
            )
        ],
    ),
    Mutant(
        name="rows that expire are not checked again",
        scenario=collecting.gc_and_retry("expired"),
        reason="reported as retried, but it is gone",
        changes=[
            Change(
                "sweep_expired",
                "where g.finished_at is not null and g.deleted_at is null and g.collected_at is null\n"
                f"     and {_EXPIRED}\n",
                "where true\n",
            )
        ],
    ),
    Mutant(
        name="restored rows are not checked again",
        scenario=collecting.gc_and_restore(),
        reason="reported as restored, but it is gone",
        changes=[
            Change(
                "sweep_deleted",
                "where g.finished_at is not null and g.deleted_at < statement_timestamp()"
                f" - {number('sweep_deleted', 'retention')}::interval\n",
                "where true\n",
            )
        ],
    ),
    Mutant(
        name="an instance without a state is retried",
        scenario=collecting.gc_and_retry_of_a_holder(),
        reason="it continues without its state",
        changes=[Change("schema", "and (g.collected_at is null or new_state is not null)", "")],
    ),
    Mutant(
        name="signals to live instances are collected",
        scenario=collecting.gc_of_letters(),
        reason="signals lost",
        changes=[Change("sweep_signals", "where g.id = s.target_id and", "where false and")],
    ),
    Mutant(
        name="a bucket is made, and locked later",
        scenario=collecting.gc_of_buckets(),
        reason="a full bucket gave nothing",
        changes=[
            Change(
                SCHEMA,
                "   order by given.key\n      on conflict (key) do update set full_at = b.full_at where false;",
                "   order by given.key on conflict do nothing;",
            )
        ],
    ),
    Mutant(
        name="buckets go whether they are full or not",
        scenario=collecting.gc_of_buckets(),
        reason="a token was spent twice",
        changes=[Change("sweep_buckets", "b.full_at < statement_timestamp() - interval '1 minute'", "true")],
    ),
    Mutant(
        name="a fork takes the state that the collector has left",
        scenario=collecting.gc_and_fork(has_key=True),
        reason="a fork without the state of its origin",
        changes=[
            Change(SCHEMA, "if origin.collected_at is not null and state is null then", "if false then")
        ],
    ),
]
