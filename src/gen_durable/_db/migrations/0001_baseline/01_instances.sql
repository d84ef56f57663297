-- Instances: their table and indexes, the registered machines, and the view that clients read.
--
-- Rules for all files of this schema:
--   * Every function pins its search_path, so that no object of another schema can replace one of PostgreSQL's in the session of
--     the caller. A function with a SET clause is not inlined; functions that must be inlined are written as RETURN, whose names
--     are bound at creation. Views, defaults, constraints and indexes bind their names as well, so migrations run on the pinned
--     path too.
--   * Functions are revoked from PUBLIC in the file that creates them; grant_producer grants them to roles.
--   * No foreign keys: a transaction that writes a signal or a child has locked its target or parent, so a key would only add
--     cost to every commit.
--   * No index contains a column that a chained commit or a heartbeat changes (step, state, step_seq, attempt, lease_token,
--     lease_expires_at, checkpoint, progress ...): these updates stay HOT.

create type gen_durable.durable_status as enum
  ('runnable', 'executing', 'awaiting_signal', 'awaiting_children', 'done', 'failed', 'cancelled');

create table gen_durable.gen_durable (
  id                  bigint generated always as identity (cache 1) primary key,  -- cache 1: a child's id is above its parent's
  fsm                 text not null,                      -- name of the machine
  fsm_version         int not null default 1,
  step                text not null,                      -- the step to run next, or running now
  rest_step           text not null default '',           -- the step at which the row parked or ended last. Indexes contain this
                                                          -- column and not `step`, which a chained commit changes
  status              gen_durable.durable_status not null default 'runnable',
  state               jsonb not null default '{}',
  result              jsonb,                              -- of a done instance
  awaits              text[],                             -- signal names of the last await; kept until the woken step
                                                          -- makes progress, and after an end, for a retry
  presented           bigint[],                           -- signal ids that the parking execution had already received:
                                                          -- they do not wake it again
  await_deadline      timestamptz,                        -- deadline of the last await; valid while awaits is kept
  timed_out           boolean not null default false,     -- the deadline ended the last await, and no awaited signal has come since
  has_signals         boolean not null default false,     -- never reset; without it, pick and commit do not read the inbox
  has_items           boolean not null default false,     -- never reset; without it, the end of the row deletes no stream items
  -- Upper bounds of the number and bytes of unread signals. Deliveries add to them, and recount when a bound reaches its limit.
  -- Commits that consume signals do not change them.
  inbox_count         int not null default 0,
  inbox_bytes         bigint not null default 0,

  -- scheduling
  queue               text not null default 'default',
  priority            smallint not null default 0,        -- lower runs earlier
  eligible_at         timestamptz not null default statement_timestamp(),
  attempt             int not null default 0,             -- attempts of the current step before this one
  crash_count         int not null default 0,             -- processes that died in the current step
  max_attempts        int,
  schedule            text,                               -- the schedule that inserted it
  fire_time           timestamptz,                        -- the fire time of the schedule that it was inserted for
  last_error          text,
  error               jsonb,
  failure             jsonb,                              -- the failure that led to the current step: by on_failure= or handle
  traceparent         text,                               -- W3C trace context of the producer
  rate_limit          text,                               -- the bucket that the next start takes tokens from: a limit, or
                                                          -- limit:partition
  weight              int,                                -- tokens per start; null: 1
  rate_turn_at        timestamptz,                        -- position in the timetable of the bucket, set when the row is
                                                          -- deferred; null: not deferred
  concurrency_key     text collate "C",                   -- collated "C": the keys of one limit are one index range
  concurrency_slot    smallint,                           -- the slot of its key that an executing row holds
  gated               boolean not null default false,     -- its key has no free slot: not in the pick index until ungated

  -- the live execution
  step_seq            bigint not null default 0,          -- number of committed transitions
  execution           int not null default 0,             -- number of executions, the live one included
  lease_token         bigint,                             -- random per pick; the guard of every write of an execution
  lease_expires_at    timestamptz,                        -- of an executing row; afterwards that of its last lease, or null
  leased_at           timestamptz,
  started_at          timestamptz,                        -- when its step started; set only for steps that take long
  locked_by           text,                               -- name of the worker; informational, the token is the guard

  -- What the current step has stored while it ran. A retry keeps both; the transition to another step, and done, clear them.
  checkpoint          jsonb,
  progress            jsonb,                              -- done, total, message, at

  -- children
  parent_id           bigint,
  parent_round        bigint,                             -- the parent's spawn_round that this child belongs to
  spawn_round         bigint,                             -- step_seq of the last spawn; a step sees these children while
                                                          -- its step_seq equals spawn_round
  children_pending    int not null default 0,

  -- Identity: a row occupies its key while its status is in the scope; a deleted row only until its execution ends.
  correlation_key     text,
  correlation_scope   gen_durable.durable_status[],
  unique_key          bytea,
  unique_scope        gen_durable.durable_status[],

  -- ends
  undo_steps          jsonb,                              -- committed transitions with an undo step; see 06_undo.sql
  compensation        jsonb,                              -- the end that undo steps postpone; see 06_undo.sql
  cancel_requested_at timestamptz,
  cancel_reason       text,
  cancelled_by        text,
  deleted_at          timestamptz,
  delete_reason       text,
  inserted_at         timestamptz not null default statement_timestamp(),
  updated_at          timestamptz not null default statement_timestamp(),
  finished_at         timestamptz,
  expires_at          timestamptz,                        -- when the collector may remove an ended row whose machine declares its
                                                          -- retention; null: the settings of the worker decide
  collected_at        timestamptz,                        -- when the collector removed state and result; the row stays because it
                                                          -- occupies a key
  forked_from         bigint,                             -- the instance that it was forked from ...
  forked_seq          bigint,                             -- ... after this transition

  -- Because of this constraint, a guard on lease_token need not name status. With status = 'executing' the planner may choose
  -- the partial index of executing rows, which is small but full of dead entries.
  constraint leased_iff_executing check ((status = 'executing') = (lease_token is not null)),
  constraint slot_only_while_executing check (concurrency_slot is null or status = 'executing'),
  constraint children_never_negative check (children_pending >= 0),
  -- A key that is occupied in one live status is occupied in all of them: a transition between live statuses cannot violate
  -- uniqueness in a group commit.
  constraint scopes_without_gap check (
    (unique_scope is null or unique_scope = '{}'
      or unique_scope @> '{runnable,executing,awaiting_signal,awaiting_children}')
    and (correlation_scope is null or correlation_scope = '{}'
      or correlation_scope @> '{runnable,executing,awaiting_signal,awaiting_children}'))
) with (
  fillfactor = 70,                                        -- space for the next row version on the same page (HOT)
  autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 1,
  autovacuum_vacuum_insert_scale_factor = 0.1, autovacuum_analyze_scale_factor = 0.05);

