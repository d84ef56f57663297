-- Insert instances: insert_rows for clients and commits, insert and insert_all for producers in any language, and dead letters.

-- Insert many rows; one answer per input, numbered by position. A rejected row (its key is taken) answers with the id and machine
-- of the holder. One statement for all rows; a second one only if some were rejected.
-- Locks: rows are inserted in the order of their keys, so two batches with keys of the same kind do not deadlock.
--   parent_ids, parent_rounds   for the children of a commit; otherwise null
--   limits_must_exist           false: rows with an unknown rate limit wait until it exists, as children do
create function gen_durable.insert_rows(
  fsms text[], versions int[], steps text[], states text[], queues text[], priorities int[],
  eligible_ats timestamptz[], delays interval[], concurrency_keys text[],
  correlation_keys text[], correlation_scopes text[], unique_keys bytea[], unique_scopes text[], max_attempts int[],
  parent_ids bigint[], parent_rounds bigint[], traceparents text[] default null,
  rate_limits text[] default null, weights int[] default null, limits_must_exist boolean default true)
returns table (ord bigint, id bigint, inserted boolean, queue text, holder_fsm text, holder_key text, holder_status text)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  todo    bigint[];
  refused bigint[];
begin
  if rate_limits is not null then
    perform gen_durable.check_limits(rate_limits, weights, must_exist => limits_must_exist and parent_ids is null);
  end if;
  -- The holder of a key may end before it is looked up. Then the key is free, and the row is tried again.
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
      ), inserted_rows as (
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
         order by spec.unique_key, spec.correlation_key, spec.ord    -- lock order
            on conflict do nothing
        returning id
      ), audited as (
        insert into gen_durable.audit_events (instance_id, event, data)
        select spec.id, 'created', jsonb_strip_nulls(jsonb_build_object(
                 'machine', spec.fsm, 'version', spec.version, 'step', spec.step, 'queue', spec.queue,
                 'correlation_key', spec.correlation_key, 'parent_id', spec.parent_id))
          from spec join inserted_rows on inserted_rows.id = spec.id
         where (select s.audit from gen_durable.settings s) = 'all'
         order by spec.ord
      )
      select spec.ord, spec.id, inserted_rows.id is not null, spec.queue from spec left join inserted_rows on inserted_rows.id = spec.id
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
        left join lateral (                            -- a key with an empty scope is never taken
          select g.id, g.queue, g.fsm, 'correlation_key' as key, g.status::text as status from gen_durable.gen_durable g
           where g.correlation_key = given.correlation_key and given.correlation_scope <> '{}'
             and g.status = any (g.correlation_scope) and (g.deleted_at is null or g.status = 'executing')
          union all
          select g.id, g.queue, g.fsm, 'unique_key', g.status::text from gen_durable.gen_durable g
           where g.unique_key = given.unique_key and given.unique_scope <> '{}'
             and g.status = any (g.unique_scope) and (g.deleted_at is null or g.status = 'executing')
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
    raise exception 'insert lost 10 races for the same unique_key or correlation_key' using errcode = '40001';
  end if;
end $$;

-- Insert rows that differ only in the given arrays, and have neither a unique nor a correlation key nor a rate limit: the common
-- case of a batch, at two thirds of the cost of insert_rows. Returns the ids in the order of the states.
--   states   JSON texts, separated by 0x1e, which JSON never contains: drivers encode arrays slowly
create function gen_durable.insert_plain_rows(
  fsm text, version int, step text, states text, queue text, priority int, eligible_at timestamptz, delay interval,
  max_attempts int, concurrency_keys text[], traceparents text[], parent_ids bigint[], parent_rounds bigint[])
returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
  ids bigint[];
begin
  eligible_at := coalesce(eligible_at, statement_timestamp() + coalesce(delay, '0'));
  with inserted_rows as (
    insert into gen_durable.gen_durable as g
           (fsm, fsm_version, step, state, queue, priority, eligible_at, max_attempts, concurrency_key, traceparent, parent_id,
            parent_round)
    select fsm, version, step, given.state::jsonb, queue, priority::smallint, eligible_at, max_attempts, given.concurrency_key,
           given.traceparent, given.parent_id, given.parent_round
      from unnest(string_to_array(states, e'\x1e'), concurrency_keys, traceparents, parent_ids, parent_rounds) with ordinality
           as given (state, concurrency_key, traceparent, parent_id, parent_round, ord)
     order by given.ord
    returning g.id, g.parent_id
  ), audited as (
    insert into gen_durable.audit_events (instance_id, event, data)
    select inserted_rows.id, 'created', jsonb_strip_nulls(jsonb_build_object(
             'machine', fsm, 'version', version, 'step', step, 'queue', queue, 'parent_id', inserted_rows.parent_id))
      from inserted_rows
     where (select s.audit from gen_durable.settings s) = 'all'
     order by inserted_rows.id
  )
  select array_agg(inserted_rows.id order by inserted_rows.id) into ids from inserted_rows;
  return ids;
end $$;

-- Insert dead letters: instances of machines that are known by name only. Version, step, queue and defaults are those of the
-- newest registered version, or those of a job if no worker has registered it. A key that the receiver computes from the state is
-- left out: a dead letter must not be refused. Returns the queues that have work now.
create function gen_durable.insert_dead_letters(receivers text[], contents text[], traceparents text[]) returns setof text
language sql set search_path = pg_catalog, pg_temp as $$
  select letter.queue
    from (select array_agg(given.fsm order by given.ord) as fsms, array_agg(given.state order by given.ord) as states,
                 array_agg(coalesce(machine.fsm_version, 1) order by given.ord) as versions,
                 array_agg(coalesce(machine.initial_step, 'run') order by given.ord) as steps,
                 array_agg(coalesce(machine.queue, 'default') order by given.ord) as queues,
                 array_agg(coalesce((machine.defaults ->> 'priority')::int, 0) order by given.ord) as priorities,
                 array_agg(machine.defaults ->> 'concurrency_key' order by given.ord) as concurrency_keys,
                 array_agg((machine.defaults ->> 'max_attempts')::int order by given.ord) as max_attempts,
                 case when count(machine.defaults ->> 'rate_limit') > 0
                      then array_agg(machine.defaults ->> 'rate_limit' order by given.ord) end as rate_limits,
                 array_agg(given.traceparent order by given.ord) as traceparents
            from unnest(receivers, contents, traceparents) with ordinality as given (fsm, state, traceparent, ord)
            left join lateral (
              select m.* from gen_durable.machines m where m.fsm = given.fsm order by m.fsm_version desc limit 1) machine on true
         ) as filled
   cross join lateral gen_durable.insert_rows(
           filled.fsms, filled.versions, filled.steps, filled.states, filled.queues, filled.priorities,
           null, null, filled.concurrency_keys, null, null, null, null, filled.max_attempts, null, null, filled.traceparents,
           filled.rate_limits, limits_must_exist => false) as letter
$$;

-- Insert the dead letters of instances that failed without an outcome of their worker: it died, or its outcome was rejected. The
-- receiver is the dead_letter of the registered machine. A letter that cannot be inserted is logged, so that it does not block
-- the others.
create function gen_durable.dead_letter_failed(failed_ids bigint[], attempts int[]) returns setof text
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
        select gen_durable.insert_dead_letters(array[one.dead_letter], array[jsonb_build_object(
                 'id', g.id, 'job', g.fsm, 'version', g.fsm_version, 'payload', g.state, 'error', g.last_error,
                 'attempts', one.attempts)::text], array[g.traceparent])
          from gen_durable.gen_durable g where g.id = one.id;
    exception when others then
      -- Races and outages fail the whole transaction, which is retried.
      if left(sqlstate, 2) in ('40', '53', '57', '58') or sqlstate = '55P03' then
        raise;
      end if;
      raise warning 'dead letter of failed instance % to % was not inserted: %', one.id, one.dead_letter, sqlerrm;
    end;
  end loop;
end $$;

-- A status in the words of simple workflows.
create function gen_durable.job_status_name(status text) returns text
language sql immutable
return case status when 'runnable' then 'pending' when 'done' then 'succeeded' when 'failed' then 'failed'
                   when 'cancelled' then 'cancelled' else 'leased' end;

-- The maximum size in bytes of JSON of a state or payload given to the functions below: the default of settings.max_payload,
-- which applies to clients. The owner may replace this function; a session setting could be changed by the producer.
create function gen_durable.max_payload() returns int
language sql immutable return 1048576;

-- The maximum size in bytes of the unread payloads of one inbox: the default of settings.max_inbox, which applies to clients. The
-- owner may replace this function.
create function gen_durable.max_inbox() returns bigint
language sql immutable return 16777216;

-- Return the payload, or raise if it is too large. Nesting depth and number ranges are not checked: the step that reads it does.
create function gen_durable.checked_payload(payload jsonb, what text) returns jsonb
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  size constant int := octet_length(payload::text);
begin
  if size > gen_durable.max_payload() then
    raise exception '% has % bytes of JSON, at most % are allowed', what, size, gen_durable.max_payload()
      using errcode = 'GD005', hint = 'store large data elsewhere and pass a reference';
  end if;
  return payload;
end $$;

-- The work of insert_all. Omitted fields come from the registered machine: the newest version, the initial step, the queue, and
-- the defaults for priority, max_attempts, concurrency_key and rate_limit; a null as key or limit means none. An
-- element whose key is taken answers with the id and status of the holder. If the holder is an instance of another machine, id
-- and status are null and taken_by names it: {"id": 17, "fsm": "Refund", "key": "unique_key"}.
--   any_step   false: raise for any step but the registered initial one
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
    select element.ord, element.spec, machine.initial_step, machine.defaults -> 'computed' as computed,
           element.spec ->> 'fsm' as fsm,
           coalesce((element.spec ->> 'version')::int, machine.fsm_version, 1) as version,
           coalesce(element.spec ->> 'step', machine.initial_step) as step,
           coalesce(element.spec -> 'state', '{}')::text as state,
           coalesce(element.spec ->> 'queue', machine.queue, 'default') as queue,
           coalesce((element.spec ->> 'priority')::int, (machine.defaults ->> 'priority')::int, 0) as priority,
           (element.spec ->> 'eligible_at')::timestamptz as eligible_at,
           (element.spec ->> 'schedule_in')::interval as delay,
           case when element.spec ? 'concurrency_key' then element.spec else machine.defaults end ->> 'concurrency_key'
             as concurrency_key,
           element.spec ->> 'correlation_key' as correlation_key,
           coalesce(element.spec ->> 'unique_key', element.spec ->> 'idempotency_key') as unique_key,
           coalesce((element.spec ->> 'max_attempts')::int, (machine.defaults ->> 'max_attempts')::int) as max_attempts,
           element.spec ->> 'traceparent' as traceparent,
           case when element.spec ? 'rate_limit' then element.spec else machine.defaults end ->> 'rate_limit' as rate_limit,
           (element.spec ->> 'weight')::int as weight,
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
                when computed ? 'concurrency_key' and not spec ? 'concurrency_key'
                  then format('machine %L computes concurrency_key from the state, which SQL cannot: give concurrency_key; for none, '
                              'give an empty text to insert, or null to insert_all', fsm)
                when computed ? 'rate_limit' and not spec ? 'rate_limit'
                  then format('machine %L computes rate_limit from the state, which SQL cannot: give rate_limit; for none, give an '
                              'empty text to insert, or null to insert_all', fsm)
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
         -- A scope with one live status includes all of them: otherwise a transition could violate uniqueness.
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
      using errcode = 'GD005', hint = 'store large data elsewhere and pass a reference';
  end if;
  return query
    select answer.ord, case when taken.by is null then answer.id end, answer.inserted,
           case when taken.by is null then gen_durable.job_status_name(coalesce(answer.holder_status, 'runnable')) end, taken.by
      from gen_durable.insert_rows(
             batch.fsms, batch.versions, batch.steps, batch.states, batch.queues, batch.priorities, batch.eligible_ats,
             batch.delays, batch.concurrency_keys, batch.correlation_keys, batch.correlation_scopes, batch.unique_keys,
             batch.unique_scopes, batch.max_attempts, null, null, batch.traceparents, batch.rate_limits, batch.weights) as answer
     cross join lateral (
       -- Only for rejected rows: reading an array element is a scan of the array.
       select case when answer.holder_fsm is not null and answer.holder_fsm <> batch.fsms[answer.ord]
                   then jsonb_build_object('id', answer.id, 'fsm', answer.holder_fsm, 'key', answer.holder_key) end as by) taken
     order by answer.ord;
end $$;

-- The two rights to insert, with the rights of the owner: from the initial step only, or from any step.
create function gen_durable.insert_from_start(specs jsonb)
returns table (ord bigint, id bigint, inserted boolean, status text, taken_by jsonb)
language sql security definer set search_path = pg_catalog, pg_temp as $$
  select * from gen_durable.insert_specs(specs, false)
$$;

create function gen_durable.insert_from_any_step(specs jsonb)
returns table (ord bigint, id bigint, inserted boolean, status text, taken_by jsonb)
language sql security definer set search_path = pg_catalog, pg_temp as $$
  select * from gen_durable.insert_specs(specs, true)
$$;

-- insert_all('[{"fsm": "Checkout", "state": {"order": 42}}, ...]') returns one row per element, in order.
-- Runs with the rights of the caller, which decide whether it may choose the step.
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

-- An empty concurrency_key or rate_limit means none, instead of the default of the machine.
-- insert('Checkout', '{"order": 42}', correlation_key => 'order:42') returns the id and status of the new instance, or of the
-- instance that has the key. Raises if the key belongs to an instance of another machine.
create function gen_durable.insert(
  fsm text, state jsonb default '{}', step text default null, queue text default null, priority int default null,
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
    || jsonb_build_object('state', state)
    || case when concurrency_key = '' then '{"concurrency_key": null}' else '{}' end::jsonb
    || case when rate_limit = '' then '{"rate_limit": null}' else '{}' end::jsonb)) as one;
  if answer.taken_by is not null then
    raise exception 'cannot insert %: its % belongs to % %', fsm, answer.taken_by ->> 'key', answer.taken_by ->> 'fsm',
      answer.taken_by ->> 'id'
      using errcode = 'GD001', hint = 'keys are shared by all machines: include the name of the machine in the key',
            detail = answer.taken_by::text;
  end if;
  return query select answer.id, answer.inserted, answer.status;
end $$;

revoke execute on function
  gen_durable.insert_rows, gen_durable.insert_plain_rows, gen_durable.insert_dead_letters, gen_durable.dead_letter_failed, gen_durable.job_status_name,
  gen_durable.max_payload, gen_durable.max_inbox, gen_durable.checked_payload, gen_durable.insert_specs,
  gen_durable.insert_from_start, gen_durable.insert_from_any_step, gen_durable.insert_all, gen_durable.insert
  from public;
