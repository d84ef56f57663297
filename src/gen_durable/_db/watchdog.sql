-- Sessions whose connection may have fallen silent.

-- name: working
-- Which of these work on a statement. One whose state is hidden or not tracked counts as working.
select activity.pid
from pg_catalog.pg_stat_activity activity
where activity.pid = any(:pids::integer[])
  and coalesce(activity.state, '') not in ('idle', 'idle in transaction', 'idle in transaction (aborted)')
