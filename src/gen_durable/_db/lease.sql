-- Leases: keeping them, taking them back from the dead, and the clock of parked instances.

-- name: renew
-- Push out the leases that this worker still holds. One statement for any number of rows, HOT (lease_expires_at is in no
-- index). SKIP LOCKED: a row that a flush holds is about to end its lease anyway, and waiting for it would deadlock with it.
with held as materialized (
  select g.id, mine.lease
    from unnest(:ids::bigint[], :lease_tokens::bigint[], :leases::interval[]) as mine (id, lease_token, lease)
    join gen_durable.gen_durable g on g.id = mine.id and g.lease_token = mine.lease_token
   order by g.id desc for no key update of g skip locked
)
update gen_durable.gen_durable g set lease_expires_at = statement_timestamp() + held.lease
  from held where g.id = held.id
returning g.id, g.lease_token

-- name: mark_started
-- Note when these executions began their step: LEASED becomes IN_PROGRESS. HOT, and only for steps that take long.
with begun as materialized (
  select g.id, mine.at from unnest(:ids::bigint[], :lease_tokens::bigint[], :step_seqs::bigint[], :moments::timestamptz[])
         as mine (id, lease_token, step_seq, at)
    join gen_durable.gen_durable g
      on g.id = mine.id and g.lease_token = mine.lease_token and g.step_seq = mine.step_seq
   order by g.id desc for no key update of g skip locked
), started as (
  update gen_durable.gen_durable g set started_at = least(begun.at, statement_timestamp())
    from begun where g.id = begun.id
  returning g.id, g.lease_token, g.step_seq, g.step, g.execution, g.attempt, g.locked_by, g.started_at
), noted as (
  insert into gen_durable.audit_events (instance_id, event, data)
  select id, 'started', jsonb_build_object('step', step, 'step_seq', step_seq + 1, 'execution', execution, 'attempt', attempt,
           'worker', locked_by, 'started_at', started_at)
    from started
   where (select s.audit from gen_durable.settings s) = 'all'
)
select id, lease_token, step_seq from started

-- name: watch
-- What has happened to these leases behind the back of their steps: taken away, or asked to end. For steps that take long.
select mine.id, mine.lease_token, g.id is null as is_lost
  from unnest(:ids::bigint[], :lease_tokens::bigint[]) as mine (id, lease_token)
  left join gen_durable.gen_durable g on g.id = mine.id and g.lease_token = mine.lease_token
 where g.id is null or g.cancel_requested_at is not null

-- name: still_held
-- The ids that renew did not return: skipped (still ours) or lost? A plain read decides.
select g.id, g.lease_token from unnest(:ids::bigint[], :lease_tokens::bigint[]) as mine (id, lease_token)
  join gen_durable.gen_durable g on g.id = mine.id and g.lease_token = mine.lease_token

-- name: suspect
-- Executions whose lease has run out though its holder could have renewed it: what somebody's transaction holds is passed by, as
-- renew has to pass it by. Whoever has not renewed one heartbeat later is dead. With what a reap may have to wait for beside
-- the row itself: the parent, and the next in line of the key. Ordered, bounded, SKIP LOCKED; the next ones are :after the last.
select g.id, g.lease_expires_at, g.parent_id, g.concurrency_key from gen_durable.gen_durable g
 where g.status = 'executing' and g.id > :after::bigint and g.lease_expires_at < statement_timestamp()
 order by g.id limit 500
   for no key update skip locked

