-- Leases: renew them, requeue orphaned executions, expire awaits.

-- name: renew
-- Renew the leases that this worker still holds. One statement for any number of rows; a HOT update, since lease_expires_at is in
-- no index. Locks: ids descending, SKIP LOCKED: a row that a flush has locked is about to end its lease, and waiting for it could
-- deadlock.
with renewed as materialized (
  select g.id, held.lease
    from unnest(:ids::bigint[], :lease_tokens::bigint[], :leases::interval[]) as held (id, lease_token, lease)
    join gen_durable.gen_durable g on g.id = held.id and g.lease_token = held.lease_token
   order by g.id desc for no key update of g skip locked
)
update gen_durable.gen_durable g set lease_expires_at = statement_timestamp() + renewed.lease
  from renewed where g.id = renewed.id
returning g.id, g.lease_token

-- name: mark_started
-- Record when these executions started their step: LEASED becomes IN_PROGRESS. Only for long steps; a HOT update. Guard: lease
-- token and step_seq. Locks: ids descending, SKIP LOCKED.
with starting as materialized (
  select g.id, held.at from unnest(:ids::bigint[], :lease_tokens::bigint[], :step_seqs::bigint[], :moments::timestamptz[])
         as held (id, lease_token, step_seq, at)
    join gen_durable.gen_durable g
      on g.id = held.id and g.lease_token = held.lease_token and g.step_seq = held.step_seq
   order by g.id desc for no key update of g skip locked
), started as (
  update gen_durable.gen_durable g set started_at = least(starting.at, statement_timestamp())
    from starting where g.id = starting.id
  returning g.id, g.lease_token, g.step_seq, g.step, g.execution, g.attempt, g.locked_by, g.started_at
), audited as (
  insert into gen_durable.audit_events (instance_id, event, data)
  select id, 'started', jsonb_build_object('step', step, 'step_seq', step_seq + 1, 'execution', execution, 'attempt', attempt,
           'worker', locked_by, 'started_at', started_at)
    from started
   where (select s.audit from gen_durable.settings s) = 'all'
)
select id, lease_token, step_seq from started

-- name: watch
-- Of these leases, those that are lost or whose instance has a requested cancel. For long steps; a plain read.
select held.id, held.lease_token, g.id is null as is_lost
  from unnest(:ids::bigint[], :lease_tokens::bigint[]) as held (id, lease_token)
  left join gen_durable.gen_durable g on g.id = held.id and g.lease_token = held.lease_token
 where g.id is null or g.cancel_requested_at is not null

-- name: still_held
-- Of the leases that `renew` did not return, those that are still held: their rows were locked. A plain read.
select g.id, g.lease_token from unnest(:ids::bigint[], :lease_tokens::bigint[]) as held (id, lease_token)
  join gen_durable.gen_durable g on g.id = held.id and g.lease_token = held.lease_token

-- name: suspect
-- Executions whose lease has expired, and whose row is not locked: `renew` skips locked rows too, so their leases may expire
-- while the worker lives. A suspect that is not renewed within one heartbeat is reaped. Returned with the rows that a reap may
-- have to wait for: the parent, and the next row of the concurrency key. Bounded, ids ascending after :after, SKIP LOCKED.
select g.id, g.lease_expires_at, g.parent_id, g.concurrency_key from gen_durable.gen_durable g
 where g.status = 'executing' and g.id > :after::bigint and g.lease_expires_at < statement_timestamp()
 order by g.id limit 500
   for no key update skip locked

