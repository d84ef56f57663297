-- Collector: delete what its retention allows, in bounded batches, SKIP LOCKED. Each batch is one statement and one transaction.
--
-- Kept regardless of age:
--   * a child that its parent may still read: of the round that the parent waits for or was woken by, while that step may run,
--     for the first time or again. A failed or cancelled parent may be retried; a done parent may not;
--   * a row that still occupies a unique or correlation key: only its state, result and error are deleted (collected_at);
--   * live instances and their inboxes.
-- The parent is not locked: children are inserted in the transaction that opens their round, and a round that was left never
-- comes back, so one snapshot of both is enough.

-- name: sweep_ended
-- Collect the next page of rows that ended in this status before the retention, after (:after_at, :after_id). The conditions are
-- checked again under the row lock.
with page as materialized (
  select g.id, g.finished_at as at from gen_durable.gen_durable g
   where g.status = :status::text::gen_durable.durable_status and g.finished_at is not null and g.expires_at is null
     and g.deleted_at is null and g.collected_at is null and g.finished_at < statement_timestamp() - :retention::interval
     and (g.finished_at, g.id) > (:after_at::timestamptz, :after_id::bigint)
   order by g.finished_at, g.id limit 500
), due as materialized (
  select g.id, {is_free} as is_free
    from page join gen_durable.gen_durable g on g.id = page.id
   where g.status = :status::text::gen_durable.durable_status and g.expires_at is null and g.deleted_at is null
     and g.collected_at is null
     and g.finished_at < statement_timestamp() - :retention::interval
     and {not_needed_by_parent}
   order by g.id desc for update of g skip locked
), {collected}, {stripped}, {signals}, {stream_items}, {execution_records}, {audit_of_collected}, {swept}
select * from swept

-- name: sweep_expired
-- The same for rows whose machine declares its retention, whatever their status.
with page as materialized (
  select g.id, g.expires_at as at from gen_durable.gen_durable g
   where g.finished_at is not null and g.expires_at is not null and g.deleted_at is null and g.collected_at is null
     and g.expires_at < statement_timestamp() - :retention::interval
     and (g.expires_at, g.id) > (:after_at::timestamptz, :after_id::bigint)
   order by g.expires_at, g.id limit 500
), due as materialized (
  select g.id, {is_free} as is_free
    from page join gen_durable.gen_durable g on g.id = page.id
   where g.finished_at is not null and g.deleted_at is null and g.collected_at is null
     and g.expires_at < statement_timestamp() - :retention::interval
     and {not_needed_by_parent}
   order by g.id desc for update of g skip locked
), {collected}, {stripped}, {signals}, {stream_items}, {execution_records}, {audit_of_collected}, {swept}
select * from swept

-- name: sweep_deleted
-- The same for rows that were soft-deleted before the retention, whatever their status.
with page as materialized (
  select g.id, g.deleted_at as at from gen_durable.gen_durable g
   where g.deleted_at is not null and g.finished_at is not null
     and g.deleted_at < statement_timestamp() - :retention::interval
     and (g.deleted_at, g.id) > (:after_at::timestamptz, :after_id::bigint)
   order by g.deleted_at, g.id limit 500
), due as materialized (
  select g.id, {is_free} as is_free
    from page join gen_durable.gen_durable g on g.id = page.id
   where g.finished_at is not null and g.deleted_at < statement_timestamp() - :retention::interval
     and {not_needed_by_parent}
   order by g.id desc for update of g skip locked
), {collected}, {stripped}, {signals}, {stream_items}, {execution_records}, {audit_of_collected}, {swept}
select * from swept

-- part: not_needed_by_parent
-- The parent cannot read this child any more. After a stop, which is a transition, step_seq is one above the round.
not exists (
       select from gen_durable.gen_durable p
        where p.id = g.parent_id and p.status <> 'done' and p.spawn_round = g.parent_round
          and p.step_seq = p.spawn_round + (p.status = 'failed' and p.crash_count = 0 and p.step_seq > p.spawn_round)::int)

