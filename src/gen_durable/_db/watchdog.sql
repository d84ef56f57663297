-- Sessions whose connection may be dead.

-- name: working
-- Which of these sessions execute a statement. A session whose state is hidden or not tracked counts as executing.
select activity.pid
from pg_catalog.pg_stat_activity activity
where activity.pid = any(:pids::integer[])
  and coalesce(activity.state, '') not in ('idle', 'idle in transaction', 'idle in transaction (aborted)')
