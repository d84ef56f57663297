-- Cancelling, deleting, restoring and retrying: what people and services do to instances, as functions that every producer
-- shares. Each is one transaction over any number of instances; row locks are taken as everywhere: ids descending, children
-- before parents.

-- Cancel instances. What is parked or runnable ends now; what executes is asked to, and ends so whatever its step returns, or
-- ends now if forced: then the lease is revoked, and its worker can commit nothing. One answer per instance that exists.
--   was      the status before
--   status   the status now: cancelled, executing (requested), or the end that it had already
create function gen_durable.cancel_rows(target_ids bigint[], reason text, actor text, force boolean)
returns table (id bigint, was text, status text, queues text[])
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  live    record;
  ending  bigint[];
  woken   text[];
begin
  reason := gen_durable.short_reason(reason);
  actor := gen_durable.checked_actor(actor);
  -- In a statement of its own: what follows sees the rows as they are under the lock.
  perform from gen_durable.gen_durable g where g.id = any (target_ids) order by g.id desc for no key update;
  return query
    select g.id, g.status::text, g.status::text, null::text[] from gen_durable.gen_durable g
     where g.id = any (target_ids) and g.status in ('done', 'failed', 'cancelled');
  select array_agg(g.id) as ids, array_agg(g.status::text) as statuses, array_agg(g.concurrency_key) as keys,
         array_agg(g.id) filter (where g.status <> 'executing' or force) as ending
    into live from gen_durable.gen_durable g
   where g.id = any (target_ids) and g.status not in ('done', 'failed', 'cancelled');
  if live.ids is null then
    return;
  end if;
  ending := coalesce(live.ending, '{}');
  update gen_durable.gen_durable g
     set cancel_requested_at = coalesce(g.cancel_requested_at, statement_timestamp()),
         cancel_reason = coalesce(g.cancel_reason, reason), cancelled_by = coalesce(g.cancelled_by, actor)
   where g.id = any (live.ids);
  insert into gen_durable.executions (instance_id, step_seq, execution, attempt, status, outcome, step, lease_owner,
                                      leased_at, lease_expires_at, started_at, finished_at)
  select g.id, g.step_seq + 1, g.execution + (g.status <> 'executing')::int, g.attempt, 'ABORTED', 'cancelled', g.step,
         g.locked_by, g.leased_at, g.lease_expires_at, g.started_at, statement_timestamp()
    from gen_durable.gen_durable g where g.id = any (ending);
  insert into gen_durable.audit_events (instance_id, event, actor, reason, data)
  select g.id, case when g.id = any (ending) then 'cancelled' else 'cancel_requested' end, actor, reason,
         case when g.id = any (ending) then jsonb_strip_nulls(jsonb_build_object(
           'step', g.step, 'step_seq', g.step_seq + 1, 'execution', g.execution + (g.status <> 'executing')::int,
           'attempt', g.attempt, 'worker', g.locked_by)) end
    from gen_durable.gen_durable g
   where g.id = any (live.ids) and (select s.audit from gen_durable.settings s) >= 'failures';
  update gen_durable.gen_durable g
     set execution = g.execution + (g.status <> 'executing')::int,
         status = 'cancelled', finished_at = statement_timestamp(), updated_at = statement_timestamp(),
         lease_token = null, lease_expires_at = null, locked_by = null, concurrency_slot = null, leased_at = null,
         started_at = null, presented = null, gated = false, rate_turn_at = null, children_pending = 0
   where g.id = any (ending);
  -- Two conditions that together are always true: each is that of an index.
  delete from gen_durable.signals s
   where s.target_id = any (ending) and s.consumed_seq is null or s.target_id = any (ending) and s.dedup_key is not null;
  woken := array(
             select gen_durable.join_parents(array_agg(g.parent_id), array_agg(g.parent_round)) from gen_durable.gen_durable g
              where g.id = any (ending) and g.parent_id is not null having count(*) > 0) || array(select gen_durable.ungate(live.keys));
  return query
    select row.id, row.was, case when row.id = any (ending) then 'cancelled' else row.was end, woken
      from unnest(live.ids, live.statuses) as row (id, was);
end $$;