-- part: is_free
-- The row occupies neither of its keys.
coalesce(g.deleted_at is not null or (g.unique_key is null or g.status <> all (g.unique_scope))
                                       and (g.correlation_key is null or g.status <> all (g.correlation_scope)), true)

-- part: collected
-- Delete the rows that occupy no key.
collected as (
  delete from gen_durable.gen_durable g using due where g.id = due.id and due.is_free returning g.id
)

-- part: stripped
-- Strip the rows that occupy a key.
stripped as (
  update gen_durable.gen_durable g set state = '{}', result = null, error = null, failure = null, checkpoint = null, progress = null,
         collected_at = statement_timestamp()
    from due where g.id = due.id and not due.is_free
  returning g.id
)

-- part: signals
-- Delete the signals of the collected rows.
unread_signals as (
  delete from gen_durable.signals s using collected where s.target_id = collected.id and s.consumed_seq is null
), consumed_signals as (
  delete from gen_durable.signals s using collected
   where s.target_id = collected.id and s.consumed_seq is not null and s.dedup_key is not null
)

-- part: stream_items
-- Delete the stream items of the collected and the stripped rows.
stream_items as (
  delete from gen_durable.stream_items i using due where i.instance_id = due.id
)

-- part: execution_records
-- Delete the execution records of the collected rows.
committed_executions as (
  delete from gen_durable.executions e using collected
   where e.instance_id = collected.id and e.status in ('COMMITTED', 'DONE')
), aborted_executions as (
  delete from gen_durable.executions e using collected where e.instance_id = collected.id and e.status = 'ABORTED'
)

-- part: audit_of_collected
-- Delete the audit events of the collected rows.
audit_of_collected as (
  delete from gen_durable.audit_events a using collected where a.instance_id = collected.id
)

-- part: swept
swept as (
  select (select count(*) from page) as seen, (select count(*) from collected) as deleted,
         (select count(*) from stripped) as stripped, last.at as last_at, last.id as last_id
    from (select 1) one left join (select page.at, page.id from page order by page.at desc, page.id desc limit 1) last on true
)

-- name: delete_done
-- Commit the outcome `done` of instances that are not kept, by deleting their rows. Guard: lease token and step_seq, as in
-- commit.sql; no requested cancel; no key that a done row occupies. An outcome that is not returned has to be committed by `commit`,
-- which tells why. Locks: the rows, in the given order.
-- The first execution of an instance has no execution records. It may have audit events, unless the audit level is `off`: an insert
-- with an actor, an edit. Signals and their audit events are deleted by later statements: this one does not see signals that were
-- delivered while it waited for the row. Stream items as well: most instances have none.
with deleted as (
  delete from gen_durable.gen_durable g
   using (select * from unnest(:ids::text::bigint[], :lease_tokens::text::bigint[], :step_seqs::text::bigint[]) with ordinality
                 as outcome (id, lease_token, step_seq, number) offset 0) o
   where g.id = any (array[o.id]) and g.lease_token = o.lease_token and g.step_seq = o.step_seq
     and g.cancel_requested_at is null and g.compensation is null
     and (g.unique_key is null or 'done' <> all (g.unique_scope))
     and (g.correlation_key is null or 'done' <> all (g.correlation_scope))
  returning o.number, g.id, g.has_signals, g.has_items, g.execution
), collected as (
  select deleted.id from deleted where deleted.execution > 1
), {execution_records}, audited as (
  select deleted.id from deleted where deleted.execution > 1 or (select s.audit from gen_durable.settings s) <> 'off'
), audit_of_deleted as (
  delete from gen_durable.audit_events a using audited where a.instance_id = audited.id
)
select coalesce(array_agg(number)::text, '{}') as numbers, array_agg(id) filter (where has_signals) as with_signals,
       array_agg(id) filter (where has_items) as with_items
  from deleted

