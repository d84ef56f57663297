-- Control: cancel, delete, restore, retry and edit, as functions for clients and SQL producers. Each is one transaction, over any
-- number of instances except for edit. Lock order as everywhere: ids descending, so children before parents.

-- Cancel instances. Parked and runnable ones end now. Executing ones get a cancel request, which overrides the outcome of their
-- step; with force they end now: the lease is revoked, and the worker can commit nothing. One row per instance that exists.
-- An instance whose step has on_cancel goes to that step, and one with undo steps runs them before it ends (unwind); an instance that
-- runs undo steps is left alone. force skips all of this.
--   undo     false: run neither on_cancel nor undo steps, or no further undo steps
-- Locks: targets, ids descending; then their parents (join_parents); then the next gated rows (ungate).
--   was      the status before
--   status   the status now: cancelled; executing (requested); runnable or awaiting_children (redirected); compensating, if it
--            runs undo steps and was left alone; or the final status that it already had
create function gen_durable.cancel_rows(
  target_ids bigint[], reason text, actor text, force boolean, undo boolean default true)
returns table (id bigint, was text, status text, queues text[])
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  live    record;
  one     record;
  ending  bigint[];
  woken   text[];
begin
  reason := gen_durable.short_reason(reason);
  actor := gen_durable.checked_actor(actor);
  -- A separate statement: the following ones see the rows as they are under the lock.
  perform from gen_durable.gen_durable g where g.id = any (target_ids) order by g.id desc for no key update;
  return query
    select g.id, g.status::text, g.status::text, null::text[] from gen_durable.gen_durable g
     where g.id = any (target_ids) and g.status in ('done', 'failed', 'cancelled');
  return query
    select g.id, g.status::text, 'compensating', null::text[] from gen_durable.gen_durable g
     where g.id = any (target_ids) and g.compensation ? 'end' and undo and not force
       and g.status not in ('done', 'failed', 'cancelled');
  select array_agg(g.id) as ids, array_agg(g.status::text) as statuses, array_agg(g.concurrency_key) as keys,
         array_agg(reaction.step) as reactions,
         array_agg(g.id) filter (where force or g.status <> 'executing' and reaction.step is null
                                       and (not undo or g.undo_steps is null)) as ending
    into live from gen_durable.gen_durable g
    left join lateral (select m.on_cancel ->> g.step as step from gen_durable.machines m
                        where undo and not force and m.fsm = g.fsm and m.fsm_version = g.fsm_version
                          and (g.compensation ?| '{end,final}') is not true) reaction on true
   where g.id = any (target_ids) and g.status not in ('done', 'failed', 'cancelled')
     and (not undo or force or (g.compensation ? 'end') is not true);
  if live.ids is null then
    return;
  end if;
  ending := coalesce(live.ending, '{}');
  update gen_durable.gen_durable g
     set cancel_requested_at = coalesce(g.cancel_requested_at, statement_timestamp()),
         cancel_reason = case when g.cancel_requested_at is null then reason else coalesce(g.cancel_reason, reason) end,
         cancelled_by = case when g.cancel_requested_at is null then actor else coalesce(g.cancelled_by, actor) end,
         compensation = case when force then g.compensation else nullif(
                          case when undo then coalesce(g.compensation, '{}') else coalesce(g.compensation, '{}') - 'to' end
                          || case when row.reaction is null then '{}' else jsonb_build_object('to', row.reaction) end
                          || case when undo or g.undo_steps is null then '{}' else '{"final": true}'::jsonb end, '{}') end
    from unnest(live.ids, live.reactions) as row (id, reaction)
   where g.id = row.id;
  insert into gen_durable.executions (instance_id, step_seq, execution, attempt, status, outcome, step, lease_owner,
                                      leased_at, lease_expires_at, started_at, finished_at, signals)
  select g.id, g.step_seq + 1, g.execution + (g.status <> 'executing' and g.execution < 2147483647)::int, g.attempt, 'ABORTED',
         'cancelled', g.step, g.locked_by, g.leased_at, g.lease_expires_at, g.started_at, statement_timestamp(),
         case when g.has_signals then (
           select jsonb_agg(jsonb_build_object('id', newest.id, 'name', newest.name, 'at', newest.inserted_at, 'unread', true)
                            order by newest.id)
             from (select s.* from gen_durable.signals s where s.target_id = g.id and s.consumed_seq is null
                    order by s.id desc limit 100) newest) end
    from gen_durable.gen_durable g where g.id = any (ending);
  insert into gen_durable.audit_events (instance_id, event, actor, reason, data)
  select g.id, case when g.id = any (ending) then 'cancelled' else 'cancel_requested' end, actor, reason,
         case when g.id = any (ending) then jsonb_strip_nulls(jsonb_build_object(
           'step', g.step, 'step_seq', g.step_seq + 1,
           'execution', g.execution + (g.status <> 'executing' and g.execution < 2147483647)::int, 'attempt', g.attempt,
           'worker', g.locked_by)) end
    from gen_durable.gen_durable g
   where g.id = any (live.ids) and (select s.audit from gen_durable.settings s) >= 'failures';
  update gen_durable.gen_durable g
     set execution = g.execution + (g.status <> 'executing' and g.execution < 2147483647)::int,
         status = 'cancelled', rest_step = g.step, finished_at = statement_timestamp(), updated_at = statement_timestamp(),
         expires_at = statement_timestamp() + (
           select make_interval(secs => (m.retention ->> 'cancelled')::double precision) from gen_durable.machines m
            where m.fsm = g.fsm and m.fsm_version = g.fsm_version),
         lease_token = null, lease_expires_at = null, locked_by = null, concurrency_slot = null, leased_at = null,
         started_at = null, presented = null, gated = false, rate_turn_at = null, children_pending = 0
   where g.id = any (ending);
  -- The two conditions together match every signal; each matches an index.
  delete from gen_durable.signals s
   where s.target_id = any (ending) and s.consumed_seq is null or s.target_id = any (ending) and s.dedup_key is not null;
  woken := array(
    select gen_durable.join_parents(array_agg(g.parent_id), array_agg(g.parent_round)) from gen_durable.gen_durable g
     where g.id = any (ending) and g.parent_id is not null having count(*) > 0);
  for one in
    select row.id from unnest(live.ids, live.statuses) as row (id, was)
     where row.was <> 'executing' and row.id <> all (ending) order by row.id desc
  loop
    woken := woken || array(
      select moved.queue from gen_durable.unwind(one.id, 'cancelled', false, null, null, null, null, null, null, null, 'all', false) moved
       where moved.status = 'runnable');
  end loop;
  -- Last: a parent that waits for its children before its undo step has left the rows of its key.
  woken := woken || array(select gen_durable.ungate(live.keys));
  return query
    select row.id, row.was, g.status::text, woken
      from unnest(live.ids, live.statuses) as row (id, was) join gen_durable.gen_durable g on g.id = row.id;
