-- Who works on this database, and how its queues are to be served.

-- The workers that are there: each says so at every heartbeat, and takes its row along when it leaves. One that has not said
-- so until expires_at is dead or cut off. For people, and for answers to "why does nobody run this?": nothing depends on it.
create table gen_durable.workers (
  name           text primary key,                        -- as in locked_by
  host           text not null,
  pid            int not null,
  version        text not null,                           -- of this library
  schema_version int not null,                            -- the schema version that its code was written for
  started_at     timestamptz not null default statement_timestamp(),
  seen_at        timestamptz not null,
  expires_at     timestamptz not null,
  is_draining    boolean not null default false,          -- it takes no more work
  queues         text[] not null,
  prefixes       text[] not null,
  leaves_unknown boolean not null,                        -- under its prefixes, it leaves machines alone that it does not know
  fsms           text[] not null,                         -- the machines that it runs, and ...
  fsm_versions   int[] not null,                          -- ... in parallel, their versions
  paused_queues  text[] not null default '{}',            -- queues of which it starts nothing any more, and ...
  paused_since   timestamptz[] not null default '{}'      -- ... in parallel, the paused_at of the pause that it confirms
);

-- What was said about a queue at run time; a queue without a row is served as its workers see fit.
create table gen_durable.queues (
  name        text primary key,
  is_paused   boolean not null default false,
  paused_at   timestamptz,
  concurrency int check (concurrency >= 1),               -- how many at once in each worker, instead of what that was told
  paused_by   text,
  updated_by  text,
  updated_at  timestamptz not null default statement_timestamp(),
  constraint paused_since check (is_paused = (paused_at is not null)),
  constraint queue_name check (octet_length(name) between 1 and 255)
);

-- pause_queue('checkout'): no pick takes anything of it from now on. Again is harmless.
create function gen_durable.pause_queue(queue text, reason text default null, actor text default current_user)
returns gen_durable.queues
language sql set search_path = pg_catalog, pg_temp as $$
  select gen_durable.audit_action('queue:' || queue, 'paused', reason, actor);
  insert into gen_durable.queues as q (name, is_paused, paused_at, paused_by, updated_by)
       values (queue, true, statement_timestamp(), gen_durable.checked_actor(actor), actor)
  on conflict (name) do update
     set is_paused = true, paused_at = coalesce(q.paused_at, statement_timestamp()),
         paused_by = case when q.is_paused then q.paused_by else actor end, updated_by = actor, updated_at = statement_timestamp()
  returning q.*
$$;

create function gen_durable.resume_queue(queue text, reason text default null, actor text default current_user)
returns gen_durable.queues
language sql set search_path = pg_catalog, pg_temp as $$
  select gen_durable.audit_action('queue:' || queue, 'resumed', reason, actor);
  insert into gen_durable.queues as q (name, updated_by) values (queue, gen_durable.checked_actor(actor))
  on conflict (name) do update
     set is_paused = false, paused_at = null, paused_by = null, updated_by = actor, updated_at = statement_timestamp()
  returning q.*
$$;

-- set_queue('checkout', 20): how many at once in each worker; null is what the worker was told.
create function gen_durable.set_queue(
  queue text, concurrency int, reason text default null, actor text default current_user)
returns gen_durable.queues
language sql set search_path = pg_catalog, pg_temp as $$
  select gen_durable.audit_action('queue:' || queue, 'set', reason, actor, jsonb_build_object('concurrency', set_queue.concurrency));
  insert into gen_durable.queues as q (name, concurrency, updated_by)
       values (queue, set_queue.concurrency, gen_durable.checked_actor(actor))
  on conflict (name) do update
     set concurrency = excluded.concurrency, updated_by = actor, updated_at = statement_timestamp()
  returning q.*
$$;

revoke execute on function
  gen_durable.pause_queue, gen_durable.resume_queue, gen_durable.set_queue
  from public;