-- name: delete_audit
-- Delete the audit events of deleted instances.
delete from gen_durable.audit_events a where a.instance_id = any (:ids::bigint[])

-- name: collect_done
-- The same for rows that an earlier statement of the transaction has made done, and for rows that were kept for a waiting client.
-- Rows that occupy a key are stripped. SKIP LOCKED: the poller of all waits must not wait for a caller's transaction.
with due as materialized (
  select g.id, {is_free} as is_free
    from gen_durable.gen_durable g
   where g.id = any (:ids::bigint[]) and g.status = 'done'
   order by g.id desc for update of g skip locked
), {collected}, {stripped}, {signals}, {stream_items}, {execution_records}, {audit_of_collected}
select (select count(*) from collected) as deleted, (select count(*) from stripped) as stripped

-- name: sweep_executions
-- Delete old execution records of instances that still exist. Walks the table, :blocks blocks per call: an index on finished_at
-- would cost every commit, a walk costs once per retention. COMMITTED records stay until they are DONE.
with size as materialized (
  select pg_relation_size('gen_durable.executions') / current_setting('block_size')::int as blocks
), expired as materialized (
  select e.ctid from gen_durable.executions e
   where e.ctid >= format('(%s,0)', :block::bigint)::tid and e.ctid < format('(%s,0)', :block::bigint + :blocks::int)::tid
     and e.status <> 'COMMITTED' and e.finished_at < statement_timestamp() - :retention::interval
     for update skip locked
), deleted as (
  delete from gen_durable.executions e using expired where e.ctid = expired.ctid returning 1
)
select (select count(*) from deleted) as deleted, size.blocks from size

-- name: sweep_signals
-- Delete signals of instances that have ended or do not exist: a process died between the end and the sweep of the inbox. Walks
-- the table. deliver() locks a live target, so a signal that is visible beside an ended target is older than the end.
with size as materialized (
  select pg_relation_size('gen_durable.signals') / current_setting('block_size')::int as blocks
), orphaned as materialized (
  select s.ctid from gen_durable.signals s
   where s.ctid >= format('(%s,0)', :block::bigint)::tid and s.ctid < format('(%s,0)', :block::bigint + :blocks::int)::tid
     and not exists (select from gen_durable.gen_durable g
                      where g.id = s.target_id and g.status not in ('done', 'failed', 'cancelled'))
     for update of s skip locked
), deleted as (
  delete from gen_durable.signals s using orphaned where s.ctid = orphaned.ctid returning 1
)
select (select count(*) from deleted) as deleted, size.blocks from size

-- name: sweep_items
-- Delete stream items of instances that do not exist: a process died between the commit that deleted the instance and
-- delete_items. Walks the table.
with size as materialized (
  select pg_relation_size('gen_durable.stream_items') / current_setting('block_size')::int as blocks
), orphaned as materialized (
  select i.ctid from gen_durable.stream_items i
   where i.ctid >= format('(%s,0)', :block::bigint)::tid and i.ctid < format('(%s,0)', :block::bigint + :blocks::int)::tid
     and not exists (select from gen_durable.gen_durable g where g.id = i.instance_id)
     for update of i skip locked
), deleted as (
  delete from gen_durable.stream_items i using orphaned where i.ctid = orphaned.ctid returning 1
)
select (select count(*) from deleted) as deleted, size.blocks from size

-- name: sweep_events
-- Delete events that were published before the retention. Dead letters stay until they are replayed.
with expired as materialized (
  select o.id from gen_durable.outbox o
   where o.published_at < statement_timestamp() - :retention::interval
   order by o.published_at limit 500
     for update skip locked
), deleted as (
  delete from gen_durable.outbox o using expired where o.id = expired.id returning 1
)
select count(*) as deleted from deleted