-- Delete instances softly: they are never leased or signalled again, and hidden unless asked for. A live one is cancelled first,
-- else its parent would wait for ever; one that executes keeps its keys until its step has ended.
create function gen_durable.delete_rows(target_ids bigint[], reason text, actor text)
returns table (id bigint, deleted_at timestamptz, status text, queues text[])
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  woken text[] := '{}';
  one   record;
begin
  reason := gen_durable.short_reason(reason);
  for one in select * from gen_durable.cancel_rows(target_ids, reason, actor, false) loop
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

-- End the live instances that have a deleted_at, which is set by more than delete_rows: a plain UPDATE, an INSERT, a COPY. A row
-- that another transaction has locked is skipped: that transaction ends it, or the next call does. The queues that have work now.
--   most   how many at most; null: all
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
      select distinct unnest(c.queues) from gen_durable.cancel_rows(one.ids, one.reason, actor, false) c;
    insert into gen_durable.audit_events (instance_id, event, actor, reason)
    select row.id, 'deleted', actor, gen_durable.short_reason(one.reason) from unnest(one.ids) as row (id)
     where (select s.audit from gen_durable.settings s) >= 'failures';
  end loop;
end $$;

-- UPDATE ... SET deleted_at = now() makes the same change as soft_delete, in the transaction of the caller. Per statement: a
-- trigger per row would cost every commit and heartbeat a look at the old row, and one before the update also a lock. It fires
-- only for statements that set this column. With the rights of the owner: a role needs the right to update the column, no other.
create function gen_durable.on_deleted() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform gen_durable.end_deleted(null, session_user);
  return null;
end $$;
create trigger on_deleted after update of deleted_at on gen_durable.gen_durable
  for each statement execute function gen_durable.on_deleted();
-- In a session with session_replication_role = replica as well.
alter table gen_durable.gen_durable enable always trigger on_deleted;

-- Say who has the key that keeps an instance from coming back: an error in any case, also if that one has just gone.
--   back_as   the status in which they would be back; null: as they are
create function gen_durable.raise_key_conflict(target_ids bigint[], verb text, back_as gen_durable.durable_status) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  holder record;
begin
  select g.id as target_id, other.* into holder from gen_durable.gen_durable g cross join lateral (
    select h.id, h.fsm, 'correlation_key' as key from gen_durable.gen_durable h
     where h.correlation_guard = g.correlation_key and coalesce(back_as, g.status) = any (g.correlation_scope)
    union all
    select h.id, h.fsm, 'unique_key' from gen_durable.gen_durable h
     where h.unique_guard = g.unique_key and coalesce(back_as, g.status) = any (g.unique_scope)) other
   where g.id = any (target_ids) and other.id <> g.id order by g.id, other.id limit 1;
  if not found then
    raise exception 'cannot %: two of these instances have one key, or another one has just had it', verb
      using errcode = 'GD004', hint = format('%s them one by one', verb);
  end if;
  raise exception 'cannot % instance %: its % belongs to % % now', verb, holder.target_id, holder.key, holder.fsm, holder.id
    using errcode = 'GD004', hint = format('delete %s first, or insert this one anew under another key', holder.id),
          detail = json_build_object('id', holder.id, 'fsm', holder.fsm, 'key', holder.key)::text;
end $$;

-- Undo a soft delete. The instance stays what it became, cancelled if it was live; retry makes it go on. A key that somebody
-- else has taken meanwhile is an error of the whole call.
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

