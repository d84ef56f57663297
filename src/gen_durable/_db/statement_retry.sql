-- Retry of a statement after a lost race.

-- name: pause
-- Wait between two attempts.
select pg_sleep(:seconds::float8)::text
