-- What happened to one instance, from all tables that record it.

-- name: timeline
-- The newest :most rows of each source, by its index: executions that committed, that were aborted, and the live one; signals that
-- are unread or kept for their dedup_key; children; audit events. Audit events of recorded executions are left out, unless they name
-- a caller.
with ended as (
  (select e.* from gen_durable.executions e
    where e.instance_id = :id::bigint and e.status in ('COMMITTED', 'DONE') order by e.step_seq desc limit :most::int)
  union all
  (select e.* from gen_durable.executions e
    where e.instance_id = :id::bigint and e.status = 'ABORTED' order by e.step_seq desc, e.execution desc limit :most::int)
), messages as (
  (select s.id, s.name, s.inserted_at, s.consumed_seq from gen_durable.signals s
    where s.target_id = :id::bigint and s.consumed_seq is null order by s.id desc limit :most::int)
  union all
  (select s.id, s.name, s.inserted_at, s.consumed_seq from gen_durable.signals s
    where s.target_id = :id::bigint and s.dedup_key is not null and s.consumed_seq is not null order by s.id desc limit :most::int)
)
select 'execution' as kind, e.execution::bigint as number, e.leased_at, e.started_at, e.finished_at, e.step as name, e.outcome,
       e.lease_owner as worker, e.attempt, e.step_seq, e.error, null::text as actor, null::text as login, e.awaits, e.signals::text as signals,
       e.to_step, e.cause
  from ended e
union all
select 'execution', g.execution, g.leased_at, g.started_at, null, g.step, null, g.locked_by, g.attempt, g.step_seq + 1, null, null,
       null, null, null, null, null
  from gen_durable.gen_durable g where g.id = :id::bigint and g.status = 'executing'
union all
select 'signal', m.id, m.inserted_at, null, null, m.name, case when m.consumed_seq is null then 'unread' else 'consumed' end, null,
       null, m.consumed_seq, null, null, null, null, null, null, null
  from messages m
union all
(select 'child', child.id, child.inserted_at, null, child.finished_at, child.fsm, child.status::text, null, null, child.parent_round,
        child.last_error, null, null, null, null, null, null
   from gen_durable.gen_durable child where child.parent_id = :id::bigint order by child.id desc limit :most::int)
union all
(select 'audit', a.id, a.created_at, null, null, coalesce(a.data ->> 'signal', a.data ->> 'step'), a.event, a.data ->> 'worker', null,
        (a.data ->> 'step_seq')::bigint, coalesce(a.reason, a.data ->> 'error'), a.actor, a.login, null, null, null, null
   from gen_durable.audit_events a
  where a.instance_id = :id::bigint and a.event not in ('leased', 'started')
    and not (a.actor is null and a.data ? 'execution' and (a.data ->> 'execution')::int in (select e.execution from ended e))
  order by a.id desc limit :most::int)