create index gen_durable_pick on gen_durable.gen_durable (queue, priority, eligible_at, id)
  where status = 'runnable' and not gated;
-- The due rows of a queue with many priorities: a pick does not visit each priority of its future rows. It visits -10 to 10 in any
-- case, so rows with the usual priorities write no entry.
create index gen_durable_due on gen_durable.gen_durable (queue, eligible_at)
  where status = 'runnable' and not gated and priority not between -10 and 10;
-- The rows of a machine, by queue or by a prefix of its name: collated "C", so a prefix is a range. The queue is before the
-- version, so that the backlog of a paused queue costs one probe per version.
create index gen_durable_machine on gen_durable.gen_durable (fsm collate "C", queue, fsm_version, priority, eligible_at, id)
  where status = 'runnable' and not gated;
create index gen_durable_lease on gen_durable.gen_durable (id) where status = 'executing';
create unique index gen_durable_slot on gen_durable.gen_durable (concurrency_key, concurrency_slot)
  where concurrency_slot is not null;
create index gen_durable_concurrency on gen_durable.gen_durable (concurrency_key, priority, eligible_at, id)
  where status = 'runnable' and concurrency_key is not null;
create index gen_durable_gated on gen_durable.gen_durable (concurrency_key, priority, eligible_at, id)
  where status = 'runnable' and gated;
create index gen_durable_concurrency_resting on gen_durable.gen_durable (concurrency_key, id)
  where concurrency_key is not null and status not in ('runnable', 'executing');
create index gen_durable_limited on gen_durable.gen_durable (rate_limit, queue, priority, eligible_at, id)
  where status = 'runnable' and not gated and rate_limit is not null;
create index gen_durable_rate_turn on gen_durable.gen_durable (rate_limit, queue, rate_turn_at)
  where status = 'runnable' and rate_turn_at is not null;
-- Uniqueness: the rows that occupy their key. A statement that looks for the holder of a key repeats these conditions. They are
-- predicates and not stored generated columns, which PostgreSQL 18 parses again for every updated row.
create unique index gen_durable_unique on gen_durable.gen_durable (unique_key)
  where unique_key is not null and status = any (unique_scope) and (deleted_at is null or status = 'executing');
create unique index gen_durable_correlation on gen_durable.gen_durable (correlation_key)
  where correlation_key is not null and status = any (correlation_scope) and (deleted_at is null or status = 'executing');
-- Former holders of a unique or correlation key.
create index gen_durable_unique_former on gen_durable.gen_durable (unique_key, id)
  where unique_key is not null and (status = any (unique_scope) and (deleted_at is null or status = 'executing')) is not true;
create index gen_durable_correlation_former on gen_durable.gen_durable (correlation_key, id)
  where correlation_key is not null and (status = any (correlation_scope) and (deleted_at is null or status = 'executing')) is not true;