end $$;

-- Soft-delete instances: they are not leased or signalled any more, and not listed by default. Live ones are cancelled first;
-- otherwise their parents would wait forever. An executing one keeps its keys until its step ends. Deleted rows run no steps, so
-- this cancel runs neither undo nor on_cancel steps, and ends a compensation.
create function gen_durable.delete_rows(target_ids bigint[], reason text, actor text)
returns table (id bigint, deleted_at timestamptz, status text, queues text[])
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  woken text[] := '{}';
  one   record;
begin
  reason := gen_durable.short_reason(reason);
  for one in select * from gen_durable.cancel_rows(target_ids, reason, actor, false, false) loop
    woken := woken || coalesce(one.queues, '{}');
  end loop;
  insert into gen_durable.audit_events (instance_id, event, actor, reason)
  select g.id, 'deleted', actor, reason from gen_durable.gen_durable g
   where g.id = any (target_ids) and g.deleted_at is null and (select s.audit from gen_durable.settings s) >= 'failures';
  update gen_durable.gen_durable g
     set deleted_at = statement_timestamp(), delete_reason = reason, updated_at = statement_timestamp()
   where g.id = any (target_ids) and g.deleted_at is null;
  return query
    select g.id, g.deleted_at, g.status::text, woken from gen_durable.gen_durable g where g.id = any (target_ids);
end $$;

-- Cancel live instances whose deleted_at was set by a plain UPDATE, an INSERT or a COPY. Locked rows are skipped: the transaction
-- that has locked one cancels it, or the next call does. Returns the queues that have work now.
--   most   maximum number of rows; null: all
create function gen_durable.end_deleted(most int, actor text) returns setof text
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  one record;
begin
  for one in
    select found.delete_reason as reason, array_agg(found.id) as ids
      from (select g.id, g.delete_reason from gen_durable.gen_durable g
             where g.deleted_at is not null and g.finished_at is null and g.cancel_requested_at is null
             order by g.id desc limit most
               for no key update skip locked) found
     group by found.delete_reason
  loop
    return query
      select distinct unnest(c.queues) from gen_durable.cancel_rows(one.ids, one.reason, actor, false, false) c;
    insert into gen_durable.audit_events (instance_id, event, actor, reason)
    select row.id, 'deleted', actor, gen_durable.short_reason(one.reason) from unnest(one.ids) as row (id)
     where (select s.audit from gen_durable.settings s) >= 'failures';
  end loop;
end $$;

-- UPDATE ... SET deleted_at = now() does the same as soft_delete, in the transaction of the caller. A trigger per statement on
-- that column: a trigger per row would read the old row at every commit and heartbeat, and a BEFORE trigger would also lock it.
-- It runs with the rights of the owner, so a role needs only the right to update the column.
create function gen_durable.on_deleted() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform gen_durable.end_deleted(null, session_user);
  return null;
end $$;
create trigger on_deleted after update of deleted_at on gen_durable.gen_durable
  for each statement execute function gen_durable.on_deleted();
-- ALWAYS: also in sessions with session_replication_role = replica.
alter table gen_durable.gen_durable enable always trigger on_deleted;

