-- Audit. The level is a row of the database, so that all clients, workers and SQL producers use the same one, and a change
-- applies from the next statement on. The statement that makes a change reads the level in a scalar subquery, once per
-- statement, and writes the events.

-- Ordered: an event is written if the level is at least the event's own.
create type gen_durable.audit_level as enum ('off', 'failures', 'all');

create table gen_durable.settings (
  only_row   boolean primary key default true check (only_row),
  audit      gen_durable.audit_level not null default 'failures',
  updated_at timestamptz not null default statement_timestamp(),
  updated_by text
);
insert into gen_durable.settings default values;

-- Events of an instance, or of a subject such as a queue. Append-only.
create table gen_durable.audit_events (
  id          bigint generated always as identity primary key,
  instance_id bigint,
  subject     text,                                       -- instead of an instance: queue:NAME, limit:NAME, schedule:NAME, schema, audit
  event       text not null,
  actor       text,                                       -- as given by the caller
  login       text default session_user,                  -- the role that opened the session; a caller cannot choose it
  reason      text,
  data        jsonb,
  created_at  timestamptz not null default statement_timestamp(),
  constraint instance_or_subject check ((instance_id is null) <> (subject is null))
);
create index audit_events_instance on gen_durable.audit_events (instance_id, id);

-- Bounds of reasons and actors, as in the clients: a longer reason is truncated, a longer actor is an error.
create function gen_durable.short_reason(reason text) returns text
language sql immutable
return case when length(reason) > 8000 then left(reason, 7999) || chr(8230) else nullif(reason, '') end;

create function gen_durable.checked_actor(actor text) returns text
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
  if octet_length(actor) not between 1 and 255 then
    raise exception 'actor must have 1 to 255 bytes, got %', octet_length(actor) using errcode = '22023';
  end if;
  return actor;
end $$;

-- Record an action on something other than an instance, at level failures and above.
create function gen_durable.audit_action(subject text, event text, reason text, actor text, data jsonb default null) returns void
language sql set search_path = pg_catalog, pg_temp as $$
  insert into gen_durable.audit_events (subject, event, actor, reason, data)
  select subject, event, gen_durable.checked_actor(actor), gen_durable.short_reason(reason), data
   where (select s.audit from gen_durable.settings s) >= 'failures'
$$;

-- Add actor and reason to the `created` or `signalled` event that this transaction has written for an instance. Below level
-- all there is no such event: write it, unless the level is off.
create function gen_durable.audit_reason(instance_id bigint, event text, reason text, actor text, data jsonb) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  level gen_durable.audit_level := (select s.audit from gen_durable.settings s);
begin
  reason := gen_durable.short_reason(audit_reason.reason);
  actor := gen_durable.checked_actor(audit_reason.actor);
  -- Only at level all: an event of another transaction that held the row while this one waited is not ours.
  update gen_durable.audit_events a set actor = audit_reason.actor, reason = audit_reason.reason
   where level = 'all'
     and a.id = (select max(last.id) from gen_durable.audit_events last
                  where last.instance_id = audit_reason.instance_id and last.event = audit_reason.event
                    and last.created_at >= transaction_timestamp());
  if not found and level >= 'failures' then
    insert into gen_durable.audit_events (instance_id, event, actor, reason, data)
    values (audit_reason.instance_id, audit_reason.event, audit_reason.actor, audit_reason.reason, audit_reason.data);
  end if;
end $$;

-- set_audit('all') returns the previous level.
create function gen_durable.set_audit(level text, reason text default null, actor text default current_user) returns text
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  before text;
begin
  if level is null or level not in ('off', 'failures', 'all') then
    raise exception 'audit level must be off, failures or all, got %', quote_nullable(level) using errcode = '22023';
  end if;
  select s.audit::text into before from gen_durable.settings s for update;
  update gen_durable.settings s
     set audit = level::gen_durable.audit_level, updated_at = statement_timestamp(), updated_by = gen_durable.checked_actor(actor)
   where s.audit <> level::gen_durable.audit_level;
  -- Whatever the level: switching the audit off or on must leave a trace.
  if before <> level then
    insert into gen_durable.audit_events (subject, event, actor, reason, data)
    values ('audit', 'set', actor, gen_durable.short_reason(reason), jsonb_build_object('level', level, 'before', before));
  end if;
  return before;
end $$;

revoke execute on function
  gen_durable.short_reason, gen_durable.checked_actor, gen_durable.audit_action, gen_durable.audit_reason, gen_durable.set_audit
  from public;
