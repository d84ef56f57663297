-- Group commit: the outcomes of many executions in one transaction.
--
-- Every write is guarded by (id, lease_token, step_seq). The token alone would not do: a chained step keeps its lease, so an
-- outcome that is sent twice (a COMMIT whose answer was lost) would pass a second time. A row that does not come back
-- was stale, and nothing may be written on its behalf: all riders read only what the guarded update returned.
-- A requested cancel wins over every outcome that has not been committed yet.

-- name: commit_plain
-- next, retry, done, stop and continue of rows without parent, key or awaited signals: the hot path, one statement, commit included.
-- It says less than `commit` and costs two thirds of it; what both say, they say alike.
{plain}
{noted}
)
select id, lease_token, status::text as status, has_signals, queue, continued_at, null::text[] as released from settled

-- name: commit_with_events
-- The same for outcomes some of which emit events: these go into the outbox with them.
{plain}
{noted}
), emitted as (
  insert into gen_durable.outbox (instance_id, step_seq, n, sink, type, subject, data)
  select settled.id, settled.step_seq, event.n, event.sink, event.type, event.subject, event.data::jsonb
    from unnest(:event_ids::bigint[], :event_tokens::bigint[], :event_ns::int[], :event_sinks::text[], :event_types::text[],
                :event_subjects::text[], :event_datas::text[]) with ordinality
         as event (id, lease_token, n, sink, type, subject, data, place)
    join settled on settled.id = event.id and settled.lease_token = event.lease_token
   where not settled.is_cancelled
   order by event.place
)
select id, lease_token, status::text as status, has_signals, queue, continued_at, null::text[] as released from settled