-- Raise the error of a restore or retry whose key is taken, naming the holder; also if the holder has just ended.
--   back_as   the status that the instances would have; null: their current one
create function gen_durable.raise_key_conflict(target_ids bigint[], verb text, back_as gen_durable.durable_status) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  holder record;
begin
  select g.id as target_id, other.* into holder from gen_durable.gen_durable g cross join lateral (
    select h.id, h.fsm, 'correlation_key' as key from gen_durable.gen_durable h
     where h.correlation_key = g.correlation_key and h.status = any (h.correlation_scope) and (h.deleted_at is null or h.status = 'executing')
       and coalesce(back_as, g.status) = any (g.correlation_scope)
    union all
    select h.id, h.fsm, 'unique_key' from gen_durable.gen_durable h
     where h.unique_key = g.unique_key and h.status = any (h.unique_scope) and (h.deleted_at is null or h.status = 'executing')
       and coalesce(back_as, g.status) = any (g.unique_scope)) other
   where g.id = any (target_ids) and other.id <> g.id order by g.id, other.id limit 1;
  if not found then
    raise exception 'cannot %: two of these instances have the same key, or another instance had it a moment ago', verb
      using errcode = 'GD004', hint = format('%s them one by one', verb);
  end if;
  raise exception 'cannot % instance %: its % belongs to % % now', verb, holder.target_id, holder.key, holder.fsm, holder.id
    using errcode = 'GD004', hint = format('delete %s first, or insert a new instance with another key', holder.id),
          detail = json_build_object('id', holder.id, 'fsm', holder.fsm, 'key', holder.key)::text;
end $$;

-- Undo a soft delete. The status stays: an instance that was live is cancelled, and retry continues it. Raises if a key of one of
-- the instances is taken.
create function gen_durable.restore_rows(target_ids bigint[], reason text, actor text)
returns table (id bigint, status text)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
  actor := gen_durable.checked_actor(actor);
  perform from gen_durable.gen_durable g where g.id = any (target_ids) order by g.id desc for no key update;
  insert into gen_durable.audit_events (instance_id, event, actor, reason)
  select g.id, 'restored', actor, gen_durable.short_reason(reason) from gen_durable.gen_durable g
   where g.id = any (target_ids) and g.deleted_at is not null and (select s.audit from gen_durable.settings s) >= 'failures';
  begin
    update gen_durable.gen_durable g set deleted_at = null, delete_reason = null, updated_at = statement_timestamp()
     where g.id = any (target_ids) and g.deleted_at is not null;
  exception when unique_violation then
    perform gen_durable.raise_key_conflict(target_ids, 'restore', null);
  end;
  return query select g.id, g.status::text from gen_durable.gen_durable g where g.id = any (target_ids);
end $$;

-- Retry failed or cancelled instances at the step where they ended, with attempt 0 and optionally another state. One row per
-- instance; is_retried is false if it is live, done or deleted, or if its state was collected and no new one is given.
--   * With new_step, they run that step instead, at once: they neither wait for their former signals nor join their former
--     children. This is a transition like an edit, and recorded as one.
--   * An instance that waited for a signal, or was woken by one, waits again until its former deadline: its inbox was deleted at
--     the end, and the step must not assume a signal that it does not see. An instance that was woken by its deadline runs.
--   * A parent with live children waits for them again, and its step sees the children of that round.
--   * A child counts for its parent again if the parent waits for its round, or has yet to run the joining step, for the first
--     time or again. An executing parent is not changed: its worker loads the children and returns the row if one is live
--     (`rejoin`).
--   * An instance whose undo step failed, or was stopped, goes on with that undo step, after its live children, and towards the same
--     end. An instance that is undone completely starts at the first of the steps that were undone: their work is gone.
create function gen_durable.retry_rows(target_ids bigint[], new_state text, new_step text, reason text, actor text)
returns table (id bigint, is_retried boolean, status text, queue text)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  family  bigint[];
  retried bigint[];
  parked  bigint[];
