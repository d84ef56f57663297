-- The committed transitions of an instance, from its execution records.

-- name: transitions
-- The transitions from number :first on, in order, at most :most: the record of each, when its first execution was leased, and how
-- many executions it took. A record that was written by a verb has no lease. States before number :states_from are left out.
select e.step_seq, e.step, e.to_step, e.outcome, e.cause, e.lease_owner, e.leased_at, e.started_at, e.finished_at, e.error, e.retried_at,
       case when e.step_seq >= :states_from::bigint then e.state::text end as state, e.state_version,
       case when e.step_seq >= :states_from::bigint then e.state_before::text end as state_before, e.awaits, e.await_deadline,
       array(select signal ->> 'name' from jsonb_array_elements(e.signals) as signal where not signal ? 'unread') as signals,
       lost.first_leased_at, coalesce(lost.executions, 0) + (e.lease_owner is not null)::int as executions
  from gen_durable.executions e
  left join lateral (
    select min(a.leased_at) as first_leased_at, count(*) filter (where a.lease_owner is not null) as executions
      from gen_durable.executions a
     where a.instance_id = e.instance_id and a.step_seq = e.step_seq and a.status = 'ABORTED') lost on true
 where e.instance_id = :id::bigint and e.status in ('COMMITTED', 'DONE') and e.step_seq >= :first::bigint
 order by e.step_seq limit :most::int

-- name: state_sizes
-- How many bytes the states of the same transitions occupy, without reading them.
select e.step_seq, coalesce(pg_column_size(e.state), 0) + coalesce(pg_column_size(e.state_before), 0) as bytes
  from gen_durable.executions e
 where e.instance_id = :id::bigint and e.status in ('COMMITTED', 'DONE') and e.step_seq >= :first::bigint
 order by e.step_seq limit :most::int

-- name: initial_state
-- The state before the first transition, and its version; no row if it was not kept.
select e.state_before::text as state, e.state_before_version as state_version
  from (select 1 as rank, e.* from gen_durable.executions e
         where e.instance_id = :id::bigint and e.step_seq = 1 and e.status = 'ABORTED'
        union all
        select 2, e.* from gen_durable.executions e
         where e.instance_id = :id::bigint and e.step_seq = 1 and e.status in ('COMMITTED', 'DONE')) e
 where e.state_before is not null
 order by e.rank, e.execution limit 1

-- name: children
-- The ids of the children of an instance, with the transition that the parent had made when it spawned them, or has been moved to
-- by a retry or an edit.
select child.id, child.parent_round from gen_durable.gen_durable child where child.parent_id = :id::bigint order by child.id
