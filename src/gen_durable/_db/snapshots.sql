-- Read instances. Most statements return the columns of the view `snapshots`.

-- name: get
-- One instance by id.
select * from gen_durable.snapshots where id = :id::bigint

-- name: get_by_key
-- One instance by correlation key: the one that occupies the key, else the latest that had it; deleted ones last.
select snapshot.*
  from (select 0 as rank, g.id from gen_durable.gen_durable g 
         where g.correlation_key = :key::text and g.status = any (g.correlation_scope) and (g.deleted_at is null or g.status = 'executing')
        union all
        (select 1, g.id from gen_durable.gen_durable g
          where g.correlation_key = :key::text and g.deleted_at is null order by g.id desc limit 1)
        union all
        (select 2, g.id from gen_durable.gen_durable g where g.correlation_key = :key::text order by g.id desc limit 1)
        order by rank limit 1) found
  join gen_durable.snapshots snapshot on snapshot.id = found.id

-- name: finished_or_parked
-- Of these instances, those that have ended, or (:parked) that wait for a signal or children; and nulls for those that do not
-- exist. For clients that wait.
select wanted.id as wanted_id, snapshot.* from unnest(:ids::bigint[], :parked::boolean[]) as wanted (id, parked)
  left join gen_durable.snapshots snapshot on snapshot.id = wanted.id
 where snapshot.id is null or snapshot.status in ('done', 'failed', 'cancelled')
    or wanted.parked and snapshot.status in ('awaiting_signal', 'awaiting_children')

-- name: children_of
-- The children of one instance in spec order: of its last spawn, or (:every) of all.
select snapshot.* from gen_durable.gen_durable parent
  join gen_durable.gen_durable child on child.parent_id = parent.id
       and (:every::boolean or child.parent_round = parent.spawn_round)
  join gen_durable.snapshots snapshot on snapshot.id = child.id
 where parent.id = :id::bigint
 order by child.id

-- name: executions
-- All executions of one instance, live and ended, oldest first.
select exec_id, job_id, attempt, lease_owner, lease_expires_at, status, started_at, finished_at, leased_at, step, step_seq,
       step_attempt, outcome, error, retried_at
  from gen_durable.gen_durable_executions where job_id = :id::bigint order by attempt

-- name: details
-- Columns of one instance that are not in `snapshots`: attempts, lease, cancel, delete.
select g.max_attempts, g.execution, g.timed_out, g.gated, g.lease_expires_at, g.leased_at, g.started_at,
       g.cancel_requested_at, g.cancel_reason, g.cancelled_by, g.delete_reason
  from gen_durable.gen_durable g where g.id = :id::bigint

-- name: inbox
-- The unread signals of one instance by name: count, bytes, oldest.
select s.name, count(*) as count, sum(s.size) as bytes, min(s.inserted_at) as oldest_at from gen_durable.signals s
 where s.target_id = :id::bigint and s.consumed_seq is null group by s.name order by s.name

-- name: children_summary
-- All children of one instance, oldest first, without state and result.
select child.id, child.fsm, child.step, child.status::text as status, child.parent_round, child.last_error
  from gen_durable.gen_durable child where child.parent_id = :id::bigint order by child.id

-- name: audit
-- The audit events of one instance, oldest first.
select event, actor, login, reason, data::text as data, created_at
  from gen_durable.audit_events where instance_id = :id::bigint order by id

-- name: now
-- The clock of the database, for relative times.
select statement_timestamp() as now
