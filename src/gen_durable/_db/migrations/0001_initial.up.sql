-- The instances, their inboxes, and the verbs that producers in any language may call.
--
-- Every function pins its search_path, so that no operator or function of another schema can take the place of one of PostgreSQL's
-- in the session of its caller. A SET clause keeps a function from being inlined; the small ones that have to be are written as
-- RETURN, whose names are bound when the function is created. The same holds for views, defaults, constraints and indexes, so
-- migrations run on the pinned path, too.
--
-- Two rules shape this file. No foreign keys: whoever writes a signal or a child holds the lock of its target or parent,
-- so a key would only add cost to every commit. And no index names a column that a chained commit or a heartbeat
-- changes (step, state, step_seq, attempt, lease_token, lease_expires_at ...), because then those updates stay HOT.

create type gen_durable.durable_status as enum
  ('runnable', 'executing', 'awaiting_signal', 'awaiting_children', 'done', 'failed', 'cancelled');

create table gen_durable.gen_durable (
  id                  bigint generated always as identity (cache 1) primary key,  -- cache 1: a child's id is above its parent's
  fsm                 text not null,                      -- the machine's name
  fsm_version         int not null default 1,
  step                text not null,                      -- the step to run next, or running now
  status              gen_durable.durable_status not null default 'runnable',
  state               jsonb not null default '{}',
  result              jsonb,                              -- set by done
  awaits              text[],                             -- the signals that the last await named; kept until the woken step progresses, and by ends
  presented           bigint[],                           -- signals that the parking execution had already seen: they do not wake it again
  await_deadline      timestamptz,                        -- of the last await; it counts for as long as awaits is kept
  timed_out           boolean not null default false,     -- the deadline ended the last await, and no awaited signal has come since
  has_signals         boolean not null default false,     -- sticky: without it neither pick nor park looks at the inbox
  -- Unread signals and their bytes: upper bounds. Deliveries add to them, and count anew when a bound reaches its limit; commits
  -- that consume signals leave them alone.
  inbox_count         int not null default 0,
  inbox_bytes         bigint not null default 0,

  -- scheduling
  queue               text not null default 'default',
  priority            smallint not null default 0,        -- lower runs earlier
  eligible_at         timestamptz not null default statement_timestamp(),
  attempt             int not null default 0,             -- tries of the current step before this one
  crash_count         int not null default 0,             -- processes lost in the current step
  max_attempts        int,
  schedule            text,                               -- the schedule that inserted it
  slot_at             timestamptz,                        -- ... and the slot that it stands for
  last_error          text,
  error               jsonb,
  traceparent         text,                               -- W3C trace context of whoever inserted it: its spans belong there
  rate_limit          text,                               -- the bucket that the start of this step takes tokens from: a limit, or limit:partition
  weight              int,                                -- how many; null: 1
  turn                timestamptz,                        -- its place in the plan of that bucket; null: it has none
  concurrency_key     text collate "C",                   -- so that the keys of one limit are one range
  concurrency_slot    smallint,                           -- the slot of its key that an executing row holds
  gated               boolean not null default false,     -- denied by a busy key: out of the pick index until the key is free

  -- the live execution
  step_seq            bigint not null default 0,          -- committed transitions so far
  execution           int not null default 0,             -- executions so far, the live one included
  lease_token         bigint,                             -- random per pick; every write of an execution names it
  lease_expires_at    timestamptz,
  locked_by           text,                               -- for people; safety is the token's

  -- children
  parent_id           bigint,
  parent_round        bigint,                             -- the spawn_round of the parent that this child belongs to
  spawn_round         bigint,                             -- step_seq of the last spawn; its children show while it equals step_seq
  children_pending    int not null default 0,

  -- identity
  correlation_key     text,
  correlation_scope   gen_durable.durable_status[],
  correlation_guard   text generated always as (
    case when correlation_key is not null and status = any (correlation_scope)
          and (deleted_at is null or status = 'executing') then correlation_key end) stored,
  unique_key          bytea,
  unique_scope        gen_durable.durable_status[],
  unique_guard        bytea generated always as (
    case when unique_key is not null and status = any (unique_scope)
          and (deleted_at is null or status = 'executing') then unique_key end) stored,

  -- ends
  cancel_requested_at timestamptz,
  cancel_reason       text,
  cancelled_by        text,
  deleted_at          timestamptz,
  delete_reason       text,
  inserted_at         timestamptz not null default statement_timestamp(),
  updated_at          timestamptz not null default statement_timestamp(),
  finished_at         timestamptz,
  collected_at        timestamptz,                        -- state and result are gone; the row stays for a key that it still occupies

  -- With this every guard may say lease_token = ... and leave status out; a guard that names status = 'executing' invites
  -- the planner into the tiny partial index of executing rows, which is full of dead entries.
  constraint leased_iff_executing check ((status = 'executing') = (lease_token is not null)),
  constraint slot_only_while_executing check (concurrency_slot is null or status = 'executing'),
  constraint children_never_negative check (children_pending >= 0),
  -- A key that is occupied in one live status is occupied in all of them, so no transition between live statuses can
  -- collide inside somebody's group commit.
  constraint scopes_without_gap check (
    (unique_scope is null or unique_scope = '{}'
      or unique_scope @> '{runnable,executing,awaiting_signal,awaiting_children}')
    and (correlation_scope is null or correlation_scope = '{}'
      or correlation_scope @> '{runnable,executing,awaiting_signal,awaiting_children}'))
) with (
  fillfactor = 70,                                        -- room for the next version of a row on its own page
  autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 1,
  autovacuum_vacuum_insert_scale_factor = 0.1, autovacuum_analyze_scale_factor = 0.05);

