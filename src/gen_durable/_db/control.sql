-- Control: cancel, delete, restore, retry and edit instances by the functions of the schema, which SQL producers share.

-- name: cancel
-- Cancel these instances; request it of those that execute. One row per instance that exists.
select id, was, status, queues
  from gen_durable.cancel_rows(:ids::bigint[], :reason::text, :actor::text, :force::boolean, :undo::boolean)

-- name: leads_to
-- Where a cancel leads these instances before they end: `compensating`: they run undo steps already; `on_cancel`; `undo`; null: to
-- no step.
select g.id, case when g.compensation ? 'end' then 'compensating' when m.on_cancel ? g.step then 'on_cancel'
                  when g.undo_steps is not null then 'undo' end as leads_to
  from gen_durable.gen_durable g left join gen_durable.machines m on m.fsm = g.fsm and m.fsm_version = g.fsm_version
 where g.id = any (:ids::bigint[])

-- name: delete
-- Soft-delete; live instances are cancelled first.
select id, deleted_at, status, queues from gen_durable.delete_rows(:ids::bigint[], :reason::text, :actor::text)

-- name: restore
-- Undo a soft delete.
select id, status from gen_durable.restore_rows(:ids::bigint[], :reason::text, :actor::text)

-- name: retry
-- Retry failed or cancelled instances at the step where they ended, or at :step.
select id, is_retried, status, queue
  from gen_durable.retry_rows(:ids::bigint[], :state::text, :step::text, :reason::text, :actor::text)

-- name: edit
-- Change state or step of an instance that is not executing; refusal says why it was left unchanged.
select id, refusal, status, step_seq, queue
  from gen_durable.edit_row(:id::bigint, :state::text, :step::text, :expected_seq::bigint, :expected_version::int, :wake::boolean,
                            :reason::text, :actor::text)

-- name: fork
-- Insert a new instance that starts after a transition of another one; problem says why nothing was inserted.
select id, problem, queue, status, step_seq
  from gen_durable.fork_row(:id::bigint, :at::bigint, :state::text, :step::text, :expected_version::int, :correlation_key::text,
                            :unique_key::bytea, :reason::text, :actor::text, :computed_keys::text::jsonb)

-- name: live_children
-- The children of these instances that have not ended: the next level of a cascading cancel.
select child.id from gen_durable.gen_durable child
 where child.parent_id = any (:ids::bigint[]) and child.status not in ('done', 'failed', 'cancelled')
 order by child.id

-- name: unfinished_children
-- The children of these instances that are not done: a failed or cancelled child may have live descendants.
select child.id from gen_durable.gen_durable child
 where child.parent_id = any (:ids::bigint[]) and child.status <> 'done'
 order by child.id

-- name: deleted_with_key
-- The latest deleted instance with this correlation key: the target of a restore by key.
select max(found.id) as id from (
  select g.id from gen_durable.gen_durable g
   where g.correlation_key = :key::text and g.status = any (g.correlation_scope) and g.status = 'executing' and g.deleted_at is not null
  union all
  (select g.id from gen_durable.gen_durable g
    where g.correlation_key = :key::text and g.deleted_at is not null
      and (g.status = any (g.correlation_scope) and (g.deleted_at is null or g.status = 'executing')) is not true
    order by g.id desc limit 1)) found
