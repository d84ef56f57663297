-- What people do to instances: the functions of the schema do the work, for every language alike.

-- name: cancel
-- End these instances, or ask those that execute to end. One answer per instance that exists.
select id, was, status, queues from gen_durable.cancel_rows(:ids::bigint[], :reason::text, :actor::text, :force::boolean)

-- name: delete
-- Delete softly; what is live is cancelled first.
select id, deleted_at, status, queues from gen_durable.delete_rows(:ids::bigint[], :reason::text, :actor::text)

-- name: restore
-- Undo a soft delete.
select id, status from gen_durable.restore_rows(:ids::bigint[], :reason::text, :actor::text)

-- name: retry
-- Let failed or cancelled instances go on where they ended.
select id, is_retried, status, queue
  from gen_durable.retry_rows(:ids::bigint[], :state::text, :reason::text, :actor::text)

-- name: live_children
-- The children of these instances that have not ended: who is cancelled next, when a cancel goes down the tree.
select child.id from gen_durable.gen_durable child
 where child.parent_id = any (:ids::bigint[]) and child.status not in ('done', 'failed', 'cancelled')
 order by child.id

-- name: unfinished_children
-- The children of these instances that are not done. One that failed or was cancelled may have left live ones behind.
select child.id from gen_durable.gen_durable child
 where child.parent_id = any (:ids::bigint[]) and child.status <> 'done'
 order by child.id

-- name: deleted_with_key
-- Whom a restore by key means: the latest of those that are deleted.
select g.id from gen_durable.gen_durable g
 where g.correlation_key = :key::text and g.deleted_at is not null order by g.id desc limit 1
