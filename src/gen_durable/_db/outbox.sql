-- The outbox. A commit inserts its events; a dispatcher leases them, publishes them outside of any transaction, and marks them.
-- Guard of every mark: the token of the lease. A stream is the events of one instance for one sink, ordered by id.

-- name: emit
-- Insert the events of outcomes that the guarded commit of the same transaction has returned.
insert into gen_durable.outbox (instance_id, step_seq, n, sink, type, subject, data)
select event.instance_id, event.step_seq, event.n, event.sink, event.type, event.subject, event.data::jsonb
  from unnest(:ids::bigint[], :step_seqs::bigint[], :ns::int[], :sinks::text[], :types::text[], :subjects::text[],
              :datas::text[]) with ordinality
       as event (instance_id, step_seq, n, sink, type, subject, data, ord)
 order by event.ord

-- name: lease_events
-- Lease due events of one sink, the longest due first. An event is leased only if every unpublished event before it in its
-- stream is in the same batch: an earlier one may be leased by another dispatcher, or wait for its next attempt. Events behind
-- such a one are deferred: until its next attempt, or for 0.2 s if it is being published (release_successors makes them due).
-- SKIP LOCKED.
with candidates as materialized (
  select * from (
    select o.id, o.instance_id from gen_durable.outbox o
     where o.sink = :sink::text and o.published_at is null and o.dead_at is null and o.next_at <= statement_timestamp()
     order by o.next_at, o.id limit 1000
       for no key update skip locked) first
  limit :demand::int
), blocked as (
  select streams.instance_id, earlier.id, earlier.attempts, earlier.next_at
    from (select distinct candidates.instance_id from candidates) streams cross join lateral (
      select o.id, o.attempts, o.next_at from gen_durable.outbox o
       where o.instance_id = streams.instance_id and o.sink = :sink::text and o.published_at is null and o.dead_at is null
         and not exists (select from candidates where candidates.id = o.id)
       order by o.id limit 1) earlier
), deferred as (
  update gen_durable.outbox o
     set next_at = greatest(case when blocked.attempts > 0 then blocked.next_at end,
                            statement_timestamp() + interval '0.2 seconds')
    from candidates join blocked using (instance_id)
   where o.id = candidates.id and blocked.id < candidates.id
)
update gen_durable.outbox o
   set lease_token = :lease_token::bigint, next_at = statement_timestamp() + :lease::interval
  from candidates left join blocked using (instance_id)
 where o.id = candidates.id and (blocked.id is null or blocked.id > candidates.id)
returning o.id, o.instance_id, o.step_seq, o.n, o.type, o.subject, o.data::text as data, o.created_at, o.attempts

-- name: mark_events
-- Mark leased events as published or dead, or schedule a retry, or release them without an attempt. :delays are relative to now.
update gen_durable.outbox o
   set lease_token = null,
       attempts = o.attempts + (mark.error is not null)::int,
       last_error = coalesce(mark.error, case when mark.verdict <> 'published' then o.last_error end),
       published_at = case when mark.verdict = 'published' then statement_timestamp() end,
       dead_at = case when mark.verdict = 'dead' then statement_timestamp() end,
       next_at = statement_timestamp() + coalesce(mark.delay, '0')
  from unnest(:ids::bigint[], :verdicts::text[], :errors::text[], :delays::interval[]) as mark (id, verdict, error, delay)
 where o.id = mark.id and o.lease_token = :lease_token::bigint
returning o.id

-- name: release_successors
-- Make the deferred events due that are behind published or dead events of the same streams.
update gen_durable.outbox o set next_at = statement_timestamp()
  from (select distinct unnest(:instance_ids::bigint[]) as instance_id) streams
 where o.instance_id = streams.instance_id and o.sink = :sink::text and o.published_at is null and o.dead_at is null
   and o.lease_token is null and o.attempts = 0 and o.next_at > statement_timestamp()

-- name: lock_executions
-- Lock the executions before finish_executions. A separate statement: of two dispatchers that mark the last events of one
-- execution at once, the second waits here, and its next statement sees the marks of the first. Lock order: instance, step_seq.
select from gen_durable.executions e
  join unnest(:instance_ids::bigint[], :step_seqs::bigint[]) as done (instance_id, step_seq) using (instance_id, step_seq)
 where e.status = 'COMMITTED'
 order by e.instance_id, e.step_seq for no key update of e

