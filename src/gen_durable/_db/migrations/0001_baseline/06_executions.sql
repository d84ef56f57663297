-- Executions: one row per ended execution, views of all executions and of the job state, and the functions that commits call.
--
-- The live execution is stored in columns of the instance. The transaction that ends an execution inserts its row here.

create table gen_durable.executions (
  instance_id  bigint not null,
  step_seq     bigint not null,                           -- the transition that it committed or attempted
  execution    int not null,                              -- its number within the instance
  attempt      int not null,                              -- attempts of that step before it
  status       text not null check (status in ('COMMITTED', 'DONE', 'ABORTED')),
  outcome      text not null,                             -- next ... stop, edit; if ABORTED: retry, shutdown, rejoin,
                                                          -- unknown_step, lease, poison, cancelled
  step         text not null,
  to_step      text,                                      -- the step that the transition led to; null: it ended the instance, or
                                                          -- the execution was aborted
  cause        text,                                      -- why the instance failed or the execution was aborted: stop, error,
                                                          -- timeout, exhausted, no_handler, refused, crash, poison; null: neither
                                                          -- by its code nor by a crash
  lease_owner  text,
  leased_at    timestamptz,
  lease_expires_at timestamptz,                           -- expiry of the lease when the execution ended
  started_at   timestamptz,
  finished_at  timestamptz not null,
  error        text,
  retried_at   timestamptz,                               -- it ended the job, and the job was retried then
  signals      jsonb,                                     -- what it consumed, and what its end deleted unread (unread: true):
                                                          -- the newest 100, with id, name and time of arrival (at)
  awaits       text[],                                    -- of an await: the names of the signals ...
  await_deadline timestamptz,                             -- ... and the deadline
  -- With history, and of edits:
  state        jsonb,                                     -- the state that the transition wrote ...
  state_version int,                                      -- ... and the version of the machine that can read it
  state_before jsonb,                                     -- the state before, where no earlier record has it ...
  state_before_version int                                -- ... and its version
) with (autovacuum_vacuum_insert_scale_factor = 0.1);

-- At most one execution commits a transition. The guard of commits ensures it; this index enforces it.
create unique index executions_commit on gen_durable.executions (instance_id, step_seq) where status in ('COMMITTED', 'DONE');
create index executions_aborted on gen_durable.executions (instance_id, step_seq) where status = 'ABORTED';
create index executions_committed on gen_durable.executions (finished_at) where status = 'COMMITTED';

-- All executions with the names of the state model: committed, aborted, live. Three branches, so that each uses its index when
-- one job is read.
create view gen_durable.gen_durable_executions as
select e.instance_id || ':' || e.execution as exec_id, e.instance_id as job_id, e.execution as attempt, e.lease_owner,
       e.lease_expires_at, e.status, e.leased_at, e.started_at, e.finished_at, e.step, e.step_seq,
       e.attempt as step_attempt, e.outcome, e.error, e.retried_at, e.to_step, e.cause
  from gen_durable.executions e where e.status in ('COMMITTED', 'DONE')
union all
select e.instance_id || ':' || e.execution, e.instance_id, e.execution, e.lease_owner, e.lease_expires_at, e.status, e.leased_at,
       e.started_at, e.finished_at, e.step, e.step_seq, e.attempt, e.outcome, e.error, e.retried_at, e.to_step,
       e.cause
  from gen_durable.executions e where e.status = 'ABORTED'
union all
select g.id || ':' || g.execution, g.id, g.execution, g.locked_by, g.lease_expires_at,
       case when g.started_at is null then 'LEASED' else 'IN_PROGRESS' end, g.leased_at, g.started_at, null, g.step,
       g.step_seq + 1, g.attempt, null, null, null, null, null
  from gen_durable.gen_durable g where g.status = 'executing';

-- The state of a job, derived from its executions. The execution that ended it decides, unless the job was retried since. A
-- success counts when that execution is DONE: while it is COMMITTED, its events are not published, and the job is RUNNING.
-- Without such an execution the job is RUNNING if an execution is live or has committed, else PENDING. Without records, status
-- and step_seq of the instance decide.
create view gen_durable.gen_durable_job_state as
select g.id as job_id, g.state as payload, g.execution as attempt, g.inserted_at as created_at, g.updated_at,
       coalesce(
         (select case when e.outcome = 'stop' then 'FAILED' when e.status = 'DONE' then 'SUCCEEDED' else 'RUNNING' end
            from gen_durable.executions e
           where e.instance_id = g.id and e.status in ('COMMITTED', 'DONE') and e.outcome in ('done', 'stop')
             and e.retried_at is null
           order by e.step_seq desc limit 1),
         (select case e.outcome when 'cancelled' then 'CANCELLED' else 'FAILED' end from gen_durable.executions e
           where e.instance_id = g.id and e.status = 'ABORTED' and e.outcome in ('cancelled', 'poison')
             and e.retried_at is null
           order by e.step_seq desc limit 1),
         case g.status when 'done' then 'SUCCEEDED' when 'failed' then 'FAILED' when 'cancelled' then 'CANCELLED' end,
         case when g.lease_token is not null or g.step_seq > 0 then 'RUNNING' else 'PENDING' end) as state
  from gen_durable.gen_durable g;

