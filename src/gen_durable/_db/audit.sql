-- The audit as people look at it. Its events are written by the statements that make the changes.

-- name: events
-- What has happened to one instance, oldest first, behind :after.
select a.id, a.instance_id, a.event, a.actor, a.login, a.reason, a.data::text as data, a.created_at
  from gen_durable.audit_events a
 where a.instance_id = :instance_id::bigint and a.id > :after::bigint
 order by a.id limit :demand::int

-- name: level
-- Which events are written.
select s.audit::text as level from gen_durable.settings s

-- name: set_level
-- Write those of another level from now on; the level until now.
select gen_durable.set_audit(:level::text, :actor::text) as level
