-- Undo: instances that would end go to a step of their machine instead.
--
--   undo_steps     the committed transitions that have an undo step, in their order: [["reserve", "release"], ...]
--   compensation   null, or
--     end          the end that the compensation postpones: status, error, failure, cause, step, attempt, reason, actor, at
--     undone       the steps that are undone, in the order in which they were undone
--     to           with a requested cancel: the on_cancel step of the step that executes
--     final        the next end is final: undo was skipped, has failed, or is complete

-- Whether an instance that is about to end goes to another step instead. Null `ends_as`: the outcome is not an end. RETURN, so that
-- it is inlined: commits call it for every row, and plain rows pass the first condition.
create function gen_durable.redirects(
  undo_steps jsonb, compensation jsonb, is_deleted boolean, is_cancel boolean, ends_as gen_durable.durable_status) returns boolean
language sql immutable
return case when undo_steps is null and compensation is null then false
            when is_cancel and is_deleted then false   -- deleted instances run no steps
            when is_cancel and coalesce(compensation ? 'to', false) then true
            when coalesce(compensation ? 'final', false) then false
            when coalesce(compensation ? 'end', false) then is_cancel or coalesce(ends_as in ('done', 'failed', 'cancelled'), false)
            else undo_steps is not null and (is_cancel or coalesce(ends_as in ('failed', 'cancelled'), false)) end;

-- The same for an execution whose process died. A crash in an undo step does not redirect: at the crash limit the instance fails.
create function gen_durable.crash_redirects(
  undo_steps jsonb, compensation jsonb, is_deleted boolean, is_cancel boolean, is_capped boolean) returns boolean
language sql immutable
return case when undo_steps is null and compensation is null then false
            when coalesce(compensation ? 'end', false) then false
            else gen_durable.redirects(undo_steps, compensation, is_deleted, is_cancel,
                                       case when is_capped then 'failed'::gen_durable.durable_status end) end;

-- The error of an instance whose undo step has failed: why it was to end, and why it could not be undone. STABLE as format() is,
-- so that it is inlined.
create function gen_durable.undo_error(compensation jsonb, step text, error text) returns text
language sql stable
return case when coalesce(compensation ? 'end', false)
            then format('%s; then undo step %s failed: %s',
                        coalesce(compensation -> 'end' ->> 'error', compensation -> 'end' ->> 'reason',
                                 compensation -> 'end' ->> 'status'), step, error)
            else error end;

-- What undo steps see as ctx.failure: the failure that ended the instance, or the reason of its Stop or cancel.
create function gen_durable.cause_of_undo(ending jsonb) returns jsonb
language sql immutable
return coalesce(ending -> 'failure', jsonb_build_object(
         'type', case when ending ->> 'status' = 'cancelled' then 'Cancel' else 'Stop' end,
         'message', coalesce(ending ->> 'error', ending ->> 'reason', ''), 'step', ending ->> 'step'));

-- Redirect an instance that would end: to its on_cancel step, or to the undo step of its last transition that is not undone.
--   action   redirect: the row is moved. cancel: the row is moved, and the outcome is discarded. end: `final` tells how the instance
--            ends now, and the caller ends it; without `final` it ends as intended. No row: the instance is not redirected.
--   redirect undo: to its first undo step; undone: to the next one; on_cancel
-- A parent with live children waits for them before its undo step runs (fix_barriers).
-- The transition is counted by step_seq, so that the undo step has an idempotency key of its own.
-- consumed: the signals that the execution has received and that its outcome consumes. A cancel discards the outcome, and consumes
-- none.
-- Guard: the caller has locked the row, and has checked lease token and step_seq if an execution ends.
create function gen_durable.unwind(
  target bigint, ends_as gen_durable.durable_status, skips_undo boolean, reason text, failure jsonb, cause text, new_state text,
  new_version int, consumed bigint[], worker text, record text, finishes_later boolean)
returns table (action text, redirect text, status text, queue text, has_signals boolean, final jsonb)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  old       gen_durable.gen_durable;
  is_cancel boolean;
  steps     jsonb;
  plan      jsonb;
  next_step text;
  outcome   text := 'undo';
  event     text := 'compensating';
  keeps_state boolean;
  taken     jsonb;