-- Let failed or cancelled instances go on at the step where they ended, with a fresh count of attempts, optionally with another
-- state. One answer per instance; is_retried is false for one that is live, done or deleted, and for one whose state was
-- collected, unless it gets another.
--   * What waited for a signal, or was woken by one, waits for it again: the inbox went with the end, and no step may take a
--     signal for granted that it does not see. It waits until the deadline that it had. One that the clock woke runs.
--   * A parent with live children waits for them again, and sees those of its round when it runs.
--   * A child whose parent waits for its round, or waits for the first or the next try of the step that joins, is waited for again.
--     A parent that executes is left alone: its worker loads the children, and gives the row back if one is live (`rejoin`).
create function gen_durable.retry_rows(target_ids bigint[], new_state text, reason text, actor text)
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
  -- With the children that may end at this moment, and with the parents, whatever their status: if one of these is retried at
  -- this moment, whoever comes second sees what the first has done. In one statement, children first, as everywhere.
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
  -- Parents that were released: they wait again, and leave the line of their key.
  parked := array(select p.id from gen_durable.gen_durable p
                   where p.id in (select child.parent_id from gen_durable.gen_durable child
                                   where child.id = any (retried) and child.parent_round = p.spawn_round)
                     and p.status = 'runnable' and p.spawn_round = p.step_seq);
  update gen_durable.gen_durable p set children_pending = p.children_pending + again.children
    from (select child.parent_id, child.parent_round, count(*)::int as children from gen_durable.gen_durable child
           where child.id = any (retried) and child.parent_id is not null group by child.parent_id, child.parent_round) again
   where p.id = again.parent_id and p.spawn_round = again.parent_round and p.status = 'awaiting_children';
  -- A stop is a transition, poison and cancel are none: after a stop the children of the step that failed are a round behind.
  update gen_durable.gen_durable child set parent_round = p.step_seq
    from gen_durable.gen_durable p
   where p.id = any (retried) and p.status = 'failed' and p.crash_count = 0 and p.spawn_round = p.step_seq - 1
     and child.parent_id = p.id and child.parent_round = p.spawn_round;
  update gen_durable.executions e set retried_at = statement_timestamp()
    from gen_durable.gen_durable g
   where g.id = any (retried) and e.instance_id = g.id and e.step_seq = g.step_seq and e.status in ('COMMITTED', 'DONE')
     and e.outcome = 'stop';
  update gen_durable.executions e set retried_at = statement_timestamp()
    from gen_durable.gen_durable g
   where g.id = any (retried) and e.instance_id = g.id and e.step_seq = g.step_seq + 1 and e.status = 'ABORTED'
     and e.outcome in ('cancelled', 'poison') and e.retried_at is null;
  begin
    update gen_durable.gen_durable g
       set status = case when g.awaits is not null and not g.timed_out then 'awaiting_signal'::gen_durable.durable_status
                         else 'runnable' end,
           spawn_round = case when g.status = 'failed' and g.crash_count = 0 and g.spawn_round = g.step_seq - 1
                              then g.step_seq else g.spawn_round end,
           state = coalesce(new_state::jsonb, g.state), attempt = 0, crash_count = 0, result = null,
           last_error = null, error = null, eligible_at = statement_timestamp(), finished_at = null, collected_at = null,
           cancel_requested_at = null, cancel_reason = null, cancelled_by = null, updated_at = statement_timestamp()
     where g.id = any (retried);
  exception when unique_violation then
    perform gen_durable.raise_key_conflict(retried, 'retry', 'runnable');
  end;
  -- Every live child counts, not only those that are retried now: one may have been retried while its parent executed.
  update gen_durable.gen_durable p set status = 'awaiting_children', children_pending = live.children, gated = false
    from (select child.parent_id, child.parent_round, count(*)::int as children from gen_durable.gen_durable child
           where child.parent_id = any (retried || parked) and child.status not in ('done', 'failed', 'cancelled')
           group by child.parent_id, child.parent_round) live
   where p.id = live.parent_id and p.spawn_round = live.parent_round and p.spawn_round = p.step_seq;
  if parked <> '{}' then
    perform gen_durable.ungate(array(select g.concurrency_key from gen_durable.gen_durable g
                                      where g.id = any (parked) and g.concurrency_key is not null));
  end if;
  insert into gen_durable.audit_events (instance_id, event, actor, reason)
  select retry.id, 'retried', actor, reason from unnest(retried) as retry (id)
   where (select s.audit from gen_durable.settings s) >= 'failures';
  return query
    select g.id, g.id = any (retried), g.status::text, g.queue from gen_durable.gen_durable g where g.id = any (target_ids);
end $$;

-- How a job stands, in the words of simple workflows: pending, leased, succeeded, failed, cancelled; null if there is none. By
-- key, the job that has it now, or else the latest that had it.
create function gen_durable.job_status(target bigint) returns text
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select gen_durable.job_status_name(g.status::text) from gen_durable.gen_durable g where g.id = target
$$;