begin
  reason := gen_durable.short_reason(reason);
  actor := gen_durable.checked_actor(actor);
  -- Also lock the live children, which may be ending, and the parents in any status, which may be retried concurrently: the
  -- second transaction sees what the first has done. One statement, ids descending.
  family := array(select unnest(target_ids) union
                  select child.id from gen_durable.gen_durable child
                   where child.parent_id = any (target_ids) and child.status not in ('done', 'failed', 'cancelled') union
                  select child.parent_id from gen_durable.gen_durable child
                   where child.id = any (target_ids) and child.parent_id is not null);
  perform from gen_durable.gen_durable g where g.id = any (family) order by g.id desc for no key update;
  select coalesce(array_agg(g.id), '{}') into retried from gen_durable.gen_durable g
   where g.id = any (target_ids) and g.status in ('failed', 'cancelled') and g.deleted_at is null
     and (g.collected_at is null or new_state is not null);
  if retried = '{}' then
    return query
      select g.id, false, g.status::text, g.queue from gen_durable.gen_durable g where g.id = any (target_ids);
    return;
  end if;
  -- Released parents: they wait again, and free their position of the concurrency key.
  parked := array(select distinct p.id from gen_durable.gen_durable child
                    join gen_durable.gen_durable p on p.id = child.parent_id and p.spawn_round = child.parent_round
                   where child.id = any (retried)
                     and p.status = 'runnable' and p.spawn_round = p.step_seq);
  update gen_durable.gen_durable p set children_pending = p.children_pending + again.children
    from (select child.parent_id, child.parent_round, count(*)::int as children from gen_durable.gen_durable child
           where child.id = any (retried) and child.parent_id is not null group by child.parent_id, child.parent_round) again
   where p.id = again.parent_id and p.spawn_round = again.parent_round and p.status = 'awaiting_children';
  -- A stop is a transition; poison and cancel are not. So after a stop the children of the failed step are one round behind.
  update gen_durable.gen_durable child set parent_round = p.step_seq
    from gen_durable.gen_durable p
   where new_step is null and p.id = any (retried) and p.status = 'failed' and p.crash_count = 0
     and p.spawn_round = p.step_seq - 1 and child.parent_id = p.id and child.parent_round = p.spawn_round;
  -- The record that ended the instance; edits since then follow it.
  update gen_durable.executions e set retried_at = statement_timestamp()
    from gen_durable.gen_durable g
   where g.id = any (retried) and e.instance_id = g.id and e.status in ('COMMITTED', 'DONE') and e.outcome = 'stop'
     and e.retried_at is null
     and e.step_seq = (select max(last.step_seq) from gen_durable.executions last
                        where last.instance_id = g.id and last.status in ('COMMITTED', 'DONE') and last.outcome <> 'edit');
  update gen_durable.executions e set retried_at = statement_timestamp()
    from gen_durable.gen_durable g
   where g.id = any (retried) and e.instance_id = g.id and e.step_seq <= g.step_seq + 1 and e.status = 'ABORTED'
     and e.outcome in ('cancelled', 'poison') and e.retried_at is null;
  insert into gen_durable.executions (instance_id, step_seq, execution, attempt, status, outcome, step, to_step, finished_at, state,
                                      state_version, state_before, state_before_version)
  select g.id, g.step_seq + 1, g.execution + (g.execution < 2147483647)::int, g.attempt, 'DONE', 'edit', g.step, new_step,
         statement_timestamp(), coalesce(new_state::jsonb, g.state), g.fsm_version, g.state, g.fsm_version
    from gen_durable.gen_durable g where new_step is not null and g.id = any (retried);
  insert into gen_durable.audit_events (instance_id, event, actor, reason, data)
  select g.id, 'retried', actor, reason, case when new_step is not null then jsonb_build_object(
           'step', g.step, 'to', new_step, 'step_seq', g.step_seq + 1,
           'execution', g.execution + (g.execution < 2147483647)::int) end
    from gen_durable.gen_durable g
   where g.id = any (retried) and (select s.audit from gen_durable.settings s) >= 'failures';
  begin
    update gen_durable.gen_durable g
       set status = case when new_step is null and g.awaits is not null and not g.timed_out
                         then 'awaiting_signal'::gen_durable.durable_status else 'runnable' end,
           step = coalesce(new_step, case when g.undo_steps is null and g.compensation ? 'end'
                                          then g.compensation -> 'undone' ->> -1 else g.step end),
           compensation = case when new_step is null and g.undo_steps is not null
                               then nullif(g.compensation - '{final,to}'::text[], '{}') end,
           step_seq = g.step_seq + (new_step is not null)::int,
           execution = g.execution + (new_step is not null and g.execution < 2147483647)::int,
           awaits = case when new_step is null then g.awaits end, timed_out = g.timed_out and new_step is null,
           checkpoint = case when new_step is null then g.checkpoint end, progress = case when new_step is null then g.progress end,
           spawn_round = case when new_step is not null or g.undo_steps is null and g.compensation ? 'end' then null
                              when g.status = 'failed' and g.crash_count = 0 and g.spawn_round = g.step_seq - 1
                              then g.step_seq else g.spawn_round end,
           state = coalesce(new_state::jsonb, g.state), attempt = 0, crash_count = 0, result = null,
           last_error = null, error = null, eligible_at = statement_timestamp(), finished_at = null, expires_at = null, collected_at = null,
           cancel_requested_at = null, updated_at = statement_timestamp(),
           cancel_reason = case when new_step is null and g.undo_steps is not null then g.compensation -> 'end' ->> 'reason' end,
           cancelled_by = case when new_step is null and g.undo_steps is not null then g.compensation -> 'end' ->> 'actor' end
     where g.id = any (retried);
  exception when unique_violation then
    perform gen_durable.raise_key_conflict(retried, 'retry', 'runnable');
  end;
  -- Count all live children, not only the retried ones: a child may have been retried while its parent executed.
  update gen_durable.gen_durable p
     set status = 'awaiting_children', rest_step = p.step, children_pending = live.children, gated = false
    from (select child.parent_id, child.parent_round, count(*)::int as children from gen_durable.gen_durable child
           where child.parent_id = any (retried || parked) and child.status not in ('done', 'failed', 'cancelled')
           group by child.parent_id, child.parent_round) live
   where p.id = live.parent_id and p.spawn_round = live.parent_round
     and (p.spawn_round = p.step_seq or p.compensation ? 'end' and p.status = 'runnable');
  if parked <> '{}' then
    perform gen_durable.ungate(array(select g.concurrency_key from gen_durable.gen_durable g
                                      where g.id = any (parked) and g.concurrency_key is not null));
  end if;
  return query
    select g.id, g.id = any (retried), g.status::text, g.queue from gen_durable.gen_durable g where g.id = any (target_ids);
