-- Locks of other sessions, for messages about lock timeouts.

-- name: holder
-- The session with the strongest lock on a table of the schema, or on :relation if given.
select c.relname::text as relation, l.mode, l.pid, coalesce(a.application_name, '') as application,
       extract(epoch from clock_timestamp() - a.xact_start)::float8 as seconds
  from pg_locks l
  join pg_class c on c.oid = l.relation and c.relkind in ('r', 'p')
  join pg_namespace n on n.oid = c.relnamespace
  left join pg_stat_activity a on a.pid = l.pid
 where n.nspname = :schema::text
   and (c.relname = :relation::text or :relation::text is null)
   and l.database = (select oid from pg_database where datname = current_database())
   and l.granted
   and l.pid <> pg_backend_pid()
 order by array_position(array['AccessExclusiveLock', 'ExclusiveLock', 'ShareRowExclusiveLock', 'ShareLock',
                               'ShareUpdateExclusiveLock', 'RowExclusiveLock', 'RowShareLock'], l.mode),
          a.xact_start
 limit 1