-- part: plain
-- What both of these do.
with settled as (
  update gen_durable.gen_durable g
     set status = case when g.cancel_requested_at is not null then 'cancelled'::gen_durable.durable_status
                       when o.kind = 'continue' then 'executing' when o.kind in ('next', 'retry') then 'runnable'
                       when o.kind = 'done' then 'done' else 'failed' end,
         step = case when g.cancel_requested_at is null and o.kind in ('continue', 'next') then o.step else g.step end,
         state = case when g.cancel_requested_at is null and o.kind in ('continue', 'next', 'retry') and o.payload is not null
                      then o.payload::jsonb else g.state end,
         result = case when g.cancel_requested_at is null and o.kind = 'done' then o.payload::jsonb end,
         -- What is done is not in error: only the records of its executions still say what went wrong on the way.
         last_error = case when g.cancel_requested_at is not null then g.last_error when o.kind = 'done' then o.error
                           else coalesce(o.error, g.last_error) end,
         error = case when g.cancel_requested_at is not null or o.kind not in ('done', 'stop') then g.error end,
         step_seq = g.step_seq + (g.cancel_requested_at is null and o.kind <> 'retry')::int,
         execution = g.execution + (g.cancel_requested_at is null and o.kind = 'continue' and g.execution < 2147483647)::int,
         -- An end keeps it: at which try the instance ended.
         attempt = case when g.cancel_requested_at is not null or o.kind in ('done', 'stop') then g.attempt
                        when o.kind = 'retry' then least(g.attempt, 2147483646) + 1 else 0 end,
         crash_count = 0, awaits = null, presented = null, timed_out = false,
         lease_token = case when g.cancel_requested_at is null and o.kind = 'continue' then g.lease_token end,
         lease_expires_at = case when g.cancel_requested_at is null and o.kind = 'continue'
                                 then greatest(g.lease_expires_at, statement_timestamp() + :grace::interval) end,
         locked_by = case when g.cancel_requested_at is null and o.kind = 'continue' then g.locked_by end,
         leased_at = case when g.cancel_requested_at is null and o.kind = 'continue' then statement_timestamp() end,
         started_at = null,
         eligible_at = case when g.cancel_requested_at is null and o.kind in ('next', 'retry')
                            then statement_timestamp() + coalesce(o.delay, '0') else g.eligible_at end,
         finished_at = case when g.cancel_requested_at is not null or o.kind in ('done', 'stop')
                            then statement_timestamp() end,
         updated_at = statement_timestamp()
    from unnest(:ids::bigint[], :lease_tokens::bigint[], :step_seqs::bigint[], :kinds::text[], :steps::text[],
                :payloads::text[], :errors::text[], :delays::interval[],
                :from_steps::text[], :attempts::int[], :leased_ats::timestamptz[], :started_ats::timestamptz[],
                :finishes_later::boolean[], :causes::text[])
         as o (id, lease_token, step_seq, kind, step, payload, error, delay, from_step, attempt, leased_at, started_at, finishes_later,
               cause)
   where g.id = o.id and g.lease_token = o.lease_token and g.step_seq = o.step_seq
  returning g.id, o.lease_token, g.status, g.has_signals, g.queue, g.step_seq, g.execution, g.leased_at as continued_at,
            g.lease_expires_at, g.cancel_requested_at is not null as is_cancelled, o.kind, o.from_step, o.attempt, o.leased_at,
            case when o.started_at is not null then least(o.started_at, statement_timestamp()) end as started_at,
            o.error, o.finishes_later, g.step, g.cancelled_by, g.cancel_reason, o.cause
), recorded as (
  insert into gen_durable.executions (instance_id, step_seq, execution, attempt, status, outcome, step, lease_owner,
                                      leased_at, lease_expires_at, started_at, finished_at, error)
  select id, step_seq + (is_cancelled or kind = 'retry')::int, execution - (kind = 'continue' and not is_cancelled)::int, attempt,
         case when is_cancelled or kind = 'retry' then 'ABORTED' when finishes_later then 'COMMITTED' else 'DONE' end,
         case when is_cancelled then 'cancelled' when kind = 'continue' then 'next' else kind end, from_step, :worker::text,
         -- A chained step goes on with its lease; any other row has none now, and the look reads it as it was before the update.
         leased_at, coalesce(lease_expires_at, (select held.lease_expires_at from gen_durable.gen_durable held
                                                 where held.id = settled.id)),
         started_at, statement_timestamp(), error
    from settled
   where :record::text = 'all' or :record::text = 'failures' and (is_cancelled or kind in ('retry', 'stop'))

-- part: noted
-- What became of each execution, for the audit: one event each. What went wrong, and what somebody asked for, is written at the
-- level `failures` as well; a retry counts as that if something was raised, not if the step just wants to run again.
), noted as (
  insert into gen_durable.audit_events (instance_id, event, actor, reason, data)
  select id, case when is_cancelled then 'cancelled' when kind = 'retry' then 'retried' when kind = 'stop' then 'failed'
                  when kind in ('release', 'rejoin') then 'released' else 'succeeded' end,
         case when is_cancelled then cancelled_by end, case when is_cancelled then cancel_reason end,
         jsonb_strip_nulls(jsonb_build_object(
           'step', from_step, 'step_seq', step_seq + (is_cancelled or kind in ('retry', 'release', 'rejoin'))::int,
           'execution', execution - (kind = 'continue' and not is_cancelled)::int, 'attempt', attempt, 'worker', :worker::text,
           'outcome', case when not is_cancelled and kind not in ('retry', 'stop', 'release', 'rejoin')
                           then case kind when 'continue' then 'next' else kind end end,
           'to', case when not is_cancelled and kind in ('continue', 'next', 'await', 'schedule_children') then step end,
           'cause', case when not is_cancelled and kind = 'stop' then cause end, 'error', case when not is_cancelled then error end,
           'started_at', started_at))
    from settled
   where (select s.audit from gen_durable.settings s)
         >= case when is_cancelled or kind = 'stop' or kind = 'retry' and error is not null
                 then 'failures'::gen_durable.audit_level else 'all' end

-- name: commit
-- Any mix of outcomes, with everything that may ride on one: consumed signals, the parent's barrier, the record.
-- Later statements of the same transaction, each only if an answer asks for it: children, barrier, recheck, sweep, ungate.
with settled as (
  update gen_durable.gen_durable g
     set status = case when g.cancel_requested_at is not null or o.kind = 'cancel'
                       then 'cancelled'::gen_durable.durable_status
                       when o.kind = 'continue' then 'executing' when o.kind in ('next', 'retry', 'release') then 'runnable'
                       when o.kind = 'await' then 'awaiting_signal'
                       when o.kind = 'rejoin' then 'awaiting_children'
                       when o.kind = 'schedule_children' and o.children > 0 then 'awaiting_children'
                       when o.kind = 'schedule_children' then 'runnable'
                       when o.kind = 'done' then 'done' else 'failed' end,
         step = case when g.cancel_requested_at is null and o.kind in ('continue', 'next', 'await', 'schedule_children')
                     then o.step else g.step end,
         state = case when g.cancel_requested_at is null and o.kind not in ('done', 'stop', 'release', 'rejoin')
                           and o.payload is not null then o.payload::jsonb else g.state end,
         result = case when g.cancel_requested_at is null and o.kind = 'done' then o.payload::jsonb end,
         last_error = case when g.cancel_requested_at is not null then g.last_error when o.kind = 'done' then o.error
                           else coalesce(o.error, g.last_error) end,
         -- Of what has ended, it is the reason, or there was none; an earlier one would be misleading.
         error = case when g.cancel_requested_at is not null then g.error
                      when o.kind in ('done', 'stop', 'cancel') then o.failure::jsonb
                      else coalesce(o.failure::jsonb, g.error) end,
         step_seq = g.step_seq + (g.cancel_requested_at is null and o.kind not in ('retry', 'release', 'rejoin', 'cancel'))::int,
         execution = g.execution + (g.cancel_requested_at is null and o.kind = 'continue' and g.execution < 2147483647)::int,
         attempt = case when g.cancel_requested_at is not null or o.kind in ('done', 'stop', 'cancel', 'release', 'rejoin')
                        then g.attempt
                        when o.kind = 'retry' then least(g.attempt, 2147483646) + 1 else 0 end,
         crash_count = case when o.kind in ('release', 'rejoin') then g.crash_count else 0 end,
         -- A step that may run again must see what it saw, its awaited set and whether it was woken by the clock: one that is
         -- retried or released, and one that ended its instance, which somebody may retry.
         awaits = case when g.cancel_requested_at is null and o.kind = 'await' then o.awaits::text[]
                       when g.cancel_requested_at is not null or o.kind in ('retry', 'release', 'rejoin', 'stop', 'cancel')
                       then g.awaits end,
         presented = case when g.cancel_requested_at is null and o.kind = 'await' then o.presented::bigint[] end,
         timed_out = g.timed_out and (g.cancel_requested_at is not null
                                      or o.kind in ('retry', 'release', 'rejoin', 'stop', 'cancel')),
         -- Like awaits, for a retry; but it is in an index, so a chained commit leaves it alone.
         await_deadline = case when g.cancel_requested_at is null and o.kind = 'await'
                               then coalesce(o.deadline, statement_timestamp() + o.timeout) else g.await_deadline end,
         spawn_round = case when g.cancel_requested_at is null and o.kind = 'schedule_children' then g.step_seq + 1
                            else g.spawn_round end,
         children_pending = case when g.cancel_requested_at is null and o.kind = 'schedule_children' then o.children else 0 end,
         concurrency_key = case when g.cancel_requested_at is null and o.switches_key then o.concurrency_key
                                else g.concurrency_key end,
         concurrency_slot = case when g.cancel_requested_at is null and o.kind = 'continue' then g.concurrency_slot end,
         -- A rate limit belongs to one step: to one that may run again, or to the next one if that has been given one.
         rate_limit = case when g.cancel_requested_at is null and o.kind in ('continue', 'next', 'await', 'schedule_children')
                           then o.rate_limit else g.rate_limit end,
         weight = case when g.cancel_requested_at is null and o.kind in ('continue', 'next', 'await', 'schedule_children')
                       then o.weight else g.weight end,
         lease_token = case when g.cancel_requested_at is null and o.kind = 'continue' then g.lease_token end,
         lease_expires_at = case when g.cancel_requested_at is null and o.kind = 'continue'
                                 then greatest(g.lease_expires_at, statement_timestamp() + :grace::interval) end,
         locked_by = case when g.cancel_requested_at is null and o.kind = 'continue' then g.locked_by end,
         leased_at = case when g.cancel_requested_at is null and o.kind = 'continue' then statement_timestamp() end,
         started_at = null,
         eligible_at = case when g.cancel_requested_at is null and o.kind in ('next', 'retry', 'schedule_children')
                            then statement_timestamp() + coalesce(o.delay, '0') else g.eligible_at end,
         cancel_reason = case when g.cancel_requested_at is null and o.kind = 'cancel' then o.error else g.cancel_reason end,
         finished_at = case when g.cancel_requested_at is not null or o.kind in ('done', 'stop', 'cancel')
                            then statement_timestamp() end,
         updated_at = statement_timestamp()
    from unnest(:ids::bigint[], :lease_tokens::bigint[], :step_seqs::bigint[], :kinds::text[], :steps::text[],
                :payloads::text[], :errors::text[], :failures::text[], :delays::interval[], :awaits::text[], :presented::text[],
                :timeouts::interval[], :deadlines::timestamptz[], :children::int[], :switches_keys::boolean[],
                :concurrency_keys::text[], :consumed::text[], :from_steps::text[], :attempts::int[],
                :leased_ats::timestamptz[], :started_ats::timestamptz[], :finishes_later::boolean[],
                :rate_limits::text[], :weights::int[], :causes::text[])
         as o (id, lease_token, step_seq, kind, step, payload, error, failure, delay, awaits, presented, timeout, deadline, children,
               switches_key, concurrency_key, consumed, from_step, attempt, leased_at, started_at, finishes_later,
               rate_limit, weight, cause)
   where g.id = o.id and g.lease_token = o.lease_token and g.step_seq = o.step_seq
  returning g.id, o.lease_token, g.status, g.step_seq, g.has_signals, g.queue, g.parent_id, g.parent_round,
            g.status in ('done', 'failed', 'cancelled') as has_ended, g.execution, g.leased_at as continued_at, g.lease_expires_at,
            g.cancel_requested_at is not null or o.kind = 'cancel' as is_cancelled, o.kind, o.from_step, o.attempt, o.leased_at,
            case when o.started_at is not null then least(o.started_at, statement_timestamp()) end as started_at,
            o.error, o.finishes_later, g.step, g.cancelled_by, g.cancel_reason, o.cause,
            case when g.cancel_requested_at is null and o.kind in ('continue', 'next', 'schedule_children')
                 then o.consumed::bigint[] end as consumed
), recorded as (
  insert into gen_durable.executions (instance_id, step_seq, execution, attempt, status, outcome, step, lease_owner,
                                      leased_at, lease_expires_at, started_at, finished_at, error)
  select id, step_seq + (is_cancelled or kind in ('retry', 'release', 'rejoin'))::int,
         execution - (kind = 'continue' and not is_cancelled)::int, attempt,
         case when is_cancelled or kind in ('retry', 'release', 'rejoin') then 'ABORTED'
              when finishes_later then 'COMMITTED' else 'DONE' end,
         case when is_cancelled then 'cancelled' when kind = 'continue' then 'next' when kind = 'release' then 'shutdown'
              else kind end,
         from_step, :worker::text, leased_at,
         coalesce(lease_expires_at, (select held.lease_expires_at from gen_durable.gen_durable held where held.id = settled.id)),
         started_at, statement_timestamp(), error
    from settled
   where :record::text = 'all' or :record::text = 'failures' and (is_cancelled or kind in ('retry', 'release', 'rejoin', 'stop'))
{noted}
), ended as (
  select parent_id, parent_round, count(*)::int as children from settled
   where has_ended and parent_id is not null group by parent_id, parent_round
-- Parents are locked before they are counted down, ids descending everywhere; and whether one waits is told by the row that was
-- locked, not by the snapshot of this statement: a retry may have put it back on its barrier while we waited for its child.
), parent as (
  select p.id, ended.children, p.status = 'awaiting_children' and p.spawn_round = ended.parent_round as is_waiting
    from ended join gen_durable.gen_durable p on p.id = ended.parent_id order by p.id desc for no key update of p
), joined as (
  update gen_durable.gen_durable p
     set children_pending = greatest(p.children_pending - parent.children, 0),
         status = case when p.children_pending = parent.children then 'runnable'::gen_durable.durable_status else p.status end,
         eligible_at = case when p.children_pending = parent.children then greatest(p.eligible_at, statement_timestamp())
                            else p.eligible_at end,
         updated_at = statement_timestamp()
    from parent where p.id = parent.id and parent.is_waiting
  returning p.status, p.queue
), consumed as (                                          -- progress consumes exactly the ids that the step received
  select unnest(settled.consumed) as id, settled.step_seq from settled where settled.consumed is not null
), forgotten as (
  delete from gen_durable.signals s using consumed where s.id = consumed.id and s.dedup_key is null
), kept as (                                              -- a dedup_key outlives its signal: a late duplicate is still one
  update gen_durable.signals s set consumed_seq = consumed.step_seq, payload = 'null'
    from consumed where s.id = consumed.id and s.dedup_key is not null
)
select settled.id, settled.lease_token, settled.status::text as status, settled.has_signals, settled.queue, settled.continued_at,
       (select array_agg(distinct joined.queue) from joined where joined.status = 'runnable') as released
  from settled

-- name: check_limits
-- Before the outcomes, if one names a rate limit: refuse what could never start. A limit that does not exist yet may be set later.
select gen_durable.check_limits(:rate_limits::text[], :weights::int[], must_exist => false)

-- name: fix_barriers
-- Set the barriers of these rows to the number of their live children; with none left the barrier is open at once. For children
-- that were not inserted (their unique key is taken), and for rows that go back to their barrier.
-- The rows are locked by an earlier statement of the transaction, and this one has a newer snapshot. A child that ends holds the
-- lock of its parent until it commits. So a child that this statement sees live counts down the barrier later, and a child that
-- it sees ended does not.
update gen_durable.gen_durable g
   set children_pending = barrier.pending,
       status = case when barrier.pending = 0 then 'runnable'::gen_durable.durable_status else g.status end
  from (select parent.id, (select count(*)::int from gen_durable.gen_durable child
                            where child.parent_id = parent.id and child.parent_round = parent.spawn_round
                              and child.status not in ('done', 'failed', 'cancelled')) as pending
          from gen_durable.gen_durable parent
         where parent.id = any (:ids::bigint[]) and parent.status = 'awaiting_children') barrier
 where g.id = barrier.id
returning g.id, g.status::text as status, g.queue

-- name: recheck
-- The other half of parking, in a statement of its own so that it sees what was delivered while the first half waited for
-- the row: an instance whose signal is already there does not sleep. Signals that the parking step had seen do not count.
update gen_durable.gen_durable g
   set status = 'runnable', eligible_at = statement_timestamp()
 where g.id = any (:ids::bigint[]) and g.status = 'awaiting_signal'
   and exists (select from gen_durable.signals s
                where s.target_id = g.id and s.name = any (g.awaits) and s.consumed_seq is null
                  and s.id <> all (coalesce(g.presented, '{}')))
returning g.id, g.queue

-- name: lock_for_effect
-- Between an effect and its outcome: the effect may stand only if this execution still has its lease. No id: stale, or cancelled;
-- then the effect is rolled back. The path is the effect's until this pins it, so it is a call and nothing else.
select in_effect_transaction, isolation, id
  from gen_durable.lock_for_effect(:id::bigint, :lease_token::bigint, :step_seq::bigint)

-- name: still_owns_lease
-- The same question without a lock: after such a rollback, to tell an effect that was in its own way from one that came too late;
-- and before an effect is run again.
select g.id from gen_durable.gen_durable g
 where g.id = :id::bigint and g.lease_token = :lease_token::bigint and g.step_seq = :step_seq::bigint
   and g.cancel_requested_at is null

-- name: finish
-- After its transaction: nothing is left to do for these executions. Those with events are finished when these are out.
update gen_durable.executions e set status = 'DONE'
  from unnest(:ids::bigint[], :step_seqs::bigint[]) as done (instance_id, step_seq)
 where e.instance_id = done.instance_id and e.step_seq = done.step_seq and e.status = 'COMMITTED'

-- name: finish_abandoned
-- The same for executions whose worker died between COMMITTED and DONE (their effect has happened, and is not repeated), or
-- whose last event was removed. A page behind (:after_at, :after_id, :after_seq): while a sink is away, many executions stay
-- COMMITTED, and one round of the reaper must not read them all.
with page as materialized (
  select e.instance_id, e.step_seq, e.finished_at from gen_durable.executions e
   where e.status = 'COMMITTED' and e.finished_at < statement_timestamp() - :lease::interval
     and e.finished_at >= :after_at::timestamptz
     and (e.finished_at, e.instance_id, e.step_seq) > (:after_at::timestamptz, :after_id::bigint, :after_seq::bigint)
   order by e.finished_at, e.instance_id, e.step_seq limit 500
), abandoned as materialized (
  select e.instance_id, e.step_seq from page join gen_durable.executions e using (instance_id, step_seq)
   where e.status = 'COMMITTED'
     and (select true from gen_durable.outbox o
           where o.instance_id = e.instance_id and o.step_seq = e.step_seq and o.published_at is null
             and o.dead_at is null limit 1) is null
     for update of e skip locked
), finished as (
  update gen_durable.executions e set status = 'DONE'
    from abandoned
   where e.instance_id = abandoned.instance_id and e.step_seq = abandoned.step_seq and e.status = 'COMMITTED'
  returning 1
)
select (select count(*) from finished) as finished, (select count(*) from page) as seen, last.finished_at, last.instance_id,
       last.step_seq
  from (select 1) one left join
       (select * from page order by page.finished_at desc, page.instance_id desc, page.step_seq desc limit 1) last on true

-- name: unlocked
-- Which of these rows nobody else holds: asked when a flush gave up waiting for one of them.
select g.id from gen_durable.gen_durable g where g.id = any (:ids::bigint[]) order by g.id desc for no key update skip locked

-- name: commit_status
-- After a COMMIT whose answer was lost: where do these rows stand?
select g.id, g.step_seq, g.lease_token, g.has_signals, g.queue, g.status::text as status, g.leased_at
  from gen_durable.gen_durable g where g.id = any (:ids::bigint[])
