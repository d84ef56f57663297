-- Group commit: the outcomes of many executions in one transaction.
--
-- Guard of every write: (id, lease_token, step_seq). The token alone is not enough: a chained step keeps its lease, so an outcome
-- that is sent twice (the answer to a COMMIT was lost) would be applied twice. An outcome that is not returned was stale. All other
-- CTEs read only the rows that the guarded update returned, so nothing is written for a stale outcome.
-- A requested cancel overrides every outcome that is not committed yet.
-- The guarded update leaves out instances that go to an on_cancel or undo step instead of ending (redirects): `unwind` moves them.
-- The statements return one row per distinct result, with the numbers of its outcomes: a row per outcome costs more to read.

-- name: commit_plain
-- Commit outcomes that write only their own row: the hot path. One statement, which is also the transaction.
-- Locks: the rows themselves, in the given order.
with {committed}, {recorded}, {audited}, {results}
select results.*, null::text[] as released from results

-- name: commit_with_events
-- Commit like `commit_plain`, and insert the events of these outcomes in the outbox.
with {committed}, {recorded}, {audited}, {emitted}, {results}
select results.*, null::text[] as released from results

-- name: commit
-- Commit any mix of outcomes, and with them: consumed signals, the barrier of the parent, execution records, audit events.
-- Locks: outcome rows, in the given order; then parents, ids descending (join_parents); then signals.
-- Later statements of the same transaction run only if a returned row needs them: children, fix_barriers, recheck, sweep, ungate.
with {committed}, {recorded}, {audited}, {released}, {consumed}, {deleted_signals}, {deduplicating_signals},
     {results}
select results.*, (select released.queues from released) as released from results