-- part: requeue_orphaned
-- What becomes of executions whose process has died, or whose lease ran out (`dead`): they go back to their queue,
-- attempt and crash_count grow, the next try waits 1, 2, 4 … 300 s, and after :crash_limit crashes in one step the instance
-- fails as poison, through the same end as any other. Then: the letters of the poisoned, and ungate the keys that come back.
-- An alert of poison has the number of its execution in its id, below zero: a retry may make the same transition after all,
-- with events of its own, or be poison again.
reaped as (
  update gen_durable.gen_durable g
     set status = case when g.cancel_requested_at is not null then 'cancelled'::gen_durable.durable_status
                       when g.crash_count >= :crash_limit::int - 1 then 'failed' else 'runnable' end,
         last_error = case when g.cancel_requested_at is null and g.crash_count >= :crash_limit::int - 1
                           then format('poison: the process died %s times in step %s', least(g.crash_count, 2147483646) + 1, g.step)
                           else g.last_error end,
         error = case when g.cancel_requested_at is null and g.crash_count >= :crash_limit::int - 1
                      then jsonb_build_object('type', 'Poison', 'message',
                             format('the process died %s times in step %s', least(g.crash_count, 2147483646) + 1, g.step),
                             'traceback', '[]'::jsonb, 'attempt', g.attempt)
                      else g.error end,
         attempt = case when g.cancel_requested_at is not null or g.crash_count >= :crash_limit::int - 1 then g.attempt
                        else least(g.attempt, 2147483646) + 1 end,
         crash_count = least(g.crash_count, 2147483646) + 1,
         lease_token = null, lease_expires_at = null, locked_by = null, concurrency_slot = null,
         leased_at = null, started_at = null,
         eligible_at = statement_timestamp() + make_interval(secs => least(300, power(2, least(g.crash_count, 10)))),
         finished_at = case when g.cancel_requested_at is not null or g.crash_count >= :crash_limit::int - 1
                            then statement_timestamp() end,
         updated_at = statement_timestamp()
    from dead where g.id = dead.id
  returning g.id, g.fsm, g.step, g.status, g.queue, g.concurrency_key, g.parent_id, g.parent_round, g.has_signals,
            g.status in ('failed', 'cancelled') as has_ended, dead.step_seq, dead.execution, dead.attempt,
            dead.locked_by, dead.leased_at, dead.lease_expires_at, dead.started_at, g.last_error, g.cancelled_by, g.cancel_reason,
            g.fsm_version, g.correlation_key
), recorded as (
  insert into gen_durable.executions (instance_id, step_seq, execution, attempt, status, outcome, step, lease_owner,
                                      leased_at, lease_expires_at, started_at, finished_at)
  select id, step_seq + 1, execution, attempt, 'ABORTED',
         case status when 'cancelled' then 'cancelled' when 'failed' then 'poison' else 'lease' end, step, locked_by,
         leased_at, lease_expires_at, started_at, statement_timestamp()
    from reaped where :record::text <> 'off'
), noted as (
  insert into gen_durable.audit_events (instance_id, event, actor, reason, data)
  select id, case status when 'cancelled' then 'cancelled' when 'failed' then 'failed' else 'crashed' end,
         case when status = 'cancelled' then cancelled_by end, case when status = 'cancelled' then cancel_reason end,
         jsonb_strip_nulls(jsonb_build_object(
           'step', step, 'step_seq', step_seq + 1, 'execution', execution, 'attempt', attempt, 'worker', locked_by,
           'cause', case when status = 'failed' then 'poison' end, 'error', case when status = 'failed' then last_error end))
    from reaped
   where (select s.audit from gen_durable.settings s) >= 'failures'
), alerted as (
  insert into gen_durable.outbox (instance_id, step_seq, n, sink, type, subject, data)
  -- In two parts: in one, the name of the event would be taken for one of our tables.
  select id, step_seq + 1, -execution, :alerts::text, 'gen_durable' || '.instance.failed', coalesce(correlation_key, id::text),
         jsonb_build_object('id', id, 'machine', fsm, 'version', fsm_version, 'step', step, 'cause', 'poison',
                            'error', last_error, 'attempts', least(attempt, 2147483646) + 1)
    from reaped where :alerts::text is not null and status = 'failed'
), ended as (
  select parent_id, parent_round, count(*)::int as children from reaped
   where has_ended and parent_id is not null group by parent_id, parent_round
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
)
select reaped.id, reaped.fsm, reaped.step, reaped.status::text as status, reaped.queue, reaped.concurrency_key,
       reaped.has_ended and reaped.has_signals as has_inbox, least(reaped.attempt, 2147483646) + 1 as attempts,
       (select array_agg(distinct joined.queue) from joined where joined.status = 'runnable') as released
  from reaped

-- name: reap
-- Executions whose lease ran out. Nothing is reaped within one lease of the server's start: after an outage the living renew first.
-- With :ids, only these, and only if their leases still end when they did, at :ends: a lease that was renewed or made since then
-- is not the one that was suspected, even if this statement comes to a server that was frozen until that one ran out as well.
-- Ordered, bounded, SKIP LOCKED.
with dead as materialized (
  select g.id, g.step_seq, g.execution, g.attempt, g.step, g.locked_by, g.leased_at, g.lease_expires_at, g.started_at
    from gen_durable.gen_durable g
   where g.status = 'executing' and g.lease_expires_at < statement_timestamp()
     and pg_postmaster_start_time() < statement_timestamp() - :lease::interval
     and (:ids::bigint[] is null
          or (g.id, g.lease_expires_at) in (select * from unnest(:ids::bigint[], :ends::timestamptz[])))
   order by g.id limit 500
     for no key update skip locked
), {requeue_orphaned}

-- name: reap_worker
-- Executions of a worker whose process is known to be dead: nobody has to wait for their leases to run out. What another
-- transaction holds locked may be the last commit of that worker; it is left for the next round. Ordered, bounded. That worker is
-- not there any more, and nobody has to wait for its presence to run out either.
with absent as (
  delete from gen_durable.workers w where w.name = :worker::text
), dead as materialized (
  select g.id, g.step_seq, g.execution, g.attempt, g.step, g.locked_by, g.leased_at, g.lease_expires_at, g.started_at
    from gen_durable.gen_durable g
   where g.status = 'executing' and g.locked_by = :worker::text
   order by g.id limit 500
     for no key update skip locked
), {requeue_orphaned}

-- name: reap_execution
-- One execution whose process has died, though its worker lives: guarded like every write of an execution.
with dead as materialized (
  select g.id, g.step_seq, g.execution, g.attempt, g.step, g.locked_by, g.leased_at, g.lease_expires_at, g.started_at
    from gen_durable.gen_durable g
   where g.id = :id::bigint and g.lease_token = :lease_token::bigint and g.step_seq = :step_seq::bigint
     and g.status = 'executing'
     for no key update
), {requeue_orphaned}

-- name: deleted_live
-- Whether there is a live instance that has a deleted_at and was not asked to end: one look at an index that is all but empty.
select g.id from gen_durable.gen_durable g
 where g.deleted_at is not null and g.finished_at is null and g.cancel_requested_at is null limit 1

-- name: end_deleted
-- End live instances that have a deleted_at which neither soft_delete nor the trigger on that column has seen: rows that were
-- inserted or copied with one, or updated while triggers were disabled. The queues that have work now.
select queue from gen_durable.end_deleted(:most::int, null) as queue

-- name: expire
-- Awaits whose deadline has passed: the step runs with what arrived, possibly nothing. Ordered, bounded, SKIP LOCKED.
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
), noted as (
  insert into gen_durable.audit_events (instance_id, event, data)
  select id, 'expired', jsonb_build_object('step', step, 'deadline', await_deadline) from expired
   where (select s.audit from gen_durable.settings s) = 'all'
)
select id, fsm, step, queue from expired
