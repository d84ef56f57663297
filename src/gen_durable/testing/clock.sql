-- Time in the database of a test: rows are moved into the past, and the statements of the engine find them due.

-- name: advance_instances
-- Advance the clock of every instance by :by.
update gen_durable.gen_durable
   set inserted_at = inserted_at - :by::interval, updated_at = updated_at - :by::interval,
       eligible_at = eligible_at - :by::interval, await_deadline = await_deadline - :by::interval,
       lease_expires_at = lease_expires_at - :by::interval, finished_at = finished_at - :by::interval,
       cancel_requested_at = cancel_requested_at - :by::interval, deleted_at = deleted_at - :by::interval,
       leased_at = leased_at - :by::interval, started_at = started_at - :by::interval,
       collected_at = collected_at - :by::interval, expires_at = expires_at - :by::interval,
       rate_turn_at = rate_turn_at - :by::interval

-- name: advance_buckets
-- Advance the clock of the rate limit buckets.
update gen_durable.buckets set full_at = full_at - :by::interval where isfinite(full_at)

-- name: advance_signals
-- Advance the clock of the inboxes.
update gen_durable.signals set inserted_at = inserted_at - :by::interval

-- name: advance_executions
-- Advance the clock of the execution records.
update gen_durable.executions
   set leased_at = leased_at - :by::interval, started_at = started_at - :by::interval, finished_at = finished_at - :by::interval,
       lease_expires_at = lease_expires_at - :by::interval, await_deadline = await_deadline - :by::interval

-- name: due_queues
-- The queues with due rows of these machines.
select distinct g.queue from gen_durable.gen_durable g
 where g.status = 'runnable' and not g.gated and g.eligible_at <= statement_timestamp()
   and (g.fsm, g.fsm_version) in (select * from unnest(:fsms::text[], :versions::int[]))
 order by g.queue

-- name: collapse
-- Skip the time until the next row is due. All waiting rows move by the same interval, so they run in the order of their delays.
-- Rows that became due since :since count as waiting. Rows whose rate limit does not exist stay: time does not help them.
with waiting as (
  select g.id, g.eligible_at from gen_durable.gen_durable g
   where g.status = 'runnable' and g.eligible_at > :since::timestamptz and isfinite(g.eligible_at)
     and (g.rate_limit is null or exists (
            select from gen_durable.limits l where l.kind = 'rate' and l.name = split_part(g.rate_limit, ':', 1)))
     and (g.fsm, g.fsm_version) in (select * from unnest(:fsms::text[], :versions::int[]))
), gap as (
  select greatest(min(eligible_at) - statement_timestamp(), '0') as length from waiting
), filled as (                                            -- the buckets refill over the same interval
  update gen_durable.buckets b set full_at = b.full_at - gap.length from gap where isfinite(b.full_at)
)
update gen_durable.gen_durable g set eligible_at = g.eligible_at - gap.length, rate_turn_at = g.rate_turn_at - gap.length
  from waiting, gap where g.id = waiting.id
returning g.id

-- name: end_leases
-- Expire the leases of this worker, as if its process had died one lease ago. Also returns leases that had expired before.
with ended as (
  update gen_durable.gen_durable g set lease_expires_at = statement_timestamp() - interval '1 second'
   where g.status = 'executing' and g.locked_by = :worker::text
  returning g.id
)
select ended.id, true as is_ours from ended
union all
select g.id, false from gen_durable.gen_durable g
 where g.status = 'executing' and g.lease_expires_at < statement_timestamp() and g.locked_by is distinct from :worker::text

-- name: make_due
-- Skip the backoff after a crash.
update gen_durable.gen_durable g set eligible_at = statement_timestamp()
 where g.id = any (:ids::bigint[]) and g.status = 'runnable'

-- name: end_awaits
-- Expire every await that has a deadline.
update gen_durable.gen_durable g set await_deadline = statement_timestamp()
 where g.status = 'awaiting_signal' and g.await_deadline > statement_timestamp()