end $$;

-- Change the state or the step of an instance that is runnable, parked or failed. Its status, inbox, deadline, keys and limits stay.
-- An edit is a transition: step_seq advances, so a second edit that expects the old number is refused, and the next execution has
-- another idempotency key. The record keeps the state before and after. One row if the instance exists.
--   expected_seq, expected_version   refuse the edit if the instance has others; null: any
--   wake      a parked instance stops waiting, and a delayed one is due now
--   refusal   null if it was edited; else deleted, executing, ended, collected, moved or compensating: an instance that runs undo
--             steps, or has run them, takes no other step
-- Locks: the target and the children of its barrier, which move with its step_seq; ids descending. A target that has scheduled
-- children after they were read has moved: they would be locked after their parent.
create function gen_durable.edit_row(
  target bigint, new_state text, new_step text, expected_seq bigint, expected_version int, wake boolean, reason text, actor text)
returns table (id bigint, refusal text, status text, step_seq bigint, queue text)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  family    bigint[];
  found_row record;
  is_joined boolean;
  leaves    boolean;
begin
  reason := gen_durable.short_reason(reason);
  actor := gen_durable.checked_actor(actor);
  family := array(select target union
                  select child.id from gen_durable.gen_durable child
                    join gen_durable.gen_durable p on p.id = child.parent_id and p.spawn_round = child.parent_round
                   where p.id = target);
  perform from gen_durable.gen_durable g where g.id = any (family) order by g.id desc for no key update;
  select g.*, case when g.deleted_at is not null then 'deleted'
                   when g.status = 'executing' then 'executing'
                   when g.status in ('done', 'cancelled') then 'ended'
                   when g.collected_at is not null then 'collected'
                   when g.step_seq <> expected_seq or g.fsm_version <> expected_version
                     or exists (select from gen_durable.gen_durable child
                                 where child.parent_id = target and child.parent_round = g.spawn_round and child.id <> all (family))
                     then 'moved'
                   when new_step is not null and g.compensation ? 'end' then 'compensating' end as refusal
    into found_row from gen_durable.gen_durable g where g.id = target;
  if not found then
    return;
  elsif found_row.refusal is not null then
    return query
      select target, found_row.refusal, found_row.status::text, found_row.step_seq, found_row.queue;
    return;
  end if;
  leaves := wake and found_row.status in ('awaiting_signal', 'awaiting_children');
  -- A step joins children while its step_seq is their round. After a stop they are one round behind; see retry_rows.
  is_joined := not leaves and found_row.spawn_round in (
    found_row.step_seq, found_row.step_seq - (found_row.status = 'failed' and found_row.crash_count = 0)::int);
  if is_joined then
    update gen_durable.gen_durable child set parent_round = child.parent_round + 1
     where child.parent_id = target and child.parent_round = found_row.spawn_round;
  end if;
  -- With the await that its step keeps, for a fork.
  insert into gen_durable.executions (instance_id, step_seq, execution, attempt, status, outcome, step, to_step, finished_at, state,
                                      state_version, state_before, state_before_version, awaits, await_deadline)
  values (target, found_row.step_seq + 1, found_row.execution + (found_row.execution < 2147483647)::int, found_row.attempt, 'DONE',
          'edit', found_row.step, coalesce(new_step, found_row.step), statement_timestamp(), coalesce(new_state::jsonb, found_row.state),
          found_row.fsm_version, found_row.state, found_row.fsm_version, case when not leaves then found_row.awaits end,
          case when not leaves and found_row.awaits is not null then found_row.await_deadline end);
  update gen_durable.gen_durable g
     set state = coalesce(new_state::jsonb, g.state), step = coalesce(new_step, g.step), step_seq = g.step_seq + 1,
         execution = g.execution + (g.execution < 2147483647)::int,
         status = case when leaves then 'runnable' else g.status end,
         rest_step = case when leaves or g.status = 'runnable' then g.rest_step else coalesce(new_step, g.step) end,
         -- A failed instance keeps what it failed with, for a retry.
         attempt = case when g.status = 'failed' then g.attempt else 0 end,
         crash_count = case when g.status = 'failed' then g.crash_count else 0 end,
         awaits = case when not leaves then g.awaits end, presented = case when not leaves then g.presented end,
         timed_out = g.timed_out and not leaves,
         checkpoint = case when new_step is null then g.checkpoint end, progress = case when new_step is null then g.progress end,
         spawn_round = case when is_joined then g.spawn_round + 1 else g.spawn_round end,
         children_pending = case when leaves then 0 else g.children_pending end,
         -- A throttled row keeps its position in the timetable of its bucket.
         eligible_at = case when leaves then statement_timestamp()
                            when wake and g.status = 'runnable' and g.rate_turn_at is null
                            then least(g.eligible_at, statement_timestamp()) else g.eligible_at end,
         updated_at = statement_timestamp()
   where g.id = target;
  insert into gen_durable.audit_events (instance_id, event, actor, reason, data)
  select target, 'edited', actor, reason, jsonb_strip_nulls(jsonb_build_object(
           'step', found_row.step, 'step_seq', found_row.step_seq + 1,
           'execution', found_row.execution + (found_row.execution < 2147483647)::int,
           'to', case when new_step <> found_row.step then new_step end, 'state_changed', new_state::jsonb <> found_row.state,
           'woken', nullif(leaves, false)))
   where (select s.audit from gen_durable.settings s) >= 'failures';
  return query
    select g.id, null::text, g.status::text, g.step_seq, g.queue from gen_durable.gen_durable g where g.id = target;