begin
  select g.* into old from gen_durable.gen_durable g where g.id = target;
  is_cancel := old.cancel_requested_at is not null;
  if not gen_durable.redirects(old.undo_steps, old.compensation, old.deleted_at is not null, is_cancel, ends_as) then
    return;
  end if;
  if is_cancel then
    reason := null;
    failure := null;
    cause := null;
    new_state := null;
    consumed := null;
  end if;
  steps := old.undo_steps;
  if is_cancel and old.compensation ? 'to' then
    next_step := old.compensation ->> 'to';
    outcome := 'on_cancel';
    event := 'redirected';
  elsif old.compensation ? 'end' and ends_as = 'done' then
    steps := nullif(old.undo_steps - (-1), '[]');
    plan := old.compensation || jsonb_build_object(
              'undone', coalesce(old.compensation -> 'undone', '[]') || jsonb_build_array(old.undo_steps -> -1 -> 0));
    if steps is null then
      update gen_durable.gen_durable g
         set undo_steps = null, compensation = plan || '{"final": true}'
       where g.id = target;
      return query select 'end', null::text, null::text, old.queue, old.has_signals, old.compensation -> 'end';
      return;
    end if;
    next_step := steps -> -1 ->> 1;
    outcome := 'undone';
    event := 'succeeded';
  elsif old.compensation ? 'end' then
    update gen_durable.gen_durable g set compensation = g.compensation || '{"final": true}' where g.id = target;
    return query select 'end', null::text, null::text, old.queue, old.has_signals, jsonb_build_object(
      'status', 'failed', 'error', gen_durable.undo_error(old.compensation, old.step, reason), 'failure', failure,
      'cause', coalesce(cause, 'stop'), 'step', old.step);
    return;
  elsif skips_undo and not is_cancel then
    update gen_durable.gen_durable g set compensation = '{"final": true}' where g.id = target;
    return query select 'end', null::text, null::text, old.queue, old.has_signals, null::jsonb;
    return;
  else
    next_step := steps -> -1 ->> 1;
    plan := jsonb_build_object('end', jsonb_strip_nulls(jsonb_build_object(
      'status', case when is_cancel then 'cancelled' else ends_as::text end, 'error', reason, 'failure', failure, 'cause', cause,
      'step', old.step, 'attempt', old.attempt, 'reason', old.cancel_reason, 'actor', old.cancelled_by, 'at', statement_timestamp())));
  end if;
  update gen_durable.gen_durable g
     set status = case when g.spawn_round is null then 'runnable'::gen_durable.durable_status else 'awaiting_children' end,
         step = next_step, rest_step = next_step, state = coalesce(new_state::jsonb, g.state),
         fsm_version = case when new_state is null then g.fsm_version else coalesce(new_version, g.fsm_version) end, undo_steps = steps,
         compensation = plan, cancel_requested_at = null, last_error = coalesce(reason, g.last_error),
         error = coalesce(unwind.failure, g.error),
         failure = case when outcome <> 'on_cancel' then gen_durable.cause_of_undo(plan -> 'end') end, step_seq = g.step_seq + 1,
         execution = g.execution + (g.status <> 'executing' and g.execution < 2147483647)::int, attempt = 0, crash_count = 0,
         awaits = null, presented = null, timed_out = false, checkpoint = null, progress = null,
         children_pending = 0, rate_limit = null, weight = null, rate_turn_at = null, gated = false, lease_token = null, lease_expires_at = null,
         -- A due row keeps its place in the queue.
         eligible_at = case when g.status = 'runnable' then least(g.eligible_at, statement_timestamp()) else statement_timestamp() end,
         locked_by = null, concurrency_slot = null, leased_at = null, started_at = null, updated_at = statement_timestamp()
   where g.id = target;
  if old.spawn_round is not null then
    perform gen_durable.fix_barriers(array[target]);
  end if;
  if cardinality(consumed) > 0 then
    select jsonb_agg(jsonb_build_object('id', newest.id, 'name', newest.name, 'at', newest.inserted_at) order by newest.id) into taken
      from (select s.* from gen_durable.signals s where s.id = any (consumed) order by s.id desc limit 100) newest;
  end if;
  delete from gen_durable.signals s where s.id = any (consumed) and s.dedup_key is null;
  update gen_durable.signals s set consumed_seq = old.step_seq + 1, payload = 'null'
   where s.id = any (consumed) and s.dedup_key is not null;
  keeps_state := gen_durable.keeps_history(old.fsm, old.fsm_version);
  insert into gen_durable.executions (instance_id, step_seq, execution, attempt, status, outcome, step, to_step, cause, lease_owner,
                                      leased_at, lease_expires_at, started_at, finished_at, error, state, state_version,
                                      state_before, state_before_version, signals)
  select target, old.step_seq + 1, old.execution + (old.status <> 'executing' and old.execution < 2147483647)::int, old.attempt,
         case when finishes_later then 'COMMITTED' else 'DONE' end, outcome, old.step, next_step, cause, old.locked_by,
         old.leased_at, old.lease_expires_at, old.started_at, statement_timestamp(),
         reason, case when keeps_state then coalesce(new_state::jsonb, old.state) end,
         case when keeps_state then case when new_state is null then old.fsm_version else coalesce(new_version, old.fsm_version) end end,
         case when keeps_state and old.step_seq = 0 then old.state end, case when keeps_state and old.step_seq = 0 then old.fsm_version end,
         taken
   where record = 'all' or record = 'failures' and outcome <> 'undone' or keeps_state;
  insert into gen_durable.audit_events (instance_id, event, actor, reason, data)
  select target, event, case when is_cancel then old.cancelled_by end, case when is_cancel then old.cancel_reason end,
         jsonb_strip_nulls(jsonb_build_object(
           'step', old.step, 'step_seq', old.step_seq + 1,
           'execution', old.execution + (old.status <> 'executing' and old.execution < 2147483647)::int, 'attempt', old.attempt,
           'worker', coalesce(worker, old.locked_by), 'outcome', outcome, 'to', next_step,
           'ends_as', plan -> 'end' -> 'status', 'cause', cause, 'error', reason))
   where (select s.audit from gen_durable.settings s)
         >= case when event = 'succeeded' then 'all'::gen_durable.audit_level else 'failures' end;
  return query
    select case when is_cancel then 'cancel' else 'redirect' end, outcome, g.status::text, g.queue, g.has_signals, null::jsonb
      from gen_durable.gen_durable g where g.id = target;
end $$;

revoke execute on function
  gen_durable.redirects, gen_durable.crash_redirects, gen_durable.undo_error, gen_durable.cause_of_undo, gen_durable.unwind
  from public;
