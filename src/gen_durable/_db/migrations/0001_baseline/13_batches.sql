-- Batches: a change of many instances, page by page. The row has what is selected, how far the batch is and what it has done, and a
-- page changes it in its own transaction. So another process continues after a crash: no instance is counted twice or left out.
-- A replay changes dead letters of the outbox: its ids are their numbers.
--
-- A batch visits the matching ids in one direction: ascending for cancel, delete and restore, so that no cancelled child releases a
-- parent that is cancelled next; descending for retry, so that a parent waits for children that were retried before.
create table gen_durable.batches (
  id               bigint generated always as identity primary key,
  verb             text not null,
  selection        jsonb not null,                        -- version, and filter (the fields of search.Filter), ids, or sink
                                                          -- (of the dead letters of a replay; null: any)
  options          jsonb not null default '{}',           -- cancel: force, undo, cascade; retry: state, step; replay: sink
  actor            text,
  reason           text,
  expected         bigint,                                -- what the preview counted; null: not given
  total            bigint not null,                       -- matching instances at the start, without descendants of a cascade
  newest           bigint not null,                       -- the largest id that it may visit: later instances do not belong to it
  after_id         bigint,                                -- the last visited id; null: none yet
  pending          bigint[] not null default '{}',        -- visited, but locked by another transaction: to be tried again
  levels           jsonb not null default '[]',           -- of a cascade: parents whose children are visited next, with the last
                                                          -- visited child; innermost last
  pages            bigint not null default 0,             -- committed pages: the guard of the next one
  outcomes         jsonb not null default '{}',           -- number of instances by what happened to them
  lease_token      bigint not null default 0,             -- counts runners: a runner that lost its lease commits no page
  runner           text,
  lease_expires_at timestamptz,                           -- null: no process runs it
  created_at       timestamptz not null default statement_timestamp(),
  started_at       timestamptz,
  updated_at       timestamptz not null default statement_timestamp(),
  finished_at      timestamptz,                           -- null: not ended
  stopped_at       timestamptz,                           -- also set if it was stopped before its end
  stopped_by       text,
  last_error       text,
  constraint batch_verb check (verb in ('cancel', 'retry', 'delete', 'restore', 'replay')),
  constraint stopped_is_finished check (stopped_at is null or finished_at is not null)
) with (fillfactor = 50);
create index batches_unfinished on gen_durable.batches (id) where finished_at is null;
create index batches_finished on gen_durable.batches (finished_at) where finished_at is not null;

-- Add outcomes of instances to the numbers of a batch by outcome.
create function gen_durable.add_outcomes(numbers jsonb, outcomes text[]) returns jsonb
language sql immutable
return numbers || coalesce((
  select jsonb_object_agg(counted.outcome, coalesce((numbers ->> counted.outcome)::bigint, 0) + counted.number)
    from (select one.outcome, count(*) as number from unnest(outcomes) as one (outcome) group by one.outcome) counted), '{}');

-- Change the next instances of a batch, and store how far it is. One row if it did; none if the caller has lost the lease, another
-- call has committed this page, or the batch has ended. A batch must not delay the engine: instances that another transaction has
-- locked are skipped and stay `pending`, and locks of parents and keys are awaited for 1 s (lock_timeout).
-- Locks: the row of the batch; then the instances, ids descending, and what the verb locks; or the events, ids ascending.
--   page          the number of pages that the caller has seen
--   ids           pending ones, and the next ones in the order of the walk
--   visited       the last id of the walk, or of the innermost level, that this page visits; null: unchanged
--   is_exhausted  no id of the walk, or of the innermost level, is left behind these
--   skipped       do not change these instances, count them as this
--   problem       why, for last_error
--   alive_for     renew the lease for this time
create function gen_durable.batch_page(
  target bigint, token bigint, page bigint, ids bigint[], visited bigint, is_exhausted boolean, skipped text, problem text,
  alive_for interval)
