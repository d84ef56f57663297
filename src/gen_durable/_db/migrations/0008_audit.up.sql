-- What is audited. The level is a row of the database, so that producers in every language, all clients and all workers keep to
-- the same one, and a change holds from the next statement on. Who writes an event asks for it in the statement of the change:
-- a scalar subquery of one row, worked out once per statement.

-- In this order: an event is written if the level is at least its own.
create type gen_durable.audit_level as enum ('off', 'failures', 'all');

create table gen_durable.settings (
  is_only    boolean primary key default true check (is_only),
  audit      gen_durable.audit_level not null default 'failures',
  updated_at timestamptz not null default statement_timestamp(),
  updated_by text
);
insert into gen_durable.settings default values;

-- set_audit('all') -> the level that was there before
create function gen_durable.set_audit(level text, actor text default current_user) returns text
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  before text;
begin
  if level is null or level not in ('off', 'failures', 'all') then
    raise exception 'the level of the audit must be off, failures or all, got %', quote_nullable(level) using errcode = '22023';
  end if;
  select s.audit::text into before from gen_durable.settings s for update;
  update gen_durable.settings s
     set audit = level::gen_durable.audit_level, updated_at = statement_timestamp(), updated_by = gen_durable.checked_actor(actor)
   where s.audit <> level::gen_durable.audit_level;
  return before;
end $$;

revoke execute on function gen_durable.set_audit from public;
