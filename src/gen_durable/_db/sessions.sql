-- Sessions on the server, in all databases.

-- name: by_application
-- Sessions of clients other than this one, by application. Background processes of the server are not sessions.
select application_name as application, count(*) as sessions
  from pg_stat_activity
 where backend_type = 'client backend'
   and pid <> pg_backend_pid()
 group by application_name
 order by count(*) desc, application_name
