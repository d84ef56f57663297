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
          where g.correlation_key = :key::text and g.deleted_at is null
            and (g.status = any (g.correlation_scope) and (g.deleted_at is null or g.status = 'executing')) is not true
          order by g.id desc limit 1)
        union all
        (select 2, g.id from gen_durable.gen_durable g
          where g.correlation_key = :key::text
            and (g.status = any (g.correlation_scope) and (g.deleted_at is null or g.status = 'executing')) is not true
          order by g.id desc limit 1)
        order by rank limit 1) found
  join gen_durable.snapshots snapshot on snapshot.id = found.id

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
       step_attempt, outcome, error, retried_at, to_step, cause
  from gen_durable.gen_durable_executions where job_id = :id::bigint order by attempt

-- name: details
-- Columns of one instance that are not in `snapshots`: attempts, lease, cancel, delete.
select g.max_attempts, g.execution, g.timed_out, g.gated, g.lease_expires_at, g.leased_at, g.started_at,
       g.cancel_requested_at, g.cancel_reason, g.cancelled_by, g.delete_reason
  from gen_durable.gen_durable g where g.id = :id::bigint

-- name: briefs
-- Rows of a list, newest first: without state, result and large columns.
select g.id, g.fsm, g.fsm_version, g.step, g.status::text as status, g.queue, g.correlation_key, g.unique_key, g.attempt, g.gated,
       case when g.status = 'awaiting_signal' then g.awaits end as awaits,
       case when g.status = 'awaiting_signal' then g.await_deadline end as await_deadline, g.children_pending,
       left(g.last_error, 300) as last_error, left(g.cancel_reason, 300) as cancel_reason, g.cancel_requested_at, g.locked_by,
       g.inserted_at, g.eligible_at, g.deleted_at, g.progress::text as progress,
       g.compensation -> 'end' is not null and g.finished_at is null as is_compensating,
       coalesce(g.finished_at, case when g.status = 'executing' then g.leased_at end, g.updated_at) as since
  from gen_durable.gen_durable g where g.id = any (:ids::bigint[]) order by g.id desc

-- name: inbox
-- The unread signals of one instance by name: count, bytes, oldest.
select s.name, count(*) as count, sum(s.size) as bytes, min(s.inserted_at) as oldest_at from gen_durable.signals s
 where s.target_id = :id::bigint and s.consumed_seq is null group by s.name order by s.name

-- name: messages
-- The newest unread signals of one instance, oldest first.
select * from (select s.id, s.name, s.payload::text as payload, s.inserted_at from gen_durable.signals s
                where s.target_id = :id::bigint and s.consumed_seq is null order by s.id desc limit :most::int) newest
 order by id

-- name: newest_children
-- The newest children of one instance, oldest first, without state and result.
select * from (select child.id, child.fsm, child.step, child.status::text as status, child.inserted_at, child.finished_at,
                      child.last_error
                 from gen_durable.gen_durable child where child.parent_id = :id::bigint
                order by child.parent_round desc, child.id desc limit :most::int) newest
 order by id

-- name: children_counts
-- The children of one instance by status, at most 10,000.
select status, count(*) as count
  from (select child.status::text as status from gen_durable.gen_durable child
         where child.parent_id = :id::bigint limit 10000) children
 group by status

-- part: ended_execution
e.instance_id || ':' || e.execution as exec_id, e.instance_id as job_id, e.execution as attempt, e.lease_owner, e.lease_expires_at,
e.status, e.started_at, e.finished_at, e.leased_at, e.step, e.step_seq, e.attempt as step_attempt, e.outcome, e.error, e.retried_at,
e.to_step, e.cause

-- name: newest_executions
-- The newest executions of one instance, oldest first: those that committed a transition and aborted ones, each by their index, and
-- the live one.
select * from (
  select * from (
    (select {ended_execution} from gen_durable.executions e
      where e.instance_id = :id::bigint and e.status in ('COMMITTED', 'DONE') order by e.step_seq desc limit :most::int)
    union all
    (select {ended_execution} from gen_durable.executions e
      where e.instance_id = :id::bigint and e.status = 'ABORTED' order by e.step_seq desc, e.execution desc limit :most::int)
    union all
    select l.exec_id, l.job_id, l.attempt, l.lease_owner, l.lease_expires_at, l.status, l.started_at, l.finished_at, l.leased_at, l.step,
           l.step_seq, l.step_attempt, l.outcome, l.error, l.retried_at, l.to_step, l.cause
      from gen_durable.gen_durable_executions l where l.job_id = :id::bigint and l.status in ('LEASED', 'IN_PROGRESS')) each
   order by each.attempt desc limit :most::int) newest
 order by attempt

-- name: pulse
-- The columns of one instance that change while it lives. One row by primary key.
select g.id, g.status::text as status, g.step, g.step_seq, g.attempt, g.updated_at, g.eligible_at, g.progress::text as progress,
       g.inbox_count, g.children_pending
  from gen_durable.gen_durable g where g.id = :id::bigint

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