end $$;

-- Insert a new instance that starts after a transition of another one, with its machine, version, queue, priority and limits, but
-- without its keys, signals and children. The await before its step is repeated, also if it is over: now, until the same deadline; at
-- an earlier transition, with the same time until its deadline. One row if the origin exists.
-- It undoes nothing of its origin. So it does not start at an undo step: after the first one, it needs a step.
--   at                 the transition; null: as the origin is now. An earlier one needs the state that its record keeps. The fork has
--                      the version of that state, also with new_state, or that of the origin if the state was not kept.
--   expected_version   insert nothing if the fork would have another version; null: any
--   computed_keys      concurrency_key and rate_limit that replace those of the origin, if they are given; they may be null
--   problem            null if it was inserted; else collected, children, unknown, undone, not_kept, no_step, upgraded or key_taken
-- Locks: the origin FOR KEY SHARE, so that the collector does not delete it and its records; commits do not wait for that.
create function gen_durable.fork_row(
  target bigint, at bigint, new_state text, new_step text, expected_version int, new_correlation_key text, new_unique_key bytea,
  reason text, actor text, computed_keys jsonb default null)
returns table (id bigint, problem text, queue text, status text, step_seq bigint)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
  origin   record;
  made     record;
  led      record;
  version  int;
  state    jsonb := new_state::jsonb;
  step     text := new_step;
  awaits   text[];
  deadline timestamptz;
  timed_out boolean := false;
  is_joined boolean;
  live     gen_durable.durable_status[] := '{runnable,executing,awaiting_signal,awaiting_children}';