-- part: committed
-- The guarded update. `_resolved` in commit.py has resolved each outcome to the columns that it sets. A row whose cancel is requested
-- becomes cancelled and keeps the other columns.
-- Many outcomes of a batch differ only in their ids and payloads. The other values are sent once per distinct combination, a
-- profile; :profiles has the number of the profile of each outcome. Numbers and payloads are sent as text, because drivers encode
-- arrays slowly. JSON text never contains the separator. OFFSET 0 keeps the planner from evaluating the subscripts once per use.
-- `any (array[o.id])` forces a nested loop in the order of the outcomes. With `g.id = o.id`, a plan from when the table was small
-- is a merge join: it locks rows in another order, and reads the whole table when that has grown.
committed as (
  update gen_durable.gen_durable g
     set status = case when g.cancel_requested_at is null then o.status else 'cancelled' end,
         step = case when g.cancel_requested_at is null and o.step is not null then o.step else g.step end,
         -- Unchanged by a chained commit, which would not be HOT otherwise.
         rest_step = case when g.cancel_requested_at is not null then g.step
                          when o.status in ('runnable', 'executing') then g.rest_step else coalesce(o.step, g.step) end,
         -- Set with the state only: a version that does not fit the state would let other code read it.
         fsm_version = case when g.cancel_requested_at is null and o.version is not null then o.version else g.fsm_version end,
         state = case when g.cancel_requested_at is not null then g.state
                      else coalesce(case when o.status = 'done' then o.final_state else o.payload end::jsonb, g.state) end,
         result = case when g.cancel_requested_at is null and o.status = 'done' then o.payload::jsonb end,
         -- done clears the error; earlier failures stay in the execution records.
         last_error = case when g.cancel_requested_at is not null then g.last_error when o.status = 'done' then o.error
                           else coalesce(o.error, g.last_error) end,
         -- An ended instance has the error that ended it, or none.
         error = case when g.cancel_requested_at is not null then g.error when o.status in ('done', 'failed', 'cancelled')
                      then o.failure::jsonb else coalesce(o.failure::jsonb, g.error) end,
         failure = case when g.cancel_requested_at is not null or o.step is null then g.failure else o.failure::jsonb end,
         step_seq = g.step_seq + case when g.cancel_requested_at is null then o.advance else 0 end,
         -- A return that has no record (see `recorded`) gives its number back, so that the numbers have no gaps.
         execution = g.execution + (g.cancel_requested_at is null and o.status = 'executing' and g.execution < 2147483647)::int
                     - (o.name = 'unknown_step' and g.cancel_requested_at is null
                        and gen_durable.is_known_return(g.id, o.step_seq + 1))::int,
         attempt = case when g.cancel_requested_at is null and o.next_attempt is not null then o.next_attempt else g.attempt end,
         crash_count = case when o.keeps_crashes then g.crash_count else 0 end,
         -- A step that may run again must see the same awaited names and timed_out.
         awaits = case when g.cancel_requested_at is not null or o.repeats then g.awaits else o.awaits::text[] end,
         presented = case when g.cancel_requested_at is null then o.presented::bigint[] end,
         timed_out = g.timed_out and (g.cancel_requested_at is not null or o.repeats),
         checkpoint = case when g.cancel_requested_at is not null or o.repeats then g.checkpoint end,
         progress = case when g.cancel_requested_at is not null or o.repeats then g.progress end,
         -- Kept for a retry, like awaits. It is in an index: if a chained commit changed it, the update would not be HOT.
         await_deadline = case when g.cancel_requested_at is null and o.status = 'awaiting_signal'
                               then coalesce(o.deadline, statement_timestamp() + o.timeout) else g.await_deadline end,
         spawn_round = case when g.cancel_requested_at is null and o.children is not null then g.step_seq + 1
                            else g.spawn_round end,
         children_pending = case when g.cancel_requested_at is null then coalesce(o.children, 0) else 0 end,
         concurrency_key = case when g.cancel_requested_at is null and o.switches_key then o.concurrency_key
                                else g.concurrency_key end,
         concurrency_slot = case when g.cancel_requested_at is null and o.status = 'executing' then g.concurrency_slot end,
         -- A rate limit applies to one step. It is kept while that step may run again; the next step has its own or none.
         rate_limit = case when g.cancel_requested_at is null and o.step is not null then o.rate_limit else g.rate_limit end,
         weight = case when g.cancel_requested_at is null and o.step is not null then o.weight else g.weight end,
         lease_token = case when g.cancel_requested_at is null and o.status = 'executing' then g.lease_token end,
         -- Not cleared: the execution record needs the value, and RETURNING has only new values before PostgreSQL 18.
         lease_expires_at = case when g.cancel_requested_at is null and o.status = 'executing'
                                 then greatest(g.lease_expires_at, statement_timestamp() + :grace::interval)
                                 else g.lease_expires_at end,
         locked_by = case when g.cancel_requested_at is null and o.status = 'executing' then g.locked_by end,
         leased_at = case when g.cancel_requested_at is null and o.status = 'executing' then statement_timestamp() end,
         started_at = null,
         eligible_at = case when g.cancel_requested_at is null and o.delay is not null
                            then statement_timestamp() + o.delay else g.eligible_at end,
         cancel_reason = case when g.cancel_requested_at is null and o.status = 'cancelled' then coalesce(o.error, g.cancel_reason)
                              else g.cancel_reason end,
         -- Nothing is added while undo steps run.
         undo_steps = case when o.undo is not null and g.cancel_requested_at is null and g.compensation is null
                           then coalesce(g.undo_steps, '[]') || o.undo::jsonb
                           when o.status = 'done' and g.cancel_requested_at is null then null else g.undo_steps end,
         finished_at = case when g.cancel_requested_at is not null or o.status in ('done', 'failed', 'cancelled')
                            then statement_timestamp() end,
         expires_at = case when g.cancel_requested_at is not null or o.expires
                           then statement_timestamp() + gen_durable.retention_of(
                                  g.fsm, coalesce(o.version, g.fsm_version),
                                  case when g.cancel_requested_at is null then o.status else 'cancelled' end) end,
         updated_at = statement_timestamp()
    from (select outcome.*, ((select :statuses::text[]::gen_durable.durable_status[]))[profile] as status,
                 (:names::text[])[profile] as name, (:advances::int[])[profile] as advance,
                 (:repeats::boolean[])[profile] as repeats, (:keeps_crashes::boolean[])[profile] as keeps_crashes,
                 (:next_attempts::int[])[profile] as next_attempt, (:steps::text[])[profile] as step,
                 (:errors::text[])[profile] as error, (:delays::interval[])[profile] as delay,
                 (:from_steps::text[])[profile] as from_step, (:attempts::int[])[profile] as attempt,
                 (:leased_ats::timestamptz[])[profile] as leased_at, (:finishes_later::boolean[])[profile] as finishes_later,
                 (:causes::text[])[profile] as cause, (:awaits::text[])[profile] as awaits,
                 (:timeouts::interval[])[profile] as timeout, (:children::int[])[profile] as children,
                 (:switches_keys::boolean[])[profile] as switches_key, (:rate_limits::text[])[profile] as rate_limit,
                 (:weights::int[])[profile] as weight, (:versions::int[])[profile] as version,
                 (:undos::text[])[profile] as undo, (:expires::boolean[])[profile] as expires,
                 (:versions_before::int[])[profile] as version_before
            from unnest(:ids::text::bigint[], :lease_tokens::text::bigint[], :step_seqs::text::bigint[], :profiles::text::int[],
                        string_to_array(:payloads::text, e'\x1e', ''), :started_ats::text::double precision[], :final_states::text[],
                        :failures::text[],
                        :presented::text[], :deadlines::timestamptz[], :concurrency_keys::text[], :consumed::text[],
                        :states_before::text[], :signals::text[])
                 with ordinality
                 as outcome (id, lease_token, step_seq, profile, payload, started_at, final_state, failure, presented, deadline,
                             concurrency_key, consumed, state_before, signals, number)
          offset 0) o
   where g.id = any (array[o.id]) and g.lease_token = o.lease_token and g.step_seq = o.step_seq
     and not gen_durable.redirects(
           g.undo_steps, g.compensation, g.deleted_at is not null, g.cancel_requested_at is not null, o.status)
  returning o.number, g.id, g.status, g.has_signals, g.queue, g.parent_id, g.parent_round, g.step_seq,
            o.step_seq + 1 as next_seq, g.execution - (g.status = 'executing')::int as execution, o.attempt, o.name, o.from_step,
            g.step, o.error, o.cause, o.finishes_later, o.leased_at, g.lease_expires_at,
            -- The worker converts started_at from its own clock, so it may be off by a round trip.
            case when o.started_at is not null
                 then greatest(least(to_timestamp(o.started_at), statement_timestamp()), o.leased_at) end as started_at,
            g.cancelled_by, g.cancel_reason, case when g.status <> 'cancelled' then o.consumed::bigint[] end as consumed,
            o.version_before, case when o.version_before is not null then g.state end as state, g.fsm_version, o.state_before,
            o.signals, case when g.status = 'awaiting_signal' then g.awaits end as awaits,
            case when g.status = 'awaiting_signal' then g.await_deadline end as await_deadline
)

