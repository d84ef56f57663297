-- Races that a statement has lost.

-- name: pause
-- Between two tries.
select pg_sleep(:seconds::float8)::text