begin
  reason := gen_durable.short_reason(reason);
  actor := gen_durable.checked_actor(actor);
  select g.* into origin from gen_durable.gen_durable g where g.id = target for key share;
  if not found then
    return;
  end if;
  step_seq := coalesce(at, origin.step_seq);
  if step_seq > origin.step_seq then
    problem := 'unknown';
  elsif step_seq = origin.step_seq then
    if origin.collected_at is not null and state is null then
      problem := 'collected';
    elsif new_step is null and origin.compensation ? 'end' then
      problem := 'undone';
    end if;
    state := coalesce(state, origin.state);
    version := origin.fsm_version;
    step := coalesce(step, origin.step);
  else
    if new_step is null and exists (
         select from gen_durable.executions e
          where e.instance_id = target and e.status in ('COMMITTED', 'DONE')
            -- Retention may have removed the record of the begin.
            and (e.outcome = 'undo' and e.step_seq <= fork_row.step_seq
                 or e.outcome = 'undone' and e.step_seq <= fork_row.step_seq + 1)) then
      problem := 'undone';
    end if;
    if step_seq > 0 then
      select e.* into made from gen_durable.executions e
       where e.instance_id = target and e.step_seq = fork_row.step_seq and e.status in ('COMMITTED', 'DONE');
    else
      select e.state_before as state, e.state_before_version as state_version, e.step as to_step into made from gen_durable.executions e
       where e.instance_id = target and e.step_seq = 1 and e.state_before is not null order by e.execution limit 1;
    end if;
    state := coalesce(state, made.state);
    version := coalesce(made.state_version, origin.fsm_version);
    step := coalesce(step, made.to_step, (
      select e.step from gen_durable.executions e
       where e.instance_id = target and e.step_seq = fork_row.step_seq + 1 and e.status in ('COMMITTED', 'DONE')));
    problem := coalesce(problem, case when state is null then 'not_kept' when step is null then 'no_step' end);
  end if;
  if new_step is null and problem is null then
    if step_seq = origin.step_seq and origin.status <> 'done' then
      awaits := origin.awaits;
      deadline := origin.await_deadline;
      timed_out := origin.timed_out;
      -- After a stop they are one round behind; see retry_rows.
      is_joined := origin.spawn_round in (
        origin.step_seq, origin.step_seq - (origin.status = 'failed' and origin.crash_count = 0)::int);
    else
      -- A step that has ended its instance runs again: what led to it is the transition before the end.
      select e.* into led from gen_durable.executions e
       where e.instance_id = target and e.step_seq <= fork_row.step_seq and e.status in ('COMMITTED', 'DONE')
         and e.outcome not in ('done', 'stop')
       order by e.step_seq desc limit 1;
      awaits := led.awaits;
      deadline := statement_timestamp() + (led.await_deadline - led.finished_at);
      -- Edits move the children of the round with them.
      is_joined := led.outcome = 'schedule_children' or led.outcome = 'edit' and exists (
        select from gen_durable.gen_durable child
         where child.parent_id = target and child.parent_round >= led.step_seq and not exists (
               select from gen_durable.executions e
                where e.instance_id = target and e.status in ('COMMITTED', 'DONE') and e.outcome = 'schedule_children'
                  and e.step_seq > led.step_seq and e.step_seq <= child.parent_round));
    end if;
    problem := case when is_joined then 'children' end;
  end if;
  problem := coalesce(problem, case when version <> expected_version then 'upgraded' end);
  if problem is null then
    computed_keys := jsonb_build_object('concurrency_key', origin.concurrency_key, 'rate_limit', origin.rate_limit)
                     || coalesce(computed_keys, '{}');
    perform gen_durable.check_limits(array[computed_keys ->> 'rate_limit'], array[origin.weight], true)
      where computed_keys ->> 'rate_limit' is distinct from origin.rate_limit;
    status := case when awaits is null or timed_out then 'runnable' else 'awaiting_signal' end;
    begin
      insert into gen_durable.gen_durable as g
             (fsm, fsm_version, step, rest_step, status, state, awaits, await_deadline, timed_out, queue, priority, max_attempts,
              concurrency_key, rate_limit, weight, traceparent, correlation_key, correlation_scope, unique_key, unique_scope,
              forked_from, forked_seq)
      values (origin.fsm, version, step, case when status = 'runnable' then '' else step end,
              fork_row.status::gen_durable.durable_status, state, awaits, deadline, timed_out, origin.queue, origin.priority,
              origin.max_attempts, computed_keys ->> 'concurrency_key', computed_keys ->> 'rate_limit',
              case when computed_keys ->> 'rate_limit' is not null then origin.weight end, origin.traceparent,
              new_correlation_key, case when new_correlation_key is not null then live end,
              new_unique_key, case when new_unique_key is not null then live end, target, fork_row.step_seq)
      returning g.id into id;
    exception when unique_violation then
      problem := 'key_taken';
    end;
  end if;
  if problem is null then
    insert into gen_durable.audit_events (instance_id, event, actor, reason, data)
    select fork_row.id, 'created', actor, reason, jsonb_build_object(
             'machine', origin.fsm, 'version', version, 'step', step, 'queue', origin.queue,
             'forked_from', target, 'forked_seq', fork_row.step_seq)
     where (select s.audit from gen_durable.settings s) >= 'failures';
  end if;
  queue := origin.queue;
  return next;
end $$;

-- The status of a job in the words of simple workflows: pending, leased, succeeded, failed, cancelled; null: no such job. By
-- key: the job that occupies the key, else the latest that had it.
create function gen_durable.job_status(target bigint) returns text
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select gen_durable.job_status_name(g.status::text) from gen_durable.gen_durable g where g.id = target
$$;

create function gen_durable.job_status(target text) returns text
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select gen_durable.job_status_name(found.status) from (
    select 0 as rank, g.status::text as status from gen_durable.gen_durable g
     where g.correlation_key = target and g.status = any (g.correlation_scope) and (g.deleted_at is null or g.status = 'executing')
    union all
    (select 1, g.status::text from gen_durable.gen_durable g
      where g.correlation_key = target and g.deleted_at is null
        and (g.status = any (g.correlation_scope) and (g.deleted_at is null or g.status = 'executing')) is not true
      order by g.id desc limit 1)
    union all
    (select 2, g.status::text from gen_durable.gen_durable g
      where g.correlation_key = target
        and (g.status = any (g.correlation_scope) and (g.deleted_at is null or g.status = 'executing')) is not true
      order by g.id desc limit 1)
    order by rank limit 1) found
$$;