returns table (queues text[])
language plpgsql set search_path = pg_catalog, pg_temp set lock_timeout = '1s' as $$
#variable_conflict use_column
declare
  batch       record;
  level       jsonb;
  locked      bigint[] := '{}';
  taken       bigint[] := '{}';
  was_deleted bigint[];
  requested   bigint[];
  last_event  bigint;
  changed     record;
begin
  select b.* into batch from gen_durable.batches b
   where b.id = target and b.lease_token = token and b.pages = page and b.finished_at is null for update;
  if not found then
    return;
  end if;
  select null::text[] as outcomes, null::text[] as queues, null::jsonb as parents into changed;
  if skipped is not null then
    changed.outcomes := array_fill(skipped, array[cardinality(ids)]);
  elsif batch.verb = 'replay' then
    taken := array(select one.id from (
      select o.id from gen_durable.outbox o where o.id = any (ids) and o.dead_at is not null order by o.id for no key update skip locked) one);
    locked := array(select o.id from gen_durable.outbox o where o.id = any (ids) and o.dead_at is not null and o.id <> all (taken));
    perform gen_durable.replay_rows(taken, batch.reason, batch.actor, jsonb_build_object('batch', batch.id));
    -- The others were replayed by another caller.
    changed.outcomes := array_fill('replayed'::text, array[cardinality(taken)])
      || array_fill('left'::text, array[cardinality(ids) - cardinality(taken) - cardinality(locked)]);
  elsif ids <> '{}' then
    taken := array(select one.id from (
      select g.id from gen_durable.gen_durable g where g.id = any (ids) order by g.id desc for no key update skip locked) one);
    locked := array(select g.id from gen_durable.gen_durable g where g.id = any (ids) and g.id <> all (taken));
    was_deleted := array(select g.id from gen_durable.gen_durable g where g.id = any (taken) and g.deleted_at is not null);
    requested := array(select g.id from gen_durable.gen_durable g where g.id = any (taken) and g.cancel_requested_at is not null);
    -- Under the locks: later events of these instances are those of this page.
    select coalesce(max(a.id), 0) into last_event from gen_durable.audit_events a;
    if batch.verb = 'cancel' then
      with answers as materialized (
        select c.id, c.queues,
               case when c.was in ('done', 'failed', 'cancelled') then 'finished'
                    when c.status in ('compensating', 'cancelled') then c.status
                    when c.id = any (requested) then 'left' else 'requested' end as outcome
          from gen_durable.cancel_rows(taken, batch.reason, batch.actor, coalesce((batch.options ->> 'force')::boolean, false),
                                       coalesce((batch.options ->> 'undo')::boolean, true)) c
      )
      select (select array_agg(outcome) from answers) as outcomes,
             (select array_agg(distinct queue) from answers, unnest(answers.queues) as queue) as queues,
             -- The children of an instance that runs undo steps may be part of its undo.
             (select jsonb_agg(a.id order by a.id) from answers a where a.outcome <> 'compensating') as parents
        into changed;
    elsif batch.verb = 'retry' then
      with answers as materialized (
        select r.queue, case when r.is_retried then 'retried' else 'left' end as outcome
          from gen_durable.retry_rows(taken, (batch.options -> 'state')::text, batch.options ->> 'step', batch.reason, batch.actor) r
      )
      select (select array_agg(outcome) from answers) as outcomes,
             (select array_agg(distinct queue) from answers where outcome = 'retried') as queues, null::jsonb as parents
        into changed;
    elsif batch.verb = 'delete' then
      with answers as materialized (
        select d.queues, case when d.id = any (was_deleted) then 'left' else 'deleted' end as outcome
          from gen_durable.delete_rows(taken, batch.reason, batch.actor) d
      )
      select (select array_agg(outcome) from answers) as outcomes,
             (select array_agg(distinct queue) from answers, unnest(answers.queues) as queue) as queues, null::jsonb as parents
        into changed;
    else
      with answers as materialized (
        select case when r.id = any (was_deleted) then 'restored' else 'left' end as outcome
          from gen_durable.restore_rows(taken, batch.reason, batch.actor) r
      )
      select (select array_agg(outcome) from answers) as outcomes,
             null::text[] as queues, null::jsonb as parents
        into changed;
    end if;
    update gen_durable.audit_events a set data = coalesce(a.data, '{}') || jsonb_build_object('batch', batch.id)
     where a.instance_id = any (taken) and a.id > last_event;
  end if;
  if skipped is null and batch.verb <> 'replay' then
    changed.outcomes := changed.outcomes || array_fill('missing'::text, array[cardinality(ids) - cardinality(taken) - cardinality(locked)]);
  end if;
  batch.outcomes := gen_durable.add_outcomes(batch.outcomes, changed.outcomes);
  batch.pending := array(
    select one.id from unnest(batch.pending) with ordinality as one (id, number) where one.id <> all (ids) order by one.number) || locked;
  if batch.levels = '[]' then
    batch.after_id := coalesce(visited, batch.after_id);
    if is_exhausted and batch.pending = '{}'
       and (changed.parents is null or not coalesce((batch.options ->> 'cascade')::boolean, false)) then
      batch.finished_at := statement_timestamp();
    end if;
  else
    level := batch.levels -> -1;
    batch.levels := batch.levels - -1;
    if not is_exhausted then
      batch.levels := batch.levels
        || jsonb_build_array(level || jsonb_build_object('after', coalesce(visited, (level ->> 'after')::bigint)));
    end if;
  end if;
  if changed.parents is not null and coalesce((batch.options ->> 'cascade')::boolean, false) then
    batch.levels := batch.levels || jsonb_build_array(jsonb_build_object('parents', changed.parents, 'after', 0));
  end if;
  update gen_durable.batches b
     set outcomes = batch.outcomes, pending = batch.pending, levels = batch.levels, after_id = batch.after_id,
         finished_at = batch.finished_at, pages = b.pages + 1, updated_at = statement_timestamp(),
         last_error = coalesce(problem, b.last_error),
         runner = case when batch.finished_at is null then b.runner end,
         lease_expires_at = case when batch.finished_at is null then statement_timestamp() + alive_for end
   where b.id = target;
  if batch.finished_at is not null then
    perform gen_durable.audit_action('batch:' || batch.id, 'finished', batch.reason, batch.actor, batch.outcomes);
  end if;
  queues := coalesce(changed.queues, '{}');
  return next;