-- part: requeue_orphaned
-- Requeue the executions in `orphaned`, whose process died or whose lease expired. attempt and crash_count grow; the next
-- attempt waits 1, 2, 4 ... 300 s. After :crash_limit crashes in one step the step has failed as poison: the instance continues
-- at the step's on_failure as registered in `machines`, or fails.
--   judged   the orphaned rows with their verdict: cancelled, requeued, moved (to next_step), failed. It reads `orphaned`, which
--            has the rows as they are under the lock.
-- An on_failure step comes before undo: the instance does not end.
-- A row that is moved makes a transition, like a worker's Next, but consumes no signal: it is unknown what the step has received.
-- Of a machine that keeps its history, the record has the state, as in `recorded` of commit.sql. The condition is that of the
-- function keeps_history, which would be called for each row.
-- Later statements of the transaction: dead letters of the failed, sweep their inboxes, ungate the freed keys.
-- Instances that go to an on_cancel or undo step instead of ending are moved by `unwind`.
-- The alert event of poison has the negative number of the execution as `n`: a retried instance may commit the same transition
-- with events of its own, or fail as poison again.
judged as materialized (
  select orphaned.*, m.retention, m.on_failure ->> orphaned.step as next_step,
         exists (select from gen_durable.machines newer
                  where newer.fsm = orphaned.fsm and newer.fsm_version >= orphaned.fsm_version and newer.keeps_history) as keeps_history,
         case when orphaned.is_cancelled then 'cancelled' when orphaned.crash_count < :crash_limit::int - 1 then 'requeued'
              when m.on_failure ->> orphaned.step is not null then 'moved' else 'failed' end as verdict,
         text.message, jsonb_build_object('type', 'Poison', 'message', text.message, 'traceback', '[]'::jsonb,
                                          'attempt', orphaned.attempt, 'step', orphaned.step) as poison
    from orphaned left join gen_durable.machines m on m.fsm = orphaned.fsm and m.fsm_version = orphaned.fsm_version
   cross join lateral (
     select format('the process died %s time%s in step %s', least(orphaned.crash_count, 2147483646) + 1,
                   case when orphaned.crash_count > 0 then 's' else '' end, orphaned.step) as message) text
), reaped as (
  update gen_durable.gen_durable g
     set status = case when judged.verdict in ('cancelled', 'failed') then judged.verdict::gen_durable.durable_status
                       else 'runnable' end,
         step = case when judged.verdict = 'moved' then judged.next_step else g.step end,
         rest_step = g.step,
         last_error = case when judged.verdict in ('moved', 'failed') then gen_durable.undo_error(
                                g.compensation, g.step, 'poison: ' || judged.message) else g.last_error end,
         error = case when judged.verdict in ('moved', 'failed') then judged.poison else g.error end,
         failure = case when judged.verdict = 'moved' then judged.poison else g.failure end,
         step_seq = g.step_seq + (judged.verdict = 'moved')::int,
         attempt = case judged.verdict when 'requeued' then least(g.attempt, 2147483646) + 1 when 'moved' then 0 else g.attempt end,
         crash_count = case when judged.verdict = 'moved' then 0 else least(g.crash_count, 2147483646) + 1 end,
         awaits = case when judged.verdict <> 'moved' then g.awaits end,
         timed_out = g.timed_out and judged.verdict <> 'moved',
         checkpoint = case when judged.verdict <> 'moved' then g.checkpoint end,
         progress = case when judged.verdict <> 'moved' then g.progress end,
         rate_limit = case when judged.verdict <> 'moved' then g.rate_limit end,
         weight = case when judged.verdict <> 'moved' then g.weight end,
         lease_token = null, lease_expires_at = null, locked_by = null, concurrency_slot = null,
         leased_at = null, started_at = null,
         eligible_at = statement_timestamp() + case when judged.verdict = 'moved' then interval '0'
                                                    else make_interval(secs => least(300, power(2, least(g.crash_count, 10)))) end,
         finished_at = case when judged.verdict in ('cancelled', 'failed') then statement_timestamp() end,
         expires_at = statement_timestamp()
                      + make_interval(secs => (judged.retention ->> judged.verdict)::double precision),
         updated_at = statement_timestamp()
    from judged
   where g.id = judged.id and (judged.verdict = 'moved' or not gen_durable.crash_redirects(
           g.undo_steps, g.compensation, g.deleted_at is not null, judged.is_cancelled, judged.verdict = 'failed'))
  returning g.id, g.fsm, judged.step, g.status, g.queue, g.concurrency_key, g.parent_id, g.parent_round, g.has_signals,
            g.status in ('failed', 'cancelled') as has_ended, judged.verdict, judged.next_step, judged.step_seq, judged.execution,
            judged.attempt, judged.locked_by, judged.leased_at, judged.lease_expires_at, judged.started_at, g.last_error,
            g.cancelled_by, g.cancel_reason, g.fsm_version, g.correlation_key, judged.keeps_history,
            case when judged.keeps_history and judged.verdict = 'moved' then g.state end as state,
            case when judged.keeps_history and judged.verdict <> 'requeued' and judged.step_seq = 0 then g.state end as state_before
), recorded as (
  insert into gen_durable.executions (instance_id, step_seq, execution, attempt, status, outcome, step, to_step, cause, lease_owner,
                                      leased_at, lease_expires_at, started_at, finished_at, state, state_version,
                                      state_before, state_before_version)
  select id, step_seq + 1, execution, attempt, case when verdict = 'moved' then 'DONE' else 'ABORTED' end,
         case verdict when 'cancelled' then 'cancelled' when 'requeued' then 'lease' else 'poison' end, step,
         case when verdict = 'moved' then next_step end,
         case verdict when 'requeued' then 'crash' when 'moved' then 'poison' when 'failed' then 'poison' end,
         locked_by, leased_at, lease_expires_at, started_at, statement_timestamp(), state,
         case when state is not null then fsm_version end,
         state_before, case when state_before is not null then fsm_version end
    from reaped where :record::text <> 'off' or keeps_history
), audited as (
  insert into gen_durable.audit_events (instance_id, event, actor, reason, data)
  select id, case status when 'cancelled' then 'cancelled' when 'failed' then 'failed' else 'crashed' end,
         case when status = 'cancelled' then cancelled_by end, case when status = 'cancelled' then cancel_reason end,
         jsonb_strip_nulls(jsonb_build_object(
           'step', step, 'step_seq', step_seq + 1, 'execution', execution, 'attempt', attempt, 'worker', locked_by,
           'to', case when verdict = 'moved' then next_step end,
           'cause', case when verdict in ('moved', 'failed') then 'poison' end,
           'error', case when verdict in ('moved', 'failed') then last_error end))
    from reaped
   where (select s.audit from gen_durable.settings s) >= 'failures'
), alerted as (
  insert into gen_durable.outbox (instance_id, step_seq, n, sink, type, subject, data)
  -- Concatenated: in one piece, "gen_durable." would be replaced by the name of the schema.
  select id, step_seq + 1, -execution, :alerts::text, 'gen_durable' || '.instance.failed', coalesce(correlation_key, id::text),
         jsonb_build_object('id', id, 'machine', fsm, 'version', fsm_version, 'step', step, 'cause', 'poison',
                            'error', last_error, 'attempts', least(attempt, 2147483646) + 1)
    from reaped where :alerts::text is not null and status = 'failed'
), released as materialized (
  select array_agg(distinct queue) as queues
    from (select array_agg(parent_id) as parents, array_agg(parent_round) as rounds from reaped
           where has_ended and parent_id is not null having count(*) > 0) ended
   cross join lateral gen_durable.join_parents(ended.parents, ended.rounds) as queue
), unwound as materialized (
  select g.id, g.fsm, g.step, unwound.redirect, unwound.status, g.queue, g.concurrency_key, g.attempt, g.fsm_version, g.execution
    from judged join gen_durable.gen_durable g on g.id = judged.id
   cross join lateral gen_durable.unwind(
           g.id, case when judged.crash_count >= :crash_limit::int - 1 then 'failed'::gen_durable.durable_status end, false,
           case when not judged.is_cancelled then 'poison: ' || judged.message end, judged.poison, 'poison', null, null, null, null,
           :record::text, false) as unwound
   where judged.verdict <> 'moved'
     and gen_durable.crash_redirects(
           g.undo_steps, g.compensation, g.deleted_at is not null, judged.is_cancelled, judged.verdict = 'failed')
)
select reaped.id, reaped.fsm, reaped.step, reaped.status::text as status, reaped.verdict, reaped.queue, reaped.concurrency_key,
       reaped.has_ended and reaped.has_signals as has_inbox, least(reaped.attempt, 2147483646) + 1 as attempts,
       (select released.queues from released) as released, null::text as redirect, reaped.fsm_version, reaped.execution, reaped.next_step
  from reaped
 union all