create function gen_durable.job_status(target text) returns text
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select gen_durable.job_status_name(found.status) from (
    select 0 as rank, g.status::text as status from gen_durable.gen_durable g where g.correlation_guard = target
    union all
    (select 1, g.status::text from gen_durable.gen_durable g
      where g.correlation_key = target and g.deleted_at is null order by g.id desc limit 1)
    union all
    (select 2, g.status::text from gen_durable.gen_durable g where g.correlation_key = target order by g.id desc limit 1)
    order by rank limit 1) found
$$;

-- The same for people and for services in other languages, by id or by correlation key. Nobody there is an error, so that a
-- caller who does not look at the answer is not deceived. A default is worked out by the caller: the actor is the role that
-- calls, not the owner of the function.
create function gen_durable.resolve(target_id bigint, target_key text) returns bigint
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  found_id bigint;
begin
  if target_id is not null then
    select g.id into found_id from gen_durable.gen_durable g where g.id = target_id;
  else
    select g.id into found_id from gen_durable.gen_durable g where g.correlation_guard = target_key;
    if found_id is null then
      select g.id into found_id from gen_durable.gen_durable g
       where g.correlation_key = target_key and g.deleted_at is null order by g.id desc limit 1;
    end if;
    if found_id is null then
      select g.id into found_id from gen_durable.gen_durable g
       where g.correlation_key = target_key order by g.id desc limit 1;
    end if;
  end if;
  if found_id is null then
    raise exception 'there is no instance %', coalesce(target_id::text, quote_literal(left(target_key, 1024)))
      using errcode = 'GD003';
  end if;
  return found_id;
end $$;

-- cancel(42, 'no longer wanted') -> cancelled | requested | finished
create function gen_durable.cancel(target bigint, reason text default null, actor text default current_user, force boolean default false)
returns text
language sql security definer set search_path = pg_catalog, pg_temp as $$
  select case when was in ('done', 'failed', 'cancelled') then 'finished' when status = 'cancelled' then 'cancelled'
              else 'requested' end
    from gen_durable.cancel_rows(array[gen_durable.resolve(target, null)], reason, actor, force)
$$;

create function gen_durable.cancel(target text, reason text default null, actor text default current_user, force boolean default false)
returns text
language sql security definer set search_path = pg_catalog, pg_temp as $$
  select gen_durable.cancel(gen_durable.resolve(null, target), reason, actor, force)
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
  -- Whoever is deleted and had the key, even if another instance has it now.
  select gen_durable.restore(coalesce(
    (select g.id from gen_durable.gen_durable g where g.correlation_key = target and g.deleted_at is not null
      order by g.id desc limit 1), gen_durable.resolve(null, target)), reason, actor)
$$;

-- retry(42) -> whether it goes on
create function gen_durable.retry(target bigint, state jsonb default null, reason text default null, actor text default current_user)
returns boolean
language sql security definer set search_path = pg_catalog, pg_temp as $$
  select is_retried
    from gen_durable.retry_rows(array[gen_durable.resolve(target, null)],
                                gen_durable.checked_payload(state, 'the new state')::text, reason, actor)
$$;

create function gen_durable.retry(target text, state jsonb default null, reason text default null, actor text default current_user)
returns boolean
language sql security definer set search_path = pg_catalog, pg_temp as $$
  select gen_durable.retry(gen_durable.resolve(null, target), state, reason, actor)
$$;

revoke execute on function
  gen_durable.cancel_rows, gen_durable.delete_rows, gen_durable.end_deleted,
  gen_durable.on_deleted, gen_durable.raise_key_conflict, gen_durable.restore_rows, gen_durable.retry_rows,
  gen_durable.job_status(bigint), gen_durable.job_status(text), gen_durable.resolve,
  gen_durable.cancel(bigint, text, text, boolean), gen_durable.cancel(text, text, text, boolean),
  gen_durable.soft_delete(bigint, text, text), gen_durable.soft_delete(text, text, text),
  gen_durable.restore(bigint, text, text), gen_durable.restore(text, text, text),
  gen_durable.retry(bigint, jsonb, text, text),
  gen_durable.retry(text, jsonb, text, text)
  from public;