end $$;

-- Start a batch: nothing is changed until a process runs it.
create function gen_durable.start_batch(
  verb text, selection jsonb, options jsonb, reason text, actor text, expected bigint, total bigint, newest bigint)
returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
  made bigint;
begin
  insert into gen_durable.batches as b (verb, selection, options, reason, actor, expected, total, newest)
  values (verb, selection, options, gen_durable.short_reason(reason), gen_durable.checked_actor(actor), expected, total, newest)
  returning b.id into made;
  perform gen_durable.audit_action('batch:' || made, 'started', reason, actor,
                                   jsonb_build_object('verb', verb, 'total', total) || (selection - 'ids') - 'version');
  return made;
end $$;

-- Stop a batch before its next page. A page that runs is committed first, because it has locked the batch. What it has changed stays.
create function gen_durable.stop_batch(target bigint, reason text, actor text) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
  so_far jsonb;
begin
  update gen_durable.batches b
     set stopped_at = statement_timestamp(), finished_at = statement_timestamp(), updated_at = statement_timestamp(),
         stopped_by = gen_durable.checked_actor(actor), runner = null, lease_expires_at = null
   where b.id = target and b.finished_at is null
  returning b.outcomes into so_far;
  if not found then
    return false;
  end if;
  perform gen_durable.audit_action('batch:' || target, 'stopped', reason, actor, so_far);
  return true;
end $$;

revoke execute on function
  gen_durable.batch_page, gen_durable.add_outcomes, gen_durable.start_batch, gen_durable.stop_batch
  from public;
