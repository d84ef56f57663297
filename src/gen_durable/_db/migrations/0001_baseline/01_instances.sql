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
  fire_time             timestamptz,                        -- ... and the slot that it stands for
  last_error          text,
  error               jsonb,
  traceparent         text,                               -- W3C trace context of whoever inserted it: its spans belong there
  rate_limit          text,                               -- the bucket that the start of this step takes tokens from: a limit, or limit:partition
  weight              int,                                -- how many; null: 1
  rate_turn_at        timestamptz,                        -- its place in the plan of that bucket; null: it has none
  concurrency_key     text collate "C",                   -- so that the keys of one limit are one range
  concurrency_slot    smallint,                           -- the slot of its key that an executing row holds
  gated               boolean not null default false,     -- denied by a busy key: out of the pick index until the key is free

  -- the live execution
  step_seq            bigint not null default 0,          -- committed transitions so far
  execution           int not null default 0,             -- executions so far, the live one included
  lease_token         bigint,                             -- random per pick; every write of an execution names it
  lease_expires_at    timestamptz,
  leased_at           timestamptz,
  started_at          timestamptz,                        -- when its step began, noted within a second; null: not yet
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
create index gen_durable_concurrency on gen_durable.gen_durable (concurrency_key, priority, eligible_at, id)
  where status = 'runnable' and concurrency_key is not null;
create index gen_durable_gated on gen_durable.gen_durable (concurrency_key, priority, eligible_at, id)
  where status = 'runnable' and gated;
create index gen_durable_limited on gen_durable.gen_durable (rate_limit, queue, priority, eligible_at, id)
  where status = 'runnable' and not gated and rate_limit is not null;
create index gen_durable_rate_turn on gen_durable.gen_durable (rate_limit, queue, rate_turn_at)
  where status = 'runnable' and rate_turn_at is not null;
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
create index gen_durable_deleted_live on gen_durable.gen_durable (id) where deleted_at is not null and finished_at is null;
-- The instances of a schedule; those that are live first.
create index gen_durable_schedule on gen_durable.gen_durable (schedule, finished_at) where schedule is not null;

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
       g.deleted_at, g.delete_reason, g.schedule, g.fire_time, g.collected_at
  from gen_durable.gen_durable g;