-- The functions below take an id or a correlation key. They raise if there is no such instance, so that a caller who ignores the
-- answer notices. The default actor is evaluated by the caller, so it is the calling role, not the owner of the function.
create function gen_durable.resolve(target_id bigint, target_key text) returns bigint
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  found_id bigint;
begin
  if target_id is not null then
    select g.id into found_id from gen_durable.gen_durable g where g.id = target_id;
  else
    -- One statement: between two, a row that has ended may occupy its key again.
    select found.id into found_id from (
      select 0 as rank, g.id from gen_durable.gen_durable g
       where g.correlation_key = target_key and g.status = any (g.correlation_scope)
         and (g.deleted_at is null or g.status = 'executing')
      union all
      (select 1, g.id from gen_durable.gen_durable g
        where g.correlation_key = target_key and g.deleted_at is null
          and (g.status = any (g.correlation_scope) and (g.deleted_at is null or g.status = 'executing')) is not true
        order by g.id desc limit 1)
      union all
      (select 2, g.id from gen_durable.gen_durable g
        where g.correlation_key = target_key
          and (g.status = any (g.correlation_scope) and (g.deleted_at is null or g.status = 'executing')) is not true
        order by g.id desc limit 1)
      order by rank limit 1) found;
  end if;
  if found_id is null then
    raise exception 'there is no instance %', coalesce(target_id::text, quote_literal(left(target_key, 1024)))
      using errcode = 'GD003';
  end if;
  return found_id;
end $$;

-- cancel(42, 'no longer wanted') returns cancelled, requested, compensating or finished.
create function gen_durable.cancel(
  target bigint, reason text default null, actor text default current_user, force boolean default false, undo boolean default true)
returns text
language sql security definer set search_path = pg_catalog, pg_temp as $$
  select case when was in ('done', 'failed', 'cancelled') then 'finished' when status in ('cancelled', 'compensating')
              then status else 'requested' end
    from gen_durable.cancel_rows(array[gen_durable.resolve(target, null)], reason, actor, force, undo)
$$;

create function gen_durable.cancel(
  target text, reason text default null, actor text default current_user, force boolean default false, undo boolean default true)
returns text
language sql security definer set search_path = pg_catalog, pg_temp as $$
  select gen_durable.cancel(gen_durable.resolve(null, target), reason, actor, force, undo)
$$;

create function gen_durable.soft_delete(target bigint, reason text default null, actor text default current_user)
returns timestamptz
language sql security definer set search_path = pg_catalog, pg_temp as $$
  select deleted_at from gen_durable.delete_rows(array[gen_durable.resolve(target, null)], reason, actor)
$$;

create function gen_durable.soft_delete(target text, reason text default null, actor text default current_user)
returns timestamptz
language sql security definer set search_path = pg_catalog, pg_temp as $$
  select gen_durable.soft_delete(gen_durable.resolve(null, target), reason, actor)
$$;

create function gen_durable.restore(target bigint, reason text default null, actor text default current_user)
returns text
language sql security definer set search_path = pg_catalog, pg_temp as $$
  select gen_durable.job_status(id) from gen_durable.restore_rows(array[gen_durable.resolve(target, null)], reason, actor)
$$;

create function gen_durable.restore(target text, reason text default null, actor text default current_user)
returns text
language sql security definer set search_path = pg_catalog, pg_temp as $$
  -- The latest deleted instance with the key, even if another instance occupies it now.
  select gen_durable.restore(coalesce(
    (select max(found.id) from (
       select g.id from gen_durable.gen_durable g
        where g.correlation_key = target and g.status = any (g.correlation_scope) and g.status = 'executing' and g.deleted_at is not null
       union all
       (select g.id from gen_durable.gen_durable g
         where g.correlation_key = target and g.deleted_at is not null
           and (g.status = any (g.correlation_scope) and (g.deleted_at is null or g.status = 'executing')) is not true
         order by g.id desc limit 1)) found),
    gen_durable.resolve(null, target)), reason, actor)
$$;

-- retry(42) returns whether the instance is retried.
create function gen_durable.retry(target bigint, state jsonb default null, reason text default null, actor text default current_user)
returns boolean
language sql security definer set search_path = pg_catalog, pg_temp as $$
  select is_retried
    from gen_durable.retry_rows(array[gen_durable.resolve(target, null)],
                                gen_durable.checked_payload(state, 'the new state')::text, null, reason, actor)
$$;

create function gen_durable.retry(target text, state jsonb default null, reason text default null, actor text default current_user)
returns boolean
language sql security definer set search_path = pg_catalog, pg_temp as $$
  select gen_durable.retry(gen_durable.resolve(null, target), state, reason, actor)
$$;

revoke execute on function
  gen_durable.cancel_rows, gen_durable.delete_rows, gen_durable.end_deleted,
  gen_durable.on_deleted, gen_durable.raise_key_conflict, gen_durable.restore_rows, gen_durable.retry_rows, gen_durable.edit_row, gen_durable.fork_row,
  gen_durable.job_status(bigint), gen_durable.job_status(text), gen_durable.resolve,
  gen_durable.cancel(bigint, text, text, boolean, boolean), gen_durable.cancel(text, text, text, boolean, boolean),
  gen_durable.soft_delete(bigint, text, text), gen_durable.soft_delete(text, text, text),
  gen_durable.restore(bigint, text, text), gen_durable.restore(text, text, text),
  gen_durable.retry(bigint, jsonb, text, text),
  gen_durable.retry(text, jsonb, text, text)
  from public;
