-- Operations: registered workers, and run-time settings of queues.

-- A worker registers at every heartbeat and deregisters on shutdown. A worker past expires_at is dead or disconnected. For people,
-- explain and mark_unserved; execution does not depend on it.
create table gen_durable.workers (
  name           text primary key,                        -- as in locked_by
  host           text not null,
  pid            int not null,
  version        text not null,                           -- version of gen_durable
  schema_version int not null,                            -- the schema version that its code was written for
  started_at     timestamptz not null default statement_timestamp(),
  seen_at        timestamptz not null,
  expires_at     timestamptz not null,
  is_draining    boolean not null default false,          -- it starts no more work
  queues         text[] not null,
  capacities     int[] not null default '{}',             -- executions at once of each queue, same positions
  capacity       int,                                     -- executions at once of all queues; null: no bound
  in_flight      int not null default 0,                  -- executions that it had leased at the last heartbeat
  prefixes       text[] not null,
  prefix_capacities int[] not null default '{}',          -- executions at once of each prefix, same positions
  leaves_unknown boolean not null,                        -- it does not run unknown machines under its prefixes
  fsms           text[] not null,                         -- the machines that it runs
  fsm_versions   int[] not null,                          -- their versions, same positions
  fsm_steps      jsonb not null default '[]',             -- the steps at which it runs their rows, same positions
  fsm_digests    text[] not null default '{}',            -- machines.digest of what it registers, same positions
  paused_queues  text[] not null default '{}',            -- paused queues that it has stopped starting
  paused_since   timestamptz[] not null default '{}',     -- the paused_at that it confirms, same positions
  incompatible   jsonb not null default '[]',             -- findings of its start: instances that it cannot run, with ids
  blocked        jsonb                                    -- machine, step and id of the step that blocks its event loop, and
                                                          -- since when; null: none
);

-- Run-time settings of queues. A queue without a row is served with the settings of its workers.
create table gen_durable.queues (
  name        text primary key,
  is_paused   boolean not null default false,
  paused_at   timestamptz,
  concurrency int check (concurrency >= 1),               -- executions at once per worker; null: the worker's setting
  paused_by   text,
  updated_by  text,
  updated_at  timestamptz not null default statement_timestamp(),
  constraint paused_since check (is_paused = (paused_at is not null)),
  constraint queue_name check (octet_length(name) between 1 and 255)
);

-- pause_queue('checkout'): later picks return nothing from it. Idempotent.
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

-- set_queue('checkout', 20): executions at once per worker; null: the setting of each worker.
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