select unwound.id, unwound.fsm, unwound.step, unwound.status, 'unwound', unwound.queue, unwound.concurrency_key, false,
       least(unwound.attempt, 2147483646) + 1, null, unwound.redirect, unwound.fsm_version, unwound.execution, null
  from unwound

-- part: orphaned_columns
g.id, g.fsm, g.fsm_version, g.step_seq, g.execution, g.attempt, g.step, g.locked_by, g.leased_at, g.lease_expires_at, g.started_at,
g.crash_count, g.cancel_requested_at is not null as is_cancelled

-- name: reap
-- Requeue executions whose lease has expired. Nothing is reaped within one lease after the start of the server: after an outage,
-- live workers renew first. With :ids, only these, and only if their lease still expires at :ends: a lease that was renewed or
-- taken since then is not the suspected one, even if this statement reaches a server that was frozen until that one expired too.
-- Locks: at most 500 rows, SKIP LOCKED; then their parents, ids descending.
with orphaned as materialized (
  select {orphaned_columns}
    from gen_durable.gen_durable g
   where g.status = 'executing' and g.lease_expires_at < statement_timestamp()
     and pg_postmaster_start_time() < statement_timestamp() - :lease::interval
     and (:ids::bigint[] is null
          or (g.id, g.lease_expires_at) in (select * from unnest(:ids::bigint[], :ends::timestamptz[])))
   order by g.id limit 500
     for no key update skip locked
), {requeue_orphaned}