-- part: recorded
-- The execution records. An execution that did not advance step_seq is ABORTED. Of a machine that keeps its history, every
-- execution is recorded, and a transition with the state that it wrote and the version of that state. The first one has the state
-- before as well, also if it is retried: a retry may change the state. `version_before` is null for other machines.
-- Of executions that are returned because no worker has the step, only the first one at a transition is recorded.
-- The last undo step ends the instance with an error that is not its own: the record of the step that failed has it.
recorded as (
  insert into gen_durable.executions (instance_id, step_seq, execution, attempt, status, outcome, step, to_step, cause, lease_owner,
                                      leased_at, lease_expires_at, started_at, finished_at, error, state, state_version,
                                      state_before, state_before_version, signals, awaits, await_deadline)
  select id, next_seq, execution, attempt,
         case when step_seq < next_seq then 'ABORTED' when finishes_later then 'COMMITTED' else 'DONE' end,
         case when status = 'cancelled' and step_seq < next_seq then 'cancelled' else name end, from_step,
         case when step_seq = next_seq and status not in ('done', 'failed', 'cancelled') then step end,
         case when status <> 'cancelled' and name <> 'undone' then cause end, :worker::text, leased_at, lease_expires_at, started_at,
         statement_timestamp(), case when name <> 'undone' then error end, case when step_seq = next_seq then state end,
         case when step_seq = next_seq and state is not null then fsm_version end, state_before::jsonb,
         case when state_before is not null then version_before end,
         case when step_seq = next_seq or name = 'cancelled' then signals::jsonb end, awaits, await_deadline
    from committed
   where (:record::text = 'all' or :record::text = 'failures' and (step_seq < next_seq or status = 'failed')
          or version_before is not null)
     and not (name = 'unknown_step' and status <> 'cancelled' and gen_durable.is_known_return(id, next_seq))
)