-- Whether an execution of this transition was already recorded as unknown_step: the next one that is returned for it has neither a
-- record nor a number, or the records of an instance would grow as long as no worker has its step.
create function gen_durable.is_known_return(instance_id bigint, step_seq bigint) returns boolean
language sql stable set search_path = pg_catalog, pg_temp as $$
  select exists (select from gen_durable.executions e
                  where e.instance_id = is_known_return.instance_id and e.step_seq = is_known_return.step_seq
                    and e.status = 'ABORTED' and e.outcome = 'unknown_step')
$$;

-- Between an effect and its outcome: lock the row if this execution still owns its lease and no cancel is requested. The lock
-- keeps that true until the end of the transaction. No id: the effect is rolled back. Also returns whether the transaction is
-- still the one of the effect, and its isolation level: under another level the lock could raise a serialization error first.
-- The effect ran on the search_path of its role and may have changed it. This function pins the path for all statements that
-- write the outcome. It has no SET clause, because that would restore the path at its end; names used before the pin are
-- qualified. COMMIT restores gen_durable_pool.path for triggers that the effect deferred.
create function gen_durable.lock_for_effect(
  target bigint, token bigint, seq bigint, out in_effect_transaction boolean, out isolation text, out id bigint)
language plpgsql as $$
begin
  perform pg_catalog.set_config('gen_durable_pool.path', pg_catalog.current_setting('search_path'), true);
  perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
  in_effect_transaction := coalesce(current_setting('gen_durable_pool.in_effect', true) = 'on', false);
  isolation := current_setting('transaction_isolation');
  if isolation = 'read committed' then
    select g.id into id from gen_durable.gen_durable g
     where g.id = target and g.lease_token = token and g.step_seq = seq and g.cancel_requested_at is null
       for no key update;
  end if;
end $$;

-- Count down the barriers of these parents: one element per child that has ended, by commit, reap or cancel. Returns the queues
-- of released parents. PL/pgSQL, because its plans stay cached in the session.
-- Guard: the locked row decides whether a parent waits, not the snapshot: a concurrent retry or rejoin may put the parent back
-- on its barrier while this waits for the lock.
-- Locks: the caller has locked the children; parents are locked here, ids descending.
create function gen_durable.join_parents(parent_ids bigint[], parent_rounds bigint[]) returns setof text
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  return query
    with ended as (
      select child.parent_id, child.parent_round, count(*)::int as children
        from unnest(parent_ids, parent_rounds) as child (parent_id, parent_round)
       group by child.parent_id, child.parent_round
    ), parent as (
      select p.id, ended.children, p.status = 'awaiting_children' and p.spawn_round = ended.parent_round as is_waiting
        from ended join gen_durable.gen_durable p on p.id = ended.parent_id order by p.id desc for no key update of p
    ), joined as (
      update gen_durable.gen_durable p
         set children_pending = greatest(p.children_pending - parent.children, 0),
             status = case when p.children_pending = parent.children then 'runnable'::gen_durable.durable_status
                           else p.status end,
             eligible_at = case when p.children_pending = parent.children then greatest(p.eligible_at, statement_timestamp())
                                else p.eligible_at end,
             updated_at = statement_timestamp()
        from parent where p.id = parent.id and parent.is_waiting
      returning p.status, p.queue
    )
    select joined.queue from joined where joined.status = 'runnable';
end $$;

-- Set the barriers of these rows to the number of their live children; without live children, release the row. For children that
-- were not inserted because their unique key is taken, for rows that return to their barrier (`rejoin`), and for rows that run undo
-- steps after their children have ended (`unwind`).
-- Guard: an earlier statement of the transaction has locked the rows, and this statement has a newer snapshot. A child that ends
-- holds the lock of its parent until it commits. So a child that is live here counts down the barrier later, and a child that has
-- ended here does not.
create function gen_durable.fix_barriers(parent_ids bigint[]) returns table (id bigint, status text, queue text)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
  return query
    update gen_durable.gen_durable g
       set children_pending = barrier.pending,
           status = case when barrier.pending = 0 then 'runnable'::gen_durable.durable_status else g.status end
      from (select parent.id, (select count(*)::int from gen_durable.gen_durable child
                                where child.parent_id = parent.id and child.parent_round = parent.spawn_round
                                  and child.status not in ('done', 'failed', 'cancelled')) as pending
              from gen_durable.gen_durable parent
             where parent.id = any (parent_ids) and parent.status = 'awaiting_children') barrier
     where g.id = barrier.id
    returning g.id, g.status::text, g.queue;
end $$;

-- Whether the transitions of an instance keep their states, as its machine says, or a newer version that may upgrade it. For
-- transitions that are not outcomes: of the reaper, and to undo and on_cancel steps.
create function gen_durable.keeps_history(fsm text, version int) returns boolean
language sql stable
return exists (select from gen_durable.machines m
                where m.fsm = keeps_history.fsm and m.fsm_version >= keeps_history.version and m.keeps_history);

revoke execute on function
  gen_durable.keeps_history, gen_durable.is_known_return, gen_durable.lock_for_effect, gen_durable.join_parents,
  gen_durable.fix_barriers
  from public;
