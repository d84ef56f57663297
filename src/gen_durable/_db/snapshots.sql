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

-- part: wanted
   (:with_deleted::boolean or deleted_at is null) and (not :only_deleted::boolean or deleted_at is not null)
   and (:fsms::text[] is null or fsm = any (:fsms::text[]))
   and (:version::int is null or fsm_version = :version::int)
   and (:steps::text[] is null or step = any (:steps::text[]))
   and (:statuses::text[] is null or status = any (:statuses::text[]))
   and (:queue::text is null or queue = :queue::text)
   and (:correlation_key::text is null or correlation_key = :correlation_key::text)
   and (:unique_key::bytea is null or unique_key = :unique_key::bytea)
   and (:concurrency_key::text is null or concurrency_key = :concurrency_key::text)
   and (:parent_id::bigint is null or parent_id = :parent_id::bigint)
   and (:schedule::text is null or schedule = :schedule::text)
   and (:inserted_after::timestamptz is null or inserted_at >= :inserted_after::timestamptz)
   and (:inserted_before::timestamptz is null or inserted_at < :inserted_before::timestamptz)

-- Three variants of each statement below: plain, by correlation key, by parent. One plan serves all filters and uses an index for
-- none of them. The variants name the key or the parent in a plain condition, so that its index is used.

-- name: list
-- One page, newest first, below :before. A null filter matches everything.
select * from gen_durable.snapshots
 where id < :before::bigint and {wanted}
 order by id desc limit :limit::int

-- name: list_by_key
-- One page of the instances with one correlation key.
select * from gen_durable.snapshots
 where correlation_key = :correlation_key::text and id < :before::bigint and {wanted}
 order by id desc limit :limit::int

-- name: list_by_parent
-- One page of the children of one instance. `id + 0` keeps the planner from walking the primary key: it sorts the children.
select * from gen_durable.snapshots
 where parent_id = :parent_id::bigint and id < :before::bigint and {wanted}
 order by id + 0 desc limit :limit::int

-- name: ids
-- One page of ids, for walks over many instances.
select id from gen_durable.snapshots
 where id < :before::bigint and {wanted}
 order by id desc limit :limit::int

-- name: ids_by_key
-- One page of the ids with one correlation key.
select id from gen_durable.snapshots
 where correlation_key = :correlation_key::text and id < :before::bigint and {wanted}
 order by id desc limit :limit::int

-- name: ids_by_parent
-- One page of the ids of the children of one instance.
select id from gen_durable.snapshots
 where parent_id = :parent_id::bigint and id < :before::bigint and {wanted}
 order by id + 0 desc limit :limit::int

-- name: count
-- The number of instances that match the filters.
select count(*) as count from gen_durable.snapshots where {wanted}

-- name: count_by_key
-- The number of instances with one correlation key that match the filters.
select count(*) as count from gen_durable.snapshots where correlation_key = :correlation_key::text and {wanted}

-- name: count_by_parent
-- The number of children of one instance that match the filters.
select count(*) as count from gen_durable.snapshots where parent_id = :parent_id::bigint and {wanted}

-- name: tally
-- The number of instances per machine and status.
select fsm, status, count(*) as count from gen_durable.snapshots where {wanted} group by fsm, status order by fsm, status

-- name: tally_by_key
-- The number of instances with one correlation key, per machine and status.
select fsm, status, count(*) as count from gen_durable.snapshots
 where correlation_key = :correlation_key::text and {wanted} group by fsm, status order by fsm, status

-- name: tally_by_parent
-- The number of children of one instance, per machine and status.
select fsm, status, count(*) as count from gen_durable.snapshots
 where parent_id = :parent_id::bigint and {wanted} group by fsm, status order by fsm, status

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
