-- Producers: roles that may call some of the functions and nothing else. A right is a set of functions. They run with the
-- rights of their owner, so the role needs no rights on the tables, and they pin the search_path, so the caller cannot replace
-- objects that they name. insert and insert_all run with the rights of the caller, which decide which of insert_from_start and
-- insert_from_any_step they call.
create function gen_durable.producer_rights() returns table (name text, function regprocedure)
language sql stable set search_path = pg_catalog, pg_temp as $$
  select one.name, p.oid::regprocedure
    from (values ('insert', '{insert, insert_all, insert_from_start}'::text[]), ('steps', '{insert_from_any_step}'),
                 ('signal', '{signal}'), ('status', '{job_status}'), ('cancel', '{cancel}'), ('delete', '{soft_delete}'),
                 ('restore', '{restore}'), ('retry', '{retry}'),
                 ('limits', '{set_concurrency_limit, set_rate_limit, remove_limit}')) as one (name, functions)
    join pg_proc p on p.proname = any (one.functions)
     and p.pronamespace = (select home.pronamespace from pg_proc home where home.oid = 'gen_durable.insert_all'::regproc)
$$;

-- grant_producer('webhooks') or grant_producer('support', 'status', 'cancel'): add rights to a role. For the owner of the
-- schema. Call it again after an upgrade that adds functions.
create function gen_durable.grant_producer(role name, variadic rights text[] default '{insert, signal}') returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  unknown text;
  one     regprocedure;
begin
  select given.name into unknown from unnest(rights) as given (name)
   where not exists (select from gen_durable.producer_rights() known where known.name = given.name) limit 1;
  if found then
    raise exception 'there is no right %', quote_nullable(unknown)
      using errcode = '22023',
            hint = (select 'give one of ' || string_agg(distinct known.name, ', ') from gen_durable.producer_rights() known);
  end if;
  execute format('grant usage on schema %s to %I',
                 (select p.pronamespace::regnamespace from pg_proc p where p.oid = 'gen_durable.insert_all'::regproc), role);
  for one in select known.function from gen_durable.producer_rights() known where known.name = any (rights) loop
    execute format('grant execute on function %s to %I', one, role);
  end loop;
end $$;

-- Revoke every right of a producer.
create function gen_durable.revoke_producer(role name) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  one regprocedure;
begin
  for one in select known.function from gen_durable.producer_rights() known loop
    execute format('revoke execute on function %s from %I', one, role);
  end loop;
  execute format('revoke usage on schema %s from %I',
                 (select p.pronamespace::regnamespace from pg_proc p where p.oid = 'gen_durable.insert_all'::regproc), role);
end $$;

revoke execute on function
  gen_durable.producer_rights, gen_durable.grant_producer, gen_durable.revoke_producer
  from public;