create index gen_durable_pick on gen_durable.gen_durable (queue, priority, eligible_at, id)
  where status = 'runnable' and not gated;
-- The work of a machine, in a queue or by the prefix of a name: collated "C", so that a prefix is a range. The queue stands before
-- the version, so that what waits in a paused one is in nobody's way.
create index gen_durable_machine on gen_durable.gen_durable (fsm collate "C", queue, fsm_version, priority, eligible_at, id)
  where status = 'runnable' and not gated;
create index gen_durable_lease on gen_durable.gen_durable (id) where status = 'executing';
create unique index gen_durable_slot on gen_durable.gen_durable (concurrency_key, concurrency_slot)
  where concurrency_slot is not null;
create index gen_durable_line on gen_durable.gen_durable (concurrency_key, priority, eligible_at, id)
  where status = 'runnable' and concurrency_key is not null;
create index gen_durable_gated on gen_durable.gen_durable (concurrency_key, priority, eligible_at, id)
  where status = 'runnable' and gated;
create index gen_durable_limited on gen_durable.gen_durable (rate_limit, queue, priority, eligible_at, id)
  where status = 'runnable' and not gated and rate_limit is not null;
create index gen_durable_turn on gen_durable.gen_durable (rate_limit, queue, turn)
  where status = 'runnable' and turn is not null;
create unique index gen_durable_unique on gen_durable.gen_durable (unique_guard) where unique_guard is not null;
create unique index gen_durable_correlation on gen_durable.gen_durable (correlation_guard)
  where correlation_guard is not null;
create index gen_durable_key on gen_durable.gen_durable (correlation_key, id) where correlation_key is not null;
create index gen_durable_parent on gen_durable.gen_durable (parent_id, parent_round) where parent_id is not null;
create index gen_durable_deadline on gen_durable.gen_durable (await_deadline)
  where status = 'awaiting_signal' and await_deadline is not null;
create index gen_durable_finished on gen_durable.gen_durable (status, finished_at, id)
  where finished_at is not null and deleted_at is null and collected_at is null;
create index gen_durable_deleted on gen_durable.gen_durable (deleted_at, id)
  where deleted_at is not null and finished_at is not null;

