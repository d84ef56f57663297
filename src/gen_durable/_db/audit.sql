-- Audit: read events, set the level. Events are written by the statements that make the changes.

-- part: event
a.id, a.instance_id, a.subject, a.event, a.actor, a.login, a.reason, a.data::text as data, a.created_at

-- name: events
-- The audit events of one instance, oldest first, after :after.
select {event}
  from gen_durable.audit_events a
 where a.instance_id = :instance_id::bigint and a.id > :after::bigint
 order by a.id limit :demand::int

-- name: newest
-- The newest audit events of one instance, newest first.
select {event}
  from gen_durable.audit_events a
 where a.instance_id = :instance_id::bigint
 order by a.id desc limit :demand::int

-- name: level
-- The audit level.
select s.audit::text as level from gen_durable.settings s

-- name: set_level
-- Change the audit level; returns the previous one.
select gen_durable.set_audit(:level::text, :reason::text, :actor::text) as level

-- name: latest
-- The events of all instances and subjects before event :before (null: up to now), newest first.
select {event}
  from gen_durable.audit_events a
 where a.id < coalesce(:before::bigint, 9223372036854775807)
 order by a.id desc limit :demand::int

-- name: give_reason
-- Add actor and reason to the event that this transaction has written.
select gen_durable.audit_reason(:instance_id::bigint, :event::text, :reason::text, :actor::text, :data::text::jsonb)
