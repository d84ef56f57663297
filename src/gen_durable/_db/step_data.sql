-- What a step stores while it runs. Guard of every write: id, lease_token and step_seq, so an execution that has lost its lease or
-- has been committed writes nothing. No index has these columns: the updates are HOT.

-- name: checkpoint
-- Store the checkpoint of one running step; no row: the lease is lost, or another transaction has locked the row (is_locked), and
-- nothing is stored. Locks: the row, SKIP LOCKED: steps that wait for a caller's transaction must not use up the connections.
with held as materialized (
  select g.id from gen_durable.gen_durable g
   where g.id = :id::bigint and g.lease_token = :lease_token::bigint and g.step_seq = :step_seq::bigint
     for no key update skip locked
), stored as (
  update gen_durable.gen_durable g set checkpoint = :value::text::jsonb from held where g.id = held.id
)
select not exists (select from held) as is_locked from gen_durable.gen_durable g
 where g.id = :id::bigint and g.lease_token = :lease_token::bigint and g.step_seq = :step_seq::bigint

-- name: progress
-- Store the progress of running steps. One statement for any number of rows. Locks: ids descending, SKIP LOCKED, so it never waits.
with running as materialized (
  select g.id, report.value
    from unnest(:ids::bigint[], :lease_tokens::bigint[], :step_seqs::bigint[], :values::text[])
         as report (id, lease_token, step_seq, value)
    join gen_durable.gen_durable g
      on g.id = report.id and g.lease_token = report.lease_token and g.step_seq = report.step_seq
   order by g.id desc for no key update of g skip locked
)
update gen_durable.gen_durable g
   set progress = running.value::jsonb || jsonb_build_object('at', statement_timestamp())
  from running where g.id = running.id
returning g.id, g.lease_token