-- part: audited
-- One audit event per committed outcome. Failures and cancels are written at level `failures`; so is a retry with an error, but
-- not a retry that the step returned without one.
audited as (
  insert into gen_durable.audit_events (instance_id, event, actor, reason, data)
  select id, case when status = 'cancelled' then 'cancelled' when status = 'failed' then 'failed' when name = 'retry' then 'retried'
                  when step_seq < next_seq then 'released' else 'succeeded' end,
         case when status = 'cancelled' then cancelled_by end, case when status = 'cancelled' then cancel_reason end,
         jsonb_strip_nulls(jsonb_build_object(
           'step', from_step, 'step_seq', next_seq, 'execution', execution, 'attempt', attempt, 'worker', :worker::text,
           'outcome', case when step_seq = next_seq and status <> 'failed' then name end,
           'to', case when step_seq = next_seq and status not in ('done', 'failed') then step end,
           'cause', case when status = 'failed' then cause end, 'error', case when status <> 'cancelled' then error end,
           'started_at', started_at))
    from committed
   where (select s.audit from gen_durable.settings s)
         >= case when status in ('cancelled', 'failed') or name = 'retry' and error is not null
                 then 'failures'::gen_durable.audit_level else 'all' end
)

-- part: emitted
-- The events of outcomes that are not cancelled.
emitted as (
  insert into gen_durable.outbox (instance_id, step_seq, n, sink, type, subject, data)
  select committed.id, committed.step_seq, event.n, event.sink, event.type, event.subject, event.data::jsonb
    from unnest(:event_numbers::bigint[], :event_ns::int[], :event_sinks::text[], :event_types::text[], :event_subjects::text[],
                :event_datas::text[]) with ordinality
         as event (number, n, sink, type, subject, data, ord)
    join committed using (number)
   where committed.status <> 'cancelled'
   order by event.ord
)

-- part: released
-- Count down the barriers of parents; the queues of those that are released.
released as materialized (
  select array_agg(distinct queue) as queues
    from (select array_agg(parent_id) as parents, array_agg(parent_round) as rounds from committed
           where status in ('done', 'failed', 'cancelled') and parent_id is not null having count(*) > 0) ended
   cross join lateral gen_durable.join_parents(ended.parents, ended.rounds) as queue
)

-- part: consumed
-- Only the signals that the step has received.
consumed as (
  select unnest(committed.consumed) as id, committed.step_seq from committed where committed.consumed is not null
)

-- part: deleted_signals
deleted_signals as (
  delete from gen_durable.signals s using consumed where s.id = consumed.id and s.dedup_key is null
)

-- part: deduplicating_signals
-- Kept without payload: a late duplicate is still recognized.
deduplicating_signals as (
  update gen_durable.signals s set consumed_seq = consumed.step_seq, payload = 'null'
    from consumed where s.id = consumed.id and s.dedup_key is not null
)

-- part: results
results as (
  select status::text as status, has_signals, case when status = 'runnable' then queue end as queue,
         statement_timestamp() as committed_at, array_agg(number)::text as numbers
    from committed group by 1, 2, 3
)

-- name: check_limits
-- Before outcomes that name a rate limit: raise if a weight exceeds the burst. The limit may be created later.
select gen_durable.check_limits(:rate_limits::text[], :weights::int[], must_exist => false)

