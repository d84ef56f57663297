-- Schedules: what to insert, when, and the next fire time.
--
-- Workers compute fire times, because cron and time zones are not computed here, and store them as timestamps.
-- Guard: every write sets a new revision, and fire_schedule takes effect only for the revision that the worker has read. So one
-- of many workers fires, and none fires a schedule that was paused, changed or deleted in between.

create table gen_durable.schedules (
  name          text primary key check (octet_length(name) between 1 and 255),
  revision      bigint not null generated always as identity,  -- never reused, not even after the schedule was deleted
  cron          text,
  every         interval,
  tz            text not null,                            -- time zone of cron
  anchor_at     timestamptz not null,                     -- origin of the fire times of an interval
  missed        text not null check (missed in ('skip', 'once', 'all')),
  overlap       text not null check (overlap in ('allow', 'skip')),
  spec          jsonb not null,                           -- an element for insert_all
  next_at       timestamptz,                              -- next fire time; null: none
  last_fire_time timestamptz,                             -- latest fire time that has passed, fired or skipped
  last_fired_at timestamptz,                              -- when an instance was last inserted, by a fire time or a trigger
  last_id       bigint,                                   -- the id of that instance
  fired_count   bigint not null default 0,
  last_error    text,                                     -- why the last fire time inserted nothing; null: it did
  paused_at     timestamptz,
  pause_reason  text,
  paused_by     text,
  inserted_at   timestamptz not null default statement_timestamp(),
  updated_at    timestamptz not null default statement_timestamp(),
  constraint cron_or_interval check ((cron is null) <> (every is null)),
  -- Even if the clock is set back, no fire time comes twice.
  constraint fire_times_move_forward check (next_at > last_fire_time)
) with (fillfactor = 50);

create index schedules_due on gen_durable.schedules (next_at) where paused_at is null;

-- Insert one instance per fire time. The caller has locked the schedule. rate_limit is set by the update: insert_all would
-- raise if the limit does not exist, and the fire time would be lost. These rows stall until the limit exists, as those of a
-- step do.
create function gen_durable.insert_scheduled(
  due gen_durable.schedules, fire_times timestamptz[], out ids bigint[], out are_new boolean[], out queue text)
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  -- A jsonb value has at most 256 MB: many fire times of a large spec are inserted in several batches.
  at_once int := greatest(1, 16000000 / octet_length(due.spec::text));
  batch   record;
  -- The limit of the spec, or the default of the machine.
  allowed text := case when due.spec ? 'rate_limit' then due.spec ->> 'rate_limit' else (
    select m.defaults ->> 'rate_limit' from gen_durable.machines m
     where m.fsm = due.spec ->> 'fsm' and (due.spec ->> 'version' is null or m.fsm_version = (due.spec ->> 'version')::int)
     order by m.fsm_version desc limit 1) end;
begin
  for start in 1 .. cardinality(fire_times) by at_once loop
    select array_agg(answer.id order by answer.ord) as ids, array_agg(answer.inserted order by answer.ord) as are_new,
           (array_agg(answer.taken_by) filter (where answer.taken_by is not null))[1] as taken_by
      into batch
      from gen_durable.insert_all(
             (select jsonb_agg(due.spec - '{rate_limit,weight}'::text[]
                               || case when allowed is null and not due.spec ? 'rate_limit' then '{}' else '{"rate_limit": null}'::jsonb end)
                from unnest(fire_times[start : start + at_once - 1]))) as answer;
    if batch.taken_by is not null then
      raise exception 'cannot insert %: its % belongs to % %', due.spec ->> 'fsm', batch.taken_by ->> 'key',
        batch.taken_by ->> 'fsm', batch.taken_by ->> 'id' using errcode = 'GD001';
    end if;
    ids := ids || batch.ids;
    are_new := are_new || batch.are_new;
  end loop;
  update gen_durable.gen_durable g
     set schedule = due.name, fire_time = made.fire_time, rate_limit = allowed,
         weight = (due.spec ->> 'weight')::int
    from unnest(ids, are_new, fire_times) as made (id, is_new, fire_time)
   where g.id = made.id and made.is_new;
  queue := (select g.queue from gen_durable.gen_durable g where g.id = ids[1]);
end $$;

-- Insert the instances of these fire times and set the next one. No row: the revision has changed, or the row is locked.
--   passed_at   the latest fire time that has passed, whether it is fired or skipped
--   problem     why nothing is inserted
create function gen_durable.fire_schedule(
  name text, revision bigint, fire_times timestamptz[], passed_at timestamptz, next_at timestamptz, problem text)
returns table (is_busy boolean, ids bigint[], are_new boolean[], queue text)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  due   gen_durable.schedules;
  fired int := 0;
begin
  select s.* into due from gen_durable.schedules s
   where s.name = fire_schedule.name and s.revision = fire_schedule.revision
     for no key update skip locked;
  if not found then
    return;
  end if;
  is_busy := due.overlap = 'skip' and exists (
    select from gen_durable.gen_durable g where g.schedule = due.name and g.finished_at is null);
  if cardinality(fire_times) > 0 and not is_busy then
    select made.ids, made.are_new, made.queue into ids, are_new, queue
      from gen_durable.insert_scheduled(due, fire_times) as made;
    fired := (select count(*) from unnest(are_new) as is_new where is_new);
  end if;
  update gen_durable.schedules s
     set revision = default, next_at = fire_schedule.next_at, last_fire_time = passed_at,
         last_error = coalesce(problem, case when is_busy then 'an instance of it was still live'
                                             when fired < cardinality(fire_times) then 'an instance had its key' end),
         last_fired_at = case when fired > 0 then statement_timestamp() else s.last_fired_at end,
         last_id = coalesce((select max(made.id) from unnest(ids, are_new) as made (id, is_new) where made.is_new), s.last_id),
         fired_count = s.fired_count + fired, updated_at = statement_timestamp()
   where s.name = due.name;
  return next;
end $$;

-- Insert one instance now, paused or not; the fire times do not change. No row: no such schedule.
create function gen_durable.trigger_schedule(name text, fire_time timestamptz, reason text, actor text)
returns table (id bigint, inserted boolean, queue text)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  found_schedule gen_durable.schedules;
  made           record;
begin
  select s.* into found_schedule from gen_durable.schedules s where s.name = trigger_schedule.name for no key update;
  if not found then
    return;
  end if;
  select * into made from gen_durable.insert_scheduled(found_schedule, array[fire_time]);
  if made.are_new[1] then
    update gen_durable.schedules s
       set last_id = made.ids[1], last_fired_at = statement_timestamp(), fired_count = s.fired_count + 1
     where s.name = found_schedule.name;
  end if;
  perform gen_durable.audit_action('schedule:' || found_schedule.name, 'triggered', reason, actor,
                                   jsonb_build_object('id', made.ids[1], 'inserted', made.are_new[1]));
  return query select made.ids[1], made.are_new[1], made.queue;
end $$;

revoke execute on function
  gen_durable.insert_scheduled, gen_durable.fire_schedule, gen_durable.trigger_schedule
  from public;
