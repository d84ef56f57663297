-- Limits: reading and changing them. What a change means for rows that wait is up to functions that SQL producers share.

-- name: ls
-- All of them: there are few.
select l.kind, l.name, l.slots, l.allowed, l.period, l.burst
  from gen_durable.limits l order by l.name, l.kind

-- name: put
-- One limit. As a seed it is written only if there is none of its kind and name.
select gen_durable.apply_limit(:name::text, :kind::text, :slots::int, :allowed::int, :period::interval, :burst::int,
                               :only_if_new::boolean, :reason::text, :actor::text) as is_written

-- name: missing
-- Which of these there are not: a seed that is there already takes no lock.
select given.kind, given.name from unnest(:kinds::text[], :names::text[]) as given (kind, name)
 where not exists (select from gen_durable.limits l where l.kind = given.kind and l.name = given.name)

-- name: remove
-- Of one kind, or (null) of both.
select gen_durable.remove_limit(:name::text, :kind::text, :reason::text, :actor::text) as is_gone