-- name: sweep_pending
-- Delete events that no sink has accepted within the retention. Walks the table: an index on created_at would cost every commit
-- with events. coalesce() keeps the planner from the partial indexes, which would read all pending events. Leased events stay.
-- The reaper finishes the executions of deleted events.
with size as materialized (
  select pg_relation_size('gen_durable.outbox') / current_setting('block_size')::int as blocks
), expired as materialized (
  select o.ctid from gen_durable.outbox o
   where o.ctid >= format('(%s,0)', :block::bigint)::tid and o.ctid < format('(%s,0)', :block::bigint + :blocks::int)::tid
     and coalesce(o.published_at, o.dead_at) is null and o.created_at < statement_timestamp() - :retention::interval
     and (o.lease_token is null or o.next_at < statement_timestamp())
     for update skip locked
), deleted as (
  delete from gen_durable.outbox o using expired where o.ctid = expired.ctid returning o.sink
)
select size.blocks, by_sink.sink, by_sink.deleted
  from size left join (select deleted.sink, count(*) as deleted from deleted group by deleted.sink) by_sink on true

-- name: sweep_messages
-- Delete the ids of messages received before the retention. Walks the table.
with size as materialized (
  select pg_relation_size('gen_durable.received_messages') / current_setting('block_size')::int as blocks
), expired as materialized (
  select m.ctid from gen_durable.received_messages m
   where m.ctid >= format('(%s,0)', :block::bigint)::tid and m.ctid < format('(%s,0)', :block::bigint + :blocks::int)::tid
     and m.received_at < statement_timestamp() - :retention::interval
     for update skip locked
), deleted as (
  delete from gen_durable.received_messages m using expired where m.ctid = expired.ctid returning 1
)
select (select count(*) from deleted) as deleted, size.blocks from size

-- name: sweep_audit
-- Delete audit events that are older than the retention: of the first 500 by primary key, those that are old enough.
with page as materialized (
  select a.id, a.created_at from gen_durable.audit_events a order by a.id limit 500
), deleted as (
  delete from gen_durable.audit_events a using page
   where a.id = page.id and page.created_at < statement_timestamp() - :retention::interval
  returning 1
)
select count(*) as deleted from deleted

-- name: sweep_batches
-- Delete batches that ended before the retention.
with expired as materialized (
  select b.id from gen_durable.batches b
   where b.finished_at < statement_timestamp() - :retention::interval
   order by b.finished_at limit 500
     for update skip locked
), deleted as (
  delete from gen_durable.batches b using expired where b.id = expired.id returning 1
)
select count(*) as deleted from deleted

-- name: sweep_requests
-- Delete answers of requests after the retention.
with expired as materialized (
  select r.actor, r.key from gen_durable.answered_requests r
   where r.answered_at < statement_timestamp() - :retention::interval
   order by r.answered_at limit 500
     for update skip locked
), deleted as (
  delete from gen_durable.answered_requests r using expired where (r.actor, r.key) = (expired.actor, expired.key) returning 1
)
select count(*) as deleted from deleted

-- name: sweep_buckets
-- Delete buckets that have been full for a minute: a bucket without a row is full. Walks the table: an index on full_at would
-- cost every start. A pick that charges a bucket has locked it, and a later one inserts it again. The minute allows for the
-- clock of a server that takes over.
with size as materialized (
  select pg_relation_size('gen_durable.buckets') / current_setting('block_size')::int as blocks
), full_buckets as materialized (
  select b.ctid from gen_durable.buckets b
   where b.ctid >= format('(%s,0)', :block::bigint)::tid and b.ctid < format('(%s,0)', :block::bigint + :blocks::int)::tid
     and b.full_at < statement_timestamp() - interval '1 minute'
     for update skip locked
), deleted as (
  delete from gen_durable.buckets b using full_buckets where b.ctid = full_buckets.ctid returning 1
)
select (select count(*) from deleted) as deleted, size.blocks from size

-- name: vacuum
-- Remove dead entries from every index, even if they are few relative to the table. Skips the table if another vacuum runs.
vacuum (skip_locked, index_cleanup on, truncate off, process_toast off, parallel 0) gen_durable.gen_durable