create table gen_durable.signals (
  id           bigint generated always as identity primary key,
  target_id    bigint not null,
  name         text not null,
  payload      jsonb not null default 'null',
  size         int generated always as (octet_length(payload::text)) stored,  -- bytes of JSON; known without reading the payload
  dedup_key    text,
  consumed_seq bigint,                                    -- the transition that consumed it; such rows stay only for their dedup_key
  traceparent  text,                                      -- W3C trace context of the sender
  inserted_at  timestamptz not null default statement_timestamp()
) with (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

create unique index signals_dedup on gen_durable.signals (target_id, dedup_key) where dedup_key is not null;
create index signals_target on gen_durable.signals (target_id, name) where consumed_seq is null;

-- What workers have registered, so that a producer in SQL need not know where a machine begins or waits, nor a reaper who is to
-- hear of its failures.
create table gen_durable.machines (
  fsm          text not null,
  fsm_version  int not null,
  initial_step text not null,
  queue        text not null,
  dead_letter  text,                                      -- the job that gets what an instance leaves when it fails
  updated_at   timestamptz not null default statement_timestamp(),
  primary key (fsm, fsm_version)
);

-- Instances as clients read them: the columns that are of use to people, in types that every driver knows.
create view gen_durable.snapshots as
select g.id, g.fsm, g.fsm_version, g.step, g.status::text as status, g.state::text as state, g.result::text as result,
       g.attempt, g.step_seq, g.crash_count, g.queue, g.priority,
       -- Both are kept longer than they hold, for a retry: what has ended awaits nothing, what was woken has no deadline.
       case when g.finished_at is null then g.awaits end as awaits,
       case when g.status = 'awaiting_signal' then g.await_deadline end as await_deadline, g.children_pending,
       g.last_error, g.error::text as error, g.correlation_key, g.unique_key, g.concurrency_key, g.rate_limit, g.weight,
       g.parent_id, g.locked_by,
       g.inserted_at, g.updated_at, g.eligible_at, g.finished_at, g.cancel_requested_at, g.cancel_reason, g.cancelled_by,
       g.deleted_at, g.delete_reason, g.schedule, g.slot_at, g.collected_at
  from gen_durable.gen_durable g;

-- Insert many: one answer per input, numbered by its place. A refused row (its key is taken) answers with the id and the
-- machine of the holder. One statement for the rows, one more only if some were refused.
--   parent_ids, parent_rounds   children of one commit; null for everybody else
create function gen_durable.insert_rows(
  fsms text[], versions int[], steps text[], states text[], queues text[], priorities int[],
  eligible_ats timestamptz[], delays interval[], concurrency_keys text[],
  correlation_keys text[], correlation_scopes text[], unique_keys bytea[], unique_scopes text[], max_attempts int[],
  parent_ids bigint[], parent_rounds bigint[], traceparents text[] default null,
  rate_limits text[] default null, weights int[] default null)
returns table (ord bigint, id bigint, inserted boolean, queue text, holder_fsm text, holder_key text, holder_status text)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  todo    bigint[];
  refused bigint[];
begin
  if rate_limits is not null then
    perform gen_durable.check_limits(rate_limits, weights, must_exist => parent_ids is null);
  end if;
  -- A holder may end between the refusal and the look at it. Its key is free then, and the row is tried again.
  for round in 1 .. 10 loop
    refused := '{}';
    for ord, id, inserted, queue in
      with spec as materialized (
        select nextval('gen_durable.gen_durable_id_seq') as id, given.*
          from unnest(fsms, versions, steps, states, queues, priorities, eligible_ats, delays, concurrency_keys,
                      correlation_keys, correlation_scopes, unique_keys, unique_scopes, max_attempts, parent_ids,
                      parent_rounds, traceparents, rate_limits, weights)
               with ordinality as given (fsm, version, step, state, queue, priority, eligible_at, delay, concurrency_key,
                      correlation_key, correlation_scope, unique_key, unique_scope, max_attempts, parent_id,
                      parent_round, traceparent, rate_limit, weight, ord)
         where todo is null or exists (select from unnest(todo) as again (ord) where again.ord = given.ord)
      ), fresh as (
        insert into gen_durable.gen_durable
               (id, fsm, fsm_version, step, state, queue, priority, eligible_at, concurrency_key,
                correlation_key, correlation_scope, unique_key, unique_scope, max_attempts, parent_id, parent_round,
                traceparent, rate_limit, weight)
        overriding system value
        select spec.id, spec.fsm, spec.version, spec.step, spec.state::jsonb, spec.queue, spec.priority::smallint,
               coalesce(spec.eligible_at, statement_timestamp() + coalesce(spec.delay, '0')), spec.concurrency_key,
               spec.correlation_key, spec.correlation_scope::gen_durable.durable_status[],
               spec.unique_key, spec.unique_scope::gen_durable.durable_status[], spec.max_attempts, spec.parent_id,
               spec.parent_round, spec.traceparent, spec.rate_limit, spec.weight
          from spec
         order by spec.unique_key, spec.correlation_key, spec.ord    -- two batches with keys of one kind do not deadlock
            on conflict do nothing
        returning id
      ), noted as (
        insert into gen_durable.audit_events (instance_id, event, data)
        select spec.id, 'created', jsonb_strip_nulls(jsonb_build_object(
                 'machine', spec.fsm, 'version', spec.version, 'step', spec.step, 'queue', spec.queue,
                 'correlation_key', spec.correlation_key, 'parent_id', spec.parent_id))
          from spec join fresh on fresh.id = spec.id
         where (select s.audit from gen_durable.settings s) = 'all'
         order by spec.ord
      )
      select spec.ord, spec.id, fresh.id is not null, spec.queue from spec left join fresh on fresh.id = spec.id
    loop
      if inserted then
        return next;
      else
        refused := refused || ord;
      end if;
    end loop;
    exit when refused = '{}';

    todo := '{}';
    inserted := false;
    for ord, id, queue, holder_fsm, holder_key, holder_status in
      select given.ord, holder.id, holder.queue, holder.fsm, holder.key, holder.status
        from unnest(refused) as again (ord)
        join unnest(correlation_keys, correlation_scopes, unique_keys, unique_scopes) with ordinality
             as given (correlation_key, correlation_scope, unique_key, unique_scope, ord) on given.ord = again.ord
        left join lateral (                            -- a key with an empty scope is not taken by anybody
          select g.id, g.queue, g.fsm, 'correlation_key' as key, g.status::text as status from gen_durable.gen_durable g
           where g.correlation_guard = given.correlation_key and given.correlation_scope <> '{}'
          union all
          select g.id, g.queue, g.fsm, 'unique_key', g.status::text from gen_durable.gen_durable g
           where g.unique_guard = given.unique_key and given.unique_scope <> '{}'
          limit 1) holder on true
    loop
      if id is null then
        todo := todo || ord;
      else
        return next;
      end if;
    end loop;
    exit when todo = '{}';
  end loop;
  if refused <> '{}' and todo <> '{}' then
    raise exception 'an insert met a key that others kept taking and leaving' using errcode = '40001';
  end if;
end $$;

-- Instances of machines of which only the names are known: where they begin and wait is what their workers have registered, the
-- newest version of it; and if none has yet, what a plain job would be. The queues that have work now.
create function gen_durable.insert_letters(receivers text[], contents text[], traceparents text[]) returns setof text
language sql set search_path = pg_catalog, pg_temp as $$
  select letter.queue
    from (select array_agg(given.fsm order by given.ord) as fsms, array_agg(given.state order by given.ord) as states,
                 array_agg(coalesce(machine.fsm_version, 1) order by given.ord) as versions,
                 array_agg(coalesce(machine.initial_step, 'run') order by given.ord) as steps,
                 array_agg(coalesce(machine.queue, 'default') order by given.ord) as queues,
                 array_agg(0) as priorities, array_agg(given.traceparent order by given.ord) as traceparents
            from unnest(receivers, contents, traceparents) with ordinality as given (fsm, state, traceparent, ord)
            left join lateral (
              select m.* from gen_durable.machines m where m.fsm = given.fsm order by m.fsm_version desc limit 1) machine on true
         ) as filled
   cross join lateral gen_durable.insert_rows(
           filled.fsms, filled.versions, filled.steps, filled.states, filled.queues, filled.priorities,
           null, null, null, null, null, null, null, null, null, null, filled.traceparents) as letter
$$;

-- The letters of instances that have just failed without a word of their worker, because it died or its word was refused: who
-- gets one is known from what workers have registered. One that cannot be written must hold up nobody: it is told to the log.
create function gen_durable.leave_letters(failed_ids bigint[], attempts int[]) returns setof text
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  one record;
begin
  for one in
    select failed.id, failed.attempts, machine.dead_letter
      from unnest(failed_ids, attempts) as failed (id, attempts)
      join gen_durable.gen_durable g on g.id = failed.id and g.status = 'failed'
      join gen_durable.machines machine on machine.fsm = g.fsm and machine.fsm_version = g.fsm_version
     where machine.dead_letter is not null
     order by failed.id
  loop
    begin
      return query
        select gen_durable.insert_letters(array[one.dead_letter], array[jsonb_build_object(
                 'id', g.id, 'job', g.fsm, 'version', g.fsm_version, 'payload', g.state, 'error', g.last_error,
                 'attempts', one.attempts)::text], array[g.traceparent])
          from gen_durable.gen_durable g where g.id = one.id;
    exception when others then
      -- Races and outages are those of the whole transaction, which is tried again.
      if left(sqlstate, 2) in ('40', '53', '57', '58') or sqlstate = '55P03' then
        raise;
      end if;
      raise warning 'instance % has failed; its letter to % could not be written: %', one.id, one.dead_letter, sqlerrm;
    end;
  end loop;
end $$;

-- A status in the words of simple workflows.
create function gen_durable.job_word(status text) returns text
language sql immutable
return case status when 'runnable' then 'pending' when 'done' then 'succeeded' when 'failed' then 'failed'
                   when 'cancelled' then 'cancelled' else 'leased' end;

-- How many bytes of JSON one state or payload may have that comes in by the functions below: the default of settings.max_payload,
-- which binds the clients. The owner may replace this function; a setting of the session would be the producer's to change.
create function gen_durable.max_payload() returns int
language sql immutable return 1048576;

-- How many bytes of unread payloads one inbox may have: the default of settings.max_inbox, which binds the clients. The owner may
-- replace this function.
create function gen_durable.max_inbox() returns bigint
language sql immutable return 16777216;

-- A payload, if it is not too large. What is nested too deeply or holds endless numbers is left to the step that reads it.
create function gen_durable.checked_payload(payload jsonb, what text) returns jsonb
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  size constant int := octet_length(payload::text);
begin
  if size > gen_durable.max_payload() then
    raise exception '% has % bytes of JSON, at most % are allowed', what, size, gen_durable.max_payload()
      using errcode = 'GD005', hint = 'keep what is large elsewhere, and refer to it';
  end if;
  return payload;
end $$;

-- The work of insert_all. What is left out comes from the machine as its workers registered it: the newest version, the initial
-- step, the queue. A refused element answers with the instance that has its key, and the status of that instance. If that is an
-- instance of another machine, id and status are null, and taken_by says which: {"id": 17, "fsm": "Refund", "key": "unique_key"}.
--   any_step   false: refuse a start at any step but the registered initial one
create function gen_durable.insert_specs(specs jsonb, any_step boolean)
returns table (ord bigint, id bigint, inserted boolean, status text, taken_by jsonb)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  live  constant text[] := '{runnable,executing,awaiting_signal,awaiting_children}';
  every constant text[] := '{runnable,executing,awaiting_signal,awaiting_children,done,failed,cancelled}';
  batch record;
begin
  if jsonb_typeof(specs) is distinct from 'array' then
    raise exception 'insert_all takes a JSON array of objects, got %', coalesce(jsonb_typeof(specs), 'null')
      using errcode = '22023';
  end if;
  with given as (
    select element.ord, element.spec, machine.initial_step,
           element.spec ->> 'fsm' as fsm,
           coalesce((element.spec ->> 'version')::int, machine.fsm_version, 1) as version,
           coalesce(element.spec ->> 'step', machine.initial_step) as step,
           coalesce(element.spec -> 'state', '{}')::text as state,
           coalesce(element.spec ->> 'queue', machine.queue, 'default') as queue,
           coalesce((element.spec ->> 'priority')::int, 0) as priority,
           (element.spec ->> 'eligible_at')::timestamptz as eligible_at,
           (element.spec ->> 'schedule_in')::interval as delay,
           element.spec ->> 'concurrency_key' as concurrency_key,
           element.spec ->> 'correlation_key' as correlation_key,
           coalesce(element.spec ->> 'unique_key', element.spec ->> 'idempotency_key') as unique_key,
           (element.spec ->> 'max_attempts')::int as max_attempts,
           element.spec ->> 'traceparent' as traceparent,
           element.spec ->> 'rate_limit' as rate_limit, (element.spec ->> 'weight')::int as weight,
           array(select distinct jsonb_array_elements_text(element.spec -> 'correlation_scope')) as correlation_scope,
           array(select distinct jsonb_array_elements_text(element.spec -> 'unique_scope')) as unique_scope
      from jsonb_array_elements(specs) with ordinality as element (spec, ord)
      left join lateral (
        select m.* from gen_durable.machines m
         where m.fsm = element.spec ->> 'fsm'
           and (element.spec ->> 'version' is null or m.fsm_version = (element.spec ->> 'version')::int)
         order by m.fsm_version desc limit 1) machine on true
  ), checked as (
    select given.*,
           case when octet_length(coalesce(fsm, '')) not between 1 and 255 then 'fsm must be a name of 1 to 255 bytes'
                when step is null then format('no worker has registered machine %L%s: give a step, or start a worker once',
                                              fsm, coalesce(' version ' || (spec ->> 'version'), ''))
                when octet_length(step) not between 1 and 255 then 'step must be a name of 1 to 255 bytes'
                when octet_length(queue) not between 1 and 255 then 'queue must be a name of 1 to 255 bytes'
                when priority not between -32768 and 32767 then format('priority %s does not fit -32768 to 32767', priority)
                when version < 1 then format('version %s is below 1', version)
                when delay < '0' then format('schedule_in %s is negative', delay)
                when delay > '100 years' then format('schedule_in %s is longer than 100 years', delay)
                when eligible_at not between '0001-01-02 00:00+00' and '9999-12-30 00:00+00'
                  then format('eligible_at %s lies outside of the years 1 to 9999', eligible_at)
                when octet_length(concurrency_key) not between 1 and 1024 then 'concurrency_key must have 1 to 1024 bytes'
                when octet_length(correlation_key) not between 1 and 1024 then 'correlation_key must have 1 to 1024 bytes'
                when octet_length(unique_key) not between 1 and 1024 then 'unique_key must have 1 to 1024 bytes'
                when spec ? 'unique_key' and spec ? 'idempotency_key' then 'unique_key and idempotency_key are both given'
                when spec ? 'unique_scope' and spec ? 'idempotency_key'
                  then 'unique_scope is given, but an idempotency_key is taken in every status'
                when max_attempts < 1 then format('max_attempts %s is below 1', max_attempts)
                when traceparent !~ '^[0-9a-f]{2}(-[0-9a-f]{32})(-[0-9a-f]{16})(-[0-9a-f]{2})$'
                  then format('traceparent %L is not of the form 00-<32 hex digits>-<16>-<2>', left(traceparent, 80))
                when octet_length(rate_limit) not between 1 and 1024 then 'rate_limit must have 1 to 1024 bytes'
                when weight < 1 then format('weight %s is below 1', weight)
                when weight is not null and rate_limit is null then 'weight is given without rate_limit'
                else (select format('there is no option %L', left(option, 80)) from jsonb_object_keys(spec) as option
                       where option <> all ('{fsm,version,step,state,queue,priority,eligible_at,schedule_in,concurrency_key,
                                              correlation_key,correlation_scope,unique_key,unique_scope,
                                              idempotency_key,max_attempts,traceparent,rate_limit,weight}') limit 1)
           end as problem,
           case when any_step or step = initial_step then null
                when initial_step is null
                  then format('no worker has registered machine %L%s, and this role may not choose the step', fsm,
                              coalesce(' version ' || (spec ->> 'version'), ''))
                else format('machine %L starts at step %L, and this role may not choose another', fsm, initial_step)
           end as denial
      from given
  )
  select array_agg(fsm order by ord) as fsms, array_agg(version order by ord) as versions,
         array_agg(step order by ord) as steps, array_agg(state order by ord) as states,
         array_agg(queue order by ord) as queues, array_agg(priority order by ord) as priorities,
         array_agg(eligible_at order by ord) as eligible_ats, array_agg(delay order by ord) as delays,
         array_agg(concurrency_key order by ord) as concurrency_keys,
         array_agg(correlation_key order by ord) as correlation_keys,
         -- A scope that names some live status occupies all of them: a gap would let a transition collide.
         array_agg(case when correlation_key is null then null when not spec ? 'correlation_scope' then live
                        when correlation_scope = '{}' then '{}' else live || correlation_scope end::text
                   order by ord) as correlation_scopes,
         array_agg(convert_to(unique_key, 'UTF8') order by ord) as unique_keys,
         array_agg(case when unique_key is null then null when not spec ? 'unique_scope' then every
                        when unique_scope = '{}' then '{}' else live || unique_scope end::text
                   order by ord) as unique_scopes,
         array_agg(max_attempts order by ord) as max_attempts,
         array_agg(traceparent order by ord) as traceparents,
         case when count(rate_limit) > 0 then array_agg(rate_limit order by ord) end as rate_limits,
         array_agg(weight order by ord) as weights,
         (array_agg(format('element %s: %s', ord, problem) order by ord) filter (where problem is not null))[1] as problem,
         (array_agg(format('element %s: %s', ord, denial) order by ord) filter (where denial is not null))[1] as denial,
         (array_agg(format('element %s: state has %s bytes of JSON, at most %s are allowed', ord, octet_length(state),
                           gen_durable.max_payload())
                    order by ord) filter (where octet_length(state) > gen_durable.max_payload()))[1] as excess
    into batch
    from checked;
  if batch.problem is not null then
    raise exception 'nothing was inserted: %', batch.problem using errcode = '22023';
  elsif batch.denial is not null then
    raise exception 'nothing was inserted: %', batch.denial
      using errcode = '42501', hint = 'the owner of the schema grants the right "steps" by grant_producer';
  elsif batch.excess is not null then
    raise exception 'nothing was inserted: %', batch.excess
      using errcode = 'GD005', hint = 'keep what is large elsewhere, and refer to it';
  end if;
  return query
    select answer.ord, case when taken.by is null then answer.id end, answer.inserted,
           case when taken.by is null then gen_durable.job_word(coalesce(answer.holder_status, 'runnable')) end, taken.by
      from gen_durable.insert_rows(
             batch.fsms, batch.versions, batch.steps, batch.states, batch.queues, batch.priorities, batch.eligible_ats,
             batch.delays, batch.concurrency_keys, batch.correlation_keys, batch.correlation_scopes, batch.unique_keys,
             batch.unique_scopes, batch.max_attempts, null, null, batch.traceparents, batch.rate_limits, batch.weights) as answer
     cross join lateral (
       -- Only for refused rows: PostgreSQL walks the array to find an element.
       select case when answer.holder_fsm is not null and answer.holder_fsm <> batch.fsms[answer.ord]
                   then jsonb_build_object('id', answer.id, 'fsm', answer.holder_fsm, 'key', answer.holder_key) end as by) taken
     order by answer.ord;
end $$;

-- The two rights to insert, as functions that run with the rights of the owner (0003): from the initial step, or from any.
create function gen_durable.insert_from_start(specs jsonb)
returns table (ord bigint, id bigint, inserted boolean, status text, taken_by jsonb)
language sql set search_path = pg_catalog, pg_temp as $$
  select * from gen_durable.insert_specs(specs, false)
$$;

create function gen_durable.insert_from_any_step(specs jsonb)
returns table (ord bigint, id bigint, inserted boolean, status text, taken_by jsonb)
language sql set search_path = pg_catalog, pg_temp as $$
  select * from gen_durable.insert_specs(specs, true)
$$;

-- insert_all('[{"fsm": "Checkout", "state": {"order": 42}}, ...]') -> one row per element, in order.
-- Runs with the rights of the caller, which decide where an instance may start.
create function gen_durable.insert_all(specs jsonb)
returns table (ord bigint, id bigint, inserted boolean, status text, taken_by jsonb)
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if has_function_privilege('gen_durable.insert_from_any_step(jsonb)', 'execute') then
    return query select * from gen_durable.insert_from_any_step(specs);
  else
    return query select * from gen_durable.insert_from_start(specs);
  end if;
end $$;

-- insert('Checkout', '{"order": 42}', correlation_key => 'order:42') -> the id, new or of the instance that has the key, and the
-- status of that instance. A key that an instance of another machine has is an error.
create function gen_durable.insert(
  fsm text, state jsonb default '{}', step text default null, queue text default null, priority int default 0,
  version int default null, eligible_at timestamptz default null, schedule_in interval default null,
  correlation_key text default null, correlation_scope text[] default null,
  unique_key text default null, unique_scope text[] default null, concurrency_key text default null,
  max_attempts int default null, idempotency_key text default null, traceparent text default null,
  rate_limit text default null, weight int default null)
returns table (id bigint, inserted boolean, status text)
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  answer record;
begin
  select one.* into answer from gen_durable.insert_all(jsonb_build_array(jsonb_strip_nulls(jsonb_build_object(
    'fsm', fsm, 'step', step, 'queue', queue, 'priority', priority, 'version', version, 'eligible_at', eligible_at,
    'schedule_in', schedule_in, 'correlation_key', correlation_key, 'correlation_scope', correlation_scope,
    'unique_key', unique_key, 'unique_scope', unique_scope, 'concurrency_key', concurrency_key,
    'max_attempts', max_attempts, 'idempotency_key', idempotency_key, 'traceparent', traceparent,
    'rate_limit', rate_limit, 'weight', weight))
    || jsonb_build_object('state', state))) as one;
  if answer.taken_by is not null then
    raise exception 'cannot insert %: its % belongs to % %', fsm, answer.taken_by ->> 'key', answer.taken_by ->> 'fsm',
      answer.taken_by ->> 'id'
      using errcode = 'GD001', hint = 'keys are shared by all machines: put the name of the machine into the key',
            detail = answer.taken_by::text;
  end if;
  return query select answer.id, answer.inserted, answer.status;
end $$;

-- Put a signal into the inbox of a live instance and wake it if it awaits that name. No row: there is no such instance.
-- The target is locked first, and every later statement sees it as it is then: an instance that parks at this moment either
-- is seen parked here, or has yet to look into its inbox and will find the signal there.
--   max_inbox   bytes of unread payloads that the inbox may have with this one; null: max_inbox()
create function gen_durable.deliver(
  target_id bigint, target_key text, name text, payload jsonb, dedup_key text, traceparent text default null,
  max_inbox bigint default null)
returns table (id bigint, signal_id bigint, woken boolean, queue text)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
  target      record;
  given_bytes int;
  new_count   bigint;
  new_bytes   bigint;
begin
  if octet_length(coalesce(name, '')) not between 1 and 255 then
    raise exception 'the name of a signal must have 1 to 255 bytes, got %', coalesce(octet_length(name), 0) using errcode = '22023';
  elsif octet_length(dedup_key) not between 1 and 1024 then
    raise exception 'dedup_key must have 1 to 1024 bytes, got %', octet_length(dedup_key) using errcode = '22023';
  elsif traceparent !~ '^[0-9a-f]{2}(-[0-9a-f]{32})(-[0-9a-f]{16})(-[0-9a-f]{2})$' then
    raise exception 'traceparent % is not of the form 00-<32 hex digits>-<16>-<2>', quote_literal(left(traceparent, 80))
      using errcode = '22023';
  end if;
  -- By key twice: while we waited for the lock the key may have passed to a new instance, which only a new look sees.
  for look in 1 .. 2 loop
    if target_id is not null then
      select g.id, g.status, g.awaits, g.inbox_count, g.inbox_bytes, g.queue into target from gen_durable.gen_durable g
       where g.id = target_id and g.status not in ('done', 'failed', 'cancelled') and g.deleted_at is null
         for no key update;
    else
      select g.id, g.status, g.awaits, g.inbox_count, g.inbox_bytes, g.queue into target from gen_durable.gen_durable g
       where g.correlation_guard = target_key and g.status not in ('done', 'failed', 'cancelled') and g.deleted_at is null
         for no key update;
    end if;
    exit when target.id is not null or target_id is not null;
  end loop;
  if target.id is null then
    return;
  end if;
  max_inbox := coalesce(max_inbox, gen_durable.max_inbox());
  payload := coalesce(payload, 'null');
  given_bytes := octet_length(payload::text);
  new_count := target.inbox_count + 1;
  new_bytes := target.inbox_bytes + given_bytes;
  -- The bounds count what was consumed as well, so a full inbox is counted anew. A duplicate adds nothing.
  if (new_count > 10000 or new_bytes > max_inbox)
     and not exists (select from gen_durable.signals s where s.target_id = target.id and s.dedup_key = deliver.dedup_key) then
    select count(*) + 1, coalesce(sum(s.size), 0) + given_bytes into new_count, new_bytes
      from gen_durable.signals s where s.target_id = target.id and s.consumed_seq is null;
    if new_count > 10000 then
      raise exception 'the inbox of instance % is full: 10000 signals that no step has consumed', target.id
        using errcode = 'GD002', hint = 'let the machine await these signals, or send fewer or smaller ones';
    elsif new_bytes > max_inbox then
      raise exception using message = format(
        'the inbox of instance %s is full: %s signals that no step has consumed have %s bytes of JSON, '
        'a signal of %s bytes exceeds the limit of %s', target.id, new_count - 1, new_bytes - given_bytes, given_bytes, max_inbox),
        errcode = 'GD002', hint = 'let the machine await these signals, or send fewer or smaller ones';
    end if;
  end if;
  with fresh as (
    insert into gen_durable.signals (target_id, name, payload, dedup_key, traceparent)
         values (target.id, name, payload, dedup_key, traceparent)
    on conflict do nothing
      returning signals.id
  ), noted as (
    insert into gen_durable.audit_events (instance_id, event, data)
    select target.id, 'signalled', jsonb_strip_nulls(jsonb_build_object(
             'signal', name, 'dedup_key', dedup_key,
             'is_awaited', target.status = 'awaiting_signal' and name = any (target.awaits)))
      from fresh
     where (select s.audit from gen_durable.settings s) = 'all'
  )
  select fresh.id into signal_id from fresh;
  -- A duplicate wakes nobody: it would send a step that collects a pack round in circles.
  woken := signal_id is not null and target.status = 'awaiting_signal' and name = any (target.awaits);
  if woken then
    update gen_durable.gen_durable g
       set status = 'runnable', eligible_at = statement_timestamp(), has_signals = true, inbox_count = new_count,
           inbox_bytes = new_bytes, updated_at = statement_timestamp()
     where g.id = target.id;
  elsif signal_id is not null then
    -- A signal that comes after the deadline, and before the step has run, ends the await after all.
    update gen_durable.gen_durable g
       set has_signals = true, inbox_count = new_count, inbox_bytes = new_bytes,
           timed_out = g.timed_out and not coalesce(name = any (g.awaits), false)
     where g.id = target.id;
  end if;
  id := target.id;
  queue := target.queue;
  return next;
end $$;

-- signal(42, 'paid', '{"amount": 100}', 'evt-7') or signal('order:42', ...): the same for producers in any language.
-- Nobody there is an error, so that a sender who does not look at the answer does not lose its signal.
create function gen_durable.signal(
  target bigint, name text, payload jsonb default 'null', dedup_key text default null, traceparent text default null)
returns table (id bigint, delivered boolean)
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  return query select d.id, d.signal_id is not null
                 from gen_durable.deliver(target, null, signal.name, gen_durable.checked_payload(
                        signal.payload, format('the payload of signal %L', signal.name)), signal.dedup_key, signal.traceparent) d;
  if not found then
    raise exception 'cannot signal %: there is no live instance %', quote_literal(name), target using errcode = 'GD003';
  end if;
end $$;

create function gen_durable.signal(
  target text, name text, payload jsonb default 'null', dedup_key text default null, traceparent text default null)
returns table (id bigint, delivered boolean)
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  return query select d.id, d.signal_id is not null
                 from gen_durable.deliver(null, target, signal.name, gen_durable.checked_payload(
                        signal.payload, format('the payload of signal %L', signal.name)), signal.dedup_key, signal.traceparent) d;
  if not found then
    raise exception 'cannot signal %: no live instance has correlation_key %', quote_literal(name),
      quote_literal(left(target, 1024))
      using errcode = 'GD003';
  end if;
end $$;