-- name: reap_worker
-- Requeue the executions of a worker whose process is known to be dead, before their leases expire, and deregister the worker. A
-- locked row may be in the last commit of that worker; the next round takes it. Locks as in `reap`.
with deregistered as (
  delete from gen_durable.workers w where w.name = :worker::text
), orphaned as materialized (
  select {orphaned_columns}
    from gen_durable.gen_durable g
   where g.status = 'executing' and g.locked_by = :worker::text
   order by g.id limit 500
     for no key update skip locked
), {requeue_orphaned}

-- name: reap_execution
-- Requeue one execution whose process died while its worker lives. Guard: id, lease_token, step_seq.
with orphaned as materialized (
  select {orphaned_columns}
    from gen_durable.gen_durable g
   where g.id = :id::bigint and g.lease_token = :lease_token::bigint and g.step_seq = :step_seq::bigint
     and g.status = 'executing'
     for no key update
), {requeue_orphaned}

-- name: deleted_live
-- Whether a live instance has deleted_at and no requested cancel. One probe of an index that is almost empty.
select g.id from gen_durable.gen_durable g
 where g.deleted_at is not null and g.finished_at is null and g.cancel_requested_at is null limit 1

-- name: end_deleted
-- Cancel live instances with deleted_at that neither soft_delete nor the trigger on that column has cancelled: rows inserted or
-- copied with deleted_at, or updated while triggers were disabled. Returns the queues that have work now.
select queue from gen_durable.end_deleted(:most::int, null) as queue

-- name: expire
-- Wake awaits whose deadline has passed: the step runs with the signals that arrived, possibly none. Bounded, SKIP LOCKED.
with due as materialized (
  select g.id from gen_durable.gen_durable g
   where g.status = 'awaiting_signal' and g.await_deadline <= statement_timestamp()
   order by g.await_deadline limit 500
     for no key update skip locked
), expired as (
  update gen_durable.gen_durable g
     set status = 'runnable', timed_out = true, eligible_at = statement_timestamp(), updated_at = statement_timestamp()
    from due where g.id = due.id and g.status = 'awaiting_signal'
  returning g.id, g.fsm, g.step, g.queue, g.await_deadline
), audited as (
  insert into gen_durable.audit_events (instance_id, event, data)
  select id, 'expired', jsonb_build_object('step', step, 'deadline', await_deadline) from expired
   where (select s.audit from gen_durable.settings s) = 'all'
)
select id, fsm, step, queue from expired
