-- Collecting what has ended: bounded batches in the order of time, SKIP LOCKED, each batch one statement and one transaction.
--
-- What stays, however old it is:
--   * a child that its parent may still look at: of the round that the parent waits for or has been woken by, as long as that
--     step may run, again or for the first time. A parent that failed or was cancelled may be retried; one that is done not;
--   * a row that still occupies a unique or correlation key: it loses its state and result (collected_at), and no more;
--   * whatever is live, and its inbox.
-- The parent need not be locked: a child appears with its round, and a round that was left never comes back.

-- name: sweep_ended
-- The next page of rows that ended in this way so long ago, behind (:after_at, :after_id).
with page as materialized (
  select g.id, g.finished_at as at from gen_durable.gen_durable g
   where g.status = :status::text::gen_durable.durable_status and g.finished_at is not null and g.deleted_at is null
     and g.collected_at is null and g.finished_at < statement_timestamp() - :retention::interval
     and (g.finished_at, g.id) > (:after_at::timestamptz, :after_id::bigint)
   order by g.finished_at, g.id limit 500
), due as materialized (
  select g.id, g.unique_guard is null and g.correlation_guard is null as is_free
    from page join gen_durable.gen_durable g on g.id = page.id
   where g.status = :status::text::gen_durable.durable_status and g.deleted_at is null and g.collected_at is null
     and g.finished_at < statement_timestamp() - :retention::interval
     and {unneeded}
   order by g.id desc for update of g skip locked
{collecting}

-- name: sweep_deleted
-- The same for rows that were deleted softly so long ago, however they had ended.
with page as materialized (
  select g.id, g.deleted_at as at from gen_durable.gen_durable g
   where g.deleted_at is not null and g.finished_at is not null
     and g.deleted_at < statement_timestamp() - :retention::interval
     and (g.deleted_at, g.id) > (:after_at::timestamptz, :after_id::bigint)
   order by g.deleted_at, g.id limit 500
), due as materialized (
  select g.id, g.unique_guard is null and g.correlation_guard is null as is_free
    from page join gen_durable.gen_durable g on g.id = page.id
   where g.finished_at is not null and g.deleted_at < statement_timestamp() - :retention::interval
     and {unneeded}
   order by g.id desc for update of g skip locked
{collecting}

-- part: unneeded
not exists (
       select from gen_durable.gen_durable p
        where p.id = g.parent_id and p.status <> 'done' and p.spawn_round = g.parent_round
          -- A stop is a transition, and what it stopped may be retried.
          and p.step_seq = p.spawn_round + (p.status = 'failed' and p.crash_count = 0 and p.step_seq > p.spawn_round)::int)

-- part: collecting
), collected as (
  delete from gen_durable.gen_durable g using due where g.id = due.id and due.is_free returning g.id
), stripped as (
  update gen_durable.gen_durable g set state = '{}', result = null, error = null, collected_at = statement_timestamp()
    from due where g.id = due.id and not due.is_free
  returning g.id
), unread as (
  delete from gen_durable.signals s using collected where s.target_id = collected.id and s.consumed_seq is null
), read as (
  delete from gen_durable.signals s using collected
   where s.target_id = collected.id and s.consumed_seq is not null and s.dedup_key is not null
), committed as (
  delete from gen_durable.executions e using collected
   where e.instance_id = collected.id and e.status in ('COMMITTED', 'DONE')
), aborted as (
  delete from gen_durable.executions e using collected where e.instance_id = collected.id and e.status = 'ABORTED'
), told as (
  delete from gen_durable.audit_events a using collected where a.instance_id = collected.id
)
select (select count(*) from page) as seen, (select count(*) from collected) as deleted,
       (select count(*) from stripped) as stripped, last.at as last_at, last.id as last_id
  from (select 1) one left join (select page.at, page.id from page order by page.at desc, page.id desc limit 1) last on true

-- name: sweep_executions
-- Records of long ago, of instances that are still there: some blocks of the table at a time. An index on their age would be
-- paid by every commit; a walk through the table is paid once per retention. A record that has yet to become DONE stays.
with block as materialized (
  select pg_relation_size('gen_durable.executions') / current_setting('block_size')::int as blocks
), old as materialized (
  select e.ctid from gen_durable.executions e
   where e.ctid >= format('(%s,0)', :block::bigint)::tid and e.ctid < format('(%s,0)', :block::bigint + :blocks::int)::tid
     and e.status <> 'COMMITTED' and e.finished_at < statement_timestamp() - :retention::interval
     for update skip locked
), gone as (
  delete from gen_durable.executions e using old where e.ctid = old.ctid returning 1
)
select (select count(*) from gone) as deleted, block.blocks from block

-- name: sweep_signals
-- Signals of instances that have ended, or are gone: a process died between an end and the emptying of its inbox. The same walk.
-- Whoever delivers holds the lock of a live target, so a signal that is seen beside an end came before it.
with block as materialized (
  select pg_relation_size('gen_durable.signals') / current_setting('block_size')::int as blocks
), orphan as materialized (
  select s.ctid from gen_durable.signals s
   where s.ctid >= format('(%s,0)', :block::bigint)::tid and s.ctid < format('(%s,0)', :block::bigint + :blocks::int)::tid
     and not exists (select from gen_durable.gen_durable g
                      where g.id = s.target_id and g.status not in ('done', 'failed', 'cancelled'))
     for update of s skip locked
), gone as (
  delete from gen_durable.signals s using orphan where s.ctid = orphan.ctid returning 1
)
select (select count(*) from gone) as deleted, block.blocks from block

-- name: sweep_events
-- Events that were published before the retention. Dead letters stay until they are replayed.
with old as materialized (
  select o.id from gen_durable.outbox o
   where o.published_at < statement_timestamp() - :retention::interval
   order by o.published_at limit 500
     for update skip locked
), gone as (
  delete from gen_durable.outbox o using old where o.id = old.id returning 1
)
select count(*) as deleted from gone

-- name: sweep_pending
-- Events that no sink has accepted within the retention. The same walk as for executions: an index on their age would be paid by
-- every commit with events. "coalesce" keeps the planner from the partial indexes, which would read all that is pending. An event
-- that a dispatcher has leased stays. The reaper finishes the executions of the removed events.
with block as materialized (
  select pg_relation_size('gen_durable.outbox') / current_setting('block_size')::int as blocks
), expired as materialized (
  select o.ctid from gen_durable.outbox o
   where o.ctid >= format('(%s,0)', :block::bigint)::tid and o.ctid < format('(%s,0)', :block::bigint + :blocks::int)::tid
     and coalesce(o.published_at, o.dead_at) is null and o.created_at < statement_timestamp() - :retention::interval
     and (o.lease_token is null or o.next_at < statement_timestamp())
     for update skip locked
), gone as (
  delete from gen_durable.outbox o using expired where o.ctid = expired.ctid returning o.sink
)
select block.blocks, by_sink.sink, by_sink.deleted
  from block left join (select gone.sink, count(*) as deleted from gone group by gone.sink) by_sink on true

-- name: sweep_messages
-- Messages that came in before the retention: their ids are forgotten. The same walk.
with block as materialized (
  select pg_relation_size('gen_durable.received_messages') / current_setting('block_size')::int as blocks
), old as materialized (
  select m.ctid from gen_durable.received_messages m
   where m.ctid >= format('(%s,0)', :block::bigint)::tid and m.ctid < format('(%s,0)', :block::bigint + :blocks::int)::tid
     and m.received_at < statement_timestamp() - :retention::interval
     for update skip locked
), gone as (
  delete from gen_durable.received_messages m using old where m.ctid = old.ctid returning 1
)
select (select count(*) from gone) as deleted, block.blocks from block

-- name: sweep_audit
-- Audit events of long ago, in the order in which they were written: a page of the primary key, and of that what is old enough.
with page as materialized (
  select a.id, a.created_at from gen_durable.audit_events a order by a.id limit 500
), gone as (
  delete from gen_durable.audit_events a using page
   where a.id = page.id and page.created_at < statement_timestamp() - :retention::interval
  returning 1
)
select count(*) as deleted from gone

-- name: sweep_buckets
-- Buckets that have been full for a while: no row says the same. The same walk, since an index on full_at would be paid by every
-- start. A pick that is about to charge one has it locked, and then it is passed by; one that comes later makes it anew. A
-- minute is left for the clock of a server that takes over.
with block as materialized (
  select pg_relation_size('gen_durable.buckets') / current_setting('block_size')::int as blocks
), full_one as materialized (
  select b.ctid from gen_durable.buckets b
   where b.ctid >= format('(%s,0)', :block::bigint)::tid and b.ctid < format('(%s,0)', :block::bigint + :blocks::int)::tid
     and b.full_at < statement_timestamp() - interval '1 minute'
     for update skip locked
), gone as (
  delete from gen_durable.buckets b using full_one where b.ctid = full_one.ctid returning 1
)
select (select count(*) from gone) as deleted, block.blocks from block

-- name: vacuum
-- Take what is dead out of every index, though it be little of the table. Whoever does it already, or must not, does nothing.
vacuum (skip_locked, index_cleanup on, truncate off, process_toast off, parallel 0) gen_durable.gen_durable