-- name: finish_executions
-- Mark executions DONE whose events are all published or dead. A scalar subquery instead of NOT EXISTS: that would be planned
-- as a join, which reads all pending events for each batch of marks.
update gen_durable.executions e set status = 'DONE'
  from (select distinct * from unnest(:instance_ids::bigint[], :step_seqs::bigint[]) as done (instance_id, step_seq)) done
 where e.instance_id = done.instance_id and e.step_seq = done.step_seq and e.status = 'COMMITTED'
   and (select true from gen_durable.outbox o
         where o.instance_id = done.instance_id and o.step_seq = done.step_seq and o.published_at is null
           and o.dead_at is null limit 1) is null

-- name: newest_event
-- The newest event after :after that is visible, and an xid that is assigned now. Every transaction that has inserted an earlier event,
-- or is about to, has a smaller xid: it wrote before it took the number of its event, and that number is smaller than one that is
-- committed. pg_snapshot_xmax() would not do: transactions with larger xids may be running. No row: there is no newer event.
select newest.id, pg_current_xact_id()::text::bigint as xid
  from (select o.id from gen_durable.outbox o where o.id > :after::bigint order by o.id desc limit 1) newest

-- name: are_earlier_complete
-- Whether all transactions with smaller xids have ended. A later statement sees what they have committed.
select pg_snapshot_xmin(pg_current_snapshot())::text::bigint > :xid::bigint as are_complete

-- part: list_events
-- Events, newest first. outbox.py composes the statement from the given filters, so that each source uses one index.
select found.id, found.instance_id, found.step_seq, found.n, found.sink, found.type, found.subject, found.data::text as data,
       found.created_at, found.next_at, found.attempts, found.last_error, found.published_at,
       case when found.published_at is not null then 'published' when found.dead_at is not null then 'dead' else 'pending' end as state
  from (
{sources}
) found order by found.id desc limit :demand::int

-- part: tail_events
-- Events in the order of their numbers, after :after up to :until. outbox.py composes the statement from the given filters.
select o.id, o.instance_id, o.step_seq, o.n, o.sink, o.type, o.subject, o.data::text as data, o.created_at, o.next_at, o.attempts,
       o.last_error, o.published_at,
       case when o.published_at is not null then 'published' when o.dead_at is not null then 'dead' else 'pending' end as state
  from gen_durable.outbox o
 where o.id > :after::bigint and o.id <= :until::bigint {conditions}
 order by o.id limit :demand::int

-- part: events
(select * from gen_durable.outbox o where true {conditions} order by o.id desc limit :demand::int)

-- part: events_sorted
-- Without an index in the order of ids: `id + 0` keeps the planner from walking the primary key.
(select * from gen_durable.outbox o where true {conditions} order by o.id + 0 desc limit :demand::int)

-- part: on_instance_id
and o.instance_id = :instance_id::bigint
-- part: on_sink
and o.sink = :sink::text
-- part: on_type
and o.type = :type::text
-- part: on_since
and o.id >= :since::bigint
-- part: on_before
and o.id < :before::bigint
-- part: on_pending
and o.published_at is null and o.dead_at is null
-- part: on_dead
and o.published_at is null and o.dead_at is not null
-- part: on_unpublished
and o.published_at is null
-- part: on_published
and o.published_at is not null
-- part: on_any_state

-- name: count_dead
-- The number of dead letters, by outbox_dead, and the newest one.
select count(*) as count, coalesce(max(o.id), 0) as newest from gen_durable.outbox o
 where o.dead_at is not null and (:sink::text is null or o.sink = :sink::text)

-- name: dead_upwards
-- The next dead letters in the order of their numbers, by outbox_dead.
select o.id from gen_durable.outbox o
 where o.dead_at is not null and o.id > :after::bigint and o.id <= :newest::bigint and (:sink::text is null or o.sink = :sink::text)
 order by o.id limit :demand::int

-- name: replay_events
-- Publish dead or published events again, with the same ids, in the order of their streams.
select replayed.id from gen_durable.replay_rows(:ids::bigint[], :reason::text, :actor::text, '{}') as replayed (id)
