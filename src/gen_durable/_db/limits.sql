-- Limits: read and change them. The functions of the schema release the rows that wait for a changed limit.

-- name: ls
-- All limits, by name.
select l.kind, l.name, l.slots, l.allowed, l.period, l.burst
  from gen_durable.limits l order by l.name, l.kind

-- name: put
-- Create or change one limit; with :only_if_new, create it only. Locks the table `limits` in EXCLUSIVE mode.
select gen_durable.apply_limit(:name::text, :kind::text, :slots::int, :allowed::int, :period::interval, :burst::int,
                               :only_if_new::boolean, :reason::text, :actor::text) as is_written

-- name: missing
-- Which of these limits do not exist, without a lock: seeding existing limits must not lock the table.
select given.kind, given.name from unnest(:kinds::text[], :names::text[]) as given (kind, name)
 where not exists (select from gen_durable.limits l where l.kind = given.kind and l.name = given.name)

-- name: remove
-- Remove a limit of one kind, or (null) of both.
select gen_durable.remove_limit(:name::text, :kind::text, :reason::text, :actor::text) as is_gone