create index gen_durable_parent on gen_durable.gen_durable (parent_id, parent_round) where parent_id is not null;
create index gen_durable_deadline on gen_durable.gen_durable (await_deadline)
  where status = 'awaiting_signal' and await_deadline is not null;
create index gen_durable_finished on gen_durable.gen_durable (status, finished_at, id)
  where finished_at is not null and expires_at is null and deleted_at is null and collected_at is null;
create index gen_durable_expiring on gen_durable.gen_durable (expires_at, id)
  where finished_at is not null and expires_at is not null and deleted_at is null and collected_at is null;
create index gen_durable_deleted on gen_durable.gen_durable (deleted_at, id)
  where deleted_at is not null and finished_at is not null;
-- Instances that run undo steps, or have run them: lists and doctor.
create index gen_durable_compensation on gen_durable.gen_durable (id) where compensation is not null;
create index gen_durable_deleted_live on gen_durable.gen_durable (id) where deleted_at is not null and finished_at is null;
-- The instances of a schedule, and the live ones for `overlap`.
create index gen_durable_schedule on gen_durable.gen_durable (schedule, id) where schedule is not null;
create index gen_durable_schedule_live on gen_durable.gen_durable (schedule) where schedule is not null and finished_at is null;
-- Lists and counts of parked and ended rows.
create index gen_durable_resting on gen_durable.gen_durable (fsm collate "C", queue, fsm_version, status, rest_step, id)
  where status not in ('runnable', 'executing') and deleted_at is null;

-- Machines that workers have registered: defaults for SQL producers, options of steps for the reaper and for cancels, and steps, graph
-- and schemas for tools. A machine that upgrades older versions registers for their rows what applies to live instances.
create table gen_durable.machines (
  fsm          text not null,
  fsm_version  int not null,
  initial_step text not null,
  queue        text not null,
  dead_letter  text,                                      -- the job that receives a dead letter when an instance fails
  steps        jsonb,                                     -- names of its steps, in the order of the class
  former_steps jsonb,                                     -- former names of its steps (was=), at which it runs rows too
  graph        jsonb,                                     -- nodes and edges, as gen_durable.graph() returns them; null: not readable
  state_schema jsonb,                                     -- JSON Schema of the state; null: its type has none
  signals      jsonb,                                     -- by name of each declared signal, the JSON Schema of its payload or null
  streams      jsonb,                                     -- by name of each declared stream, the JSON Schema of its items or null
  on_cancel    jsonb,                                     -- steps that react to a cancel: {"ship": "recall"}
  defaults     jsonb,                                     -- of inserts without code: priority, max_attempts, concurrency_key,
                                                          -- rate_limit; `computed`: options that only code can compute
  on_failure   jsonb,                                     -- step -> the step after its failure, for the reaper; null: none
  max_attempts jsonb,                                     -- step -> executions after which it has failed; null: no step has a limit
  retention    jsonb,                                     -- seconds by final status; without one, the settings of workers decide
  keeps_history boolean not null default false,           -- whether its transitions keep their states
  digest       text,                                      -- of what was registered; workers.fsm_digests has that of each worker
  updated_at   timestamptz not null default statement_timestamp(),
  primary key (fsm, fsm_version)
);

-- How long an instance that ends is kept; null: the settings of the worker that collects decide. For commits: a function that is
-- not called costs nothing, a subquery is set up by every execution. PL/pgSQL, because its plans stay cached in the session.
create function gen_durable.retention_of(fsm text, version int, status gen_durable.durable_status) returns interval
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  return (select make_interval(secs => (m.retention ->> retention_of.status::text)::double precision)
            from gen_durable.machines m where m.fsm = retention_of.fsm and m.fsm_version = retention_of.version);
end $$;
revoke execute on function gen_durable.retention_of from public;

-- Instances as clients read them, in types that every driver knows.
create view gen_durable.snapshots as
select g.id, g.fsm, g.fsm_version, g.step, g.status::text as status, g.state::text as state, g.result::text as result,
       g.attempt, g.step_seq, g.crash_count, g.queue, g.priority,
       -- The columns keep their values for a retry: an ended instance awaits nothing, a woken one has no deadline.
       case when g.finished_at is null then g.awaits end as awaits,
       case when g.status = 'awaiting_signal' then g.await_deadline end as await_deadline, g.children_pending,
       g.last_error, g.error::text as error, g.correlation_key, g.unique_key, g.concurrency_key, g.rate_limit, g.weight,
       g.parent_id, g.locked_by, case when g.status = 'executing' then g.lease_expires_at end as lease_expires_at,
       g.inserted_at, g.updated_at, g.eligible_at, g.finished_at, g.cancel_requested_at, g.cancel_reason, g.cancelled_by,
       g.deleted_at, g.delete_reason, g.schedule, g.fire_time, g.collected_at, g.forked_from, g.forked_seq,
       g.undo_steps::text as undo_steps, g.compensation::text as compensation, g.checkpoint::text as checkpoint,
       g.progress::text as progress
  from gen_durable.gen_durable g;