-- name: return_tokens
-- Before the guarded update of executions whose step does not start: give back the tokens of their rate limits. Guard: lease token
-- and step_seq. Locks: buckets, ordered by key.
select from gen_durable.return_tokens(:ids::text::bigint[], :lease_tokens::text::bigint[], :step_seqs::text::bigint[])

-- name: fix_barriers
-- Set the barriers of these rows to the number of their live children; without live children, release the row.
select id, status, queue from gen_durable.fix_barriers(:ids::bigint[])

-- name: unwind
-- Redirect one outcome that the guarded update has left out: its instance goes to an on_cancel or undo step instead of ending, or
-- ends after its last undo step. If a delete or a cancel without undo came between the two statements, the action is `end` as well.
-- Guard: lease token and step_seq. Locks: the row; signals.
select coalesce(unwound.action, 'end') as action, unwound.redirect, unwound.status, unwound.queue, unwound.has_signals, unwound.final::text as final,
       statement_timestamp() as committed_at
  from (select g.id from gen_durable.gen_durable g
         where g.id = :id::bigint and g.lease_token = :lease_token::bigint and g.step_seq = :step_seq::bigint
           for no key update) held
  left join lateral gen_durable.unwind(
         held.id, :ends_as::text::gen_durable.durable_status, :skips_undo::boolean, :reason::text, :failure::text::jsonb,
         :cause::text, :state::text, :version::int, :consumed::bigint[], :worker::text, :record::text,
         :finishes_later::boolean) as unwound on true

-- name: recheck
-- After parking: make an instance runnable again if an awaited signal is already in its inbox. A separate statement, so that it
-- sees signals that were delivered while `commit` waited for the row. Signals that the parking step had seen do not count.
update gen_durable.gen_durable g
   set status = 'runnable', eligible_at = statement_timestamp()
 where g.id = any (:ids::bigint[]) and g.status = 'awaiting_signal'
   and exists (select from gen_durable.signals s
                where s.target_id = g.id and s.name = any (g.awaits) and s.consumed_seq is null
                  and s.id <> all (coalesce(g.presented, '{}')))
returning g.id, g.queue

-- name: lock_for_effect
-- Between an effect and its outcome: lock the row if this execution still owns its lease and no cancel is requested. No id: the
-- effect is rolled back. A bare function call, because the search_path is the effect's until the function pins it.
select in_effect_transaction, isolation, id
  from gen_durable.lock_for_effect(:id::bigint, :lease_token::bigint, :step_seq::bigint)

-- name: still_owns_lease
-- Whether this execution still owns its lease and no cancel is requested; without a lock. After such a rollback it tells an
-- effect that blocked itself from one that came too late. Also before an effect is run again.
select g.id from gen_durable.gen_durable g
 where g.id = :id::bigint and g.lease_token = :lease_token::bigint and g.step_seq = :step_seq::bigint
   and g.cancel_requested_at is null

-- name: finish
-- Mark executions DONE after their transaction. Executions with events become DONE when their events are published.
update gen_durable.executions e set status = 'DONE'
  from unnest(:ids::bigint[], :step_seqs::bigint[]) as done (instance_id, step_seq)
 where e.instance_id = done.instance_id and e.step_seq = done.step_seq and e.status = 'COMMITTED'

-- name: finish_abandoned
-- Mark executions DONE whose worker died between COMMITTED and DONE (their effect is committed and is not repeated), or whose
-- last event was removed. One page per call, after (:after_at, :after_id, :after_seq): while a sink is unavailable, many
-- executions stay COMMITTED, and one round of the reaper must not read all of them. SKIP LOCKED.
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
-- Which of these rows no other transaction has locked. For a flush that timed out waiting for one of them. SKIP LOCKED, ids
-- descending.
select g.id from gen_durable.gen_durable g where g.id = any (:ids::bigint[]) order by g.id desc for no key update skip locked

-- name: commit_status
-- The rows as they are now, after the answer to a COMMIT was lost: was the outcome committed?
select g.id, g.step_seq, g.lease_token, g.has_signals, g.queue, g.status::text as status, g.leased_at
  from gen_durable.gen_durable g where g.id = any (:ids::bigint[])
