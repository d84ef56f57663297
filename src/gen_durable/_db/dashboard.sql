-- Reads that only the dashboard needs. Each is bounded, and runs on a read-only connection with a statement timeout.

-- name: recent_runs
-- The newest :most instances of each schedule, newest first. One probe of gen_durable_schedule per schedule.
select s.name as schedule, run.id, run.status, run.fire_time, run.inserted_at, run.finished_at, run.last_error
  from (select s.name from gen_durable.schedules s order by s.name limit 200) s
 cross join lateral (
   select g.id, g.status::text as status, g.fire_time, g.inserted_at, g.finished_at, g.last_error
     from gen_durable.gen_durable g where g.schedule = s.name order by g.id desc limit :most::int) run
 order by s.name, run.id desc

-- name: running
-- The executing instances, longest lease first, at most :most. An index scan of gen_durable_lease.
select g.id, g.fsm, g.step, g.queue, g.locked_by, g.leased_at, g.attempt, g.correlation_key
  from (select g.* from gen_durable.gen_durable g where g.status = 'executing' limit :most::int) g
 order by g.leased_at

-- name: sinks
-- Pending events by sink, at most :most of each. A skip scan of outbox_due over at most 100 sinks.
with recursive sink as (
  (select o.sink, 1 as n from gen_durable.outbox o where o.published_at is null and o.dead_at is null order by o.sink limit 1)
  union all
  select next.sink, sink.n + 1 from sink cross join lateral (
    select o.sink from gen_durable.outbox o
     where o.published_at is null and o.dead_at is null and o.sink > sink.sink order by o.sink limit 1) next
   where sink.n < 100
)
select sink.sink, pending.count, pending.oldest, pending.attempts, pending.last_error
  from sink
 cross join lateral (
   select count(*) as count, min(o.created_at) as oldest, max(o.attempts) as attempts, max(o.last_error) as last_error
     from (select o.created_at, o.attempts, o.last_error from gen_durable.outbox o
            where o.sink = sink.sink and o.published_at is null and o.dead_at is null
            order by o.next_at, o.id limit :most::int) o) pending
 order by sink.sink

-- name: dead_sinks
-- Dead letters by sink, of the newest :most. An index scan of outbox_dead.
select dead.sink, count(*) as count, max(dead.dead_at) as last_at, (array_agg(dead.last_error order by dead.dead_at desc))[1] as last_error
  from (select o.sink, o.dead_at, o.last_error from gen_durable.outbox o
         where o.dead_at is not null order by o.id desc limit :most::int) dead
 group by dead.sink order by dead.sink

-- name: published
-- The last published events by sink: how many of at most :most, and the delay between commit and publication. By outbox_published.
select newest.sink, count(*) as count,
       percentile_cont(0.5) within group (order by extract(epoch from newest.published_at - newest.created_at)) as p50,
       percentile_cont(0.95) within group (order by extract(epoch from newest.published_at - newest.created_at)) as p95
  from (select o.sink, o.published_at, o.created_at from gen_durable.outbox o
         where o.published_at > statement_timestamp() - :period::interval
         order by o.published_at desc limit :most::int) newest
 group by newest.sink order by newest.sink

-- name: last_event
-- The largest number of an event of the outbox.
select coalesce(max(o.id), 0) as number from gen_durable.outbox o

-- name: few_pending
-- Whether fewer than :most events are pending.
select count(*) < :most::int as are_few
  from (select from gen_durable.outbox o where o.published_at is null and o.dead_at is null limit :most::int) pending

-- name: last_audit_event
-- The largest number of an audit event.
select coalesce(max(a.id), 0) as number from gen_durable.audit_events a

-- part: audit_matches
and (:actor::text is null or a.actor = :actor::text) and (:event::text is null or a.event = :event::text)
   and (:subject::text is null or a.subject = :subject::text)
   and case :who::text when 'people' then a.actor is not null
                       when 'trouble' then a.actor is null and a.event in ('failed', 'crashed', 'retried') else true end

-- name: audit
-- Audit events that match, from :since to before :before, newest first. A range of the primary key.
select {audit.event}
  from gen_durable.audit_events a
 where a.id >= :since::bigint and a.id < :before::bigint {audit_matches}
 order by a.id desc limit :demand::int

-- name: audit_of
-- Audit events of one instance that match, newest first. By audit_events_instance.
select {audit.event}
  from gen_durable.audit_events a
 where a.instance_id = :instance_id::bigint and a.id < :before::bigint {audit_matches}
 order by a.id desc limit :demand::int

-- name: tables
-- Tables of the schema: rows and bytes as the statistics of PostgreSQL know them.
select t.relname as name, t.n_live_tup as live, t.n_dead_tup as dead, pg_table_size(t.relid) as bytes, pg_indexes_size(t.relid) as index_bytes,
       greatest(t.last_vacuum, t.last_autovacuum) as vacuumed_at, greatest(t.last_analyze, t.last_autoanalyze) as analyzed_at
  from pg_stat_user_tables t where t.schemaname = :schema::text
 order by pg_total_relation_size(t.relid) desc

-- name: server
-- The server, and how many of its connections are used.
select current_setting('server_version') as version, current_database() as database, current_setting('max_connections')::int as max_connections,
       pg_postmaster_start_time() as started_at, pg_is_in_recovery() as is_standby, pg_database_size(current_database()) as bytes,
       (select count(*) from pg_stat_activity a where a.backend_type = 'client backend') as connections

-- name: settings
-- Settings of the server; those that this version does not have are left out.
select s.name, current_setting(s.name, true) as value from unnest(:names::text[]) with ordinality as s (name, place)
 where current_setting(s.name, true) is not null order by s.place

-- name: newest_failed
-- The :most instances that failed last, of those in :ids and of those without an expiry, which gen_durable_finished has in the order
-- of their end. :ids are the newest ones by id: no index has instances with an expiry in the order of their end.
select g.id, g.fsm, g.fsm_version, g.step, g.finished_at as at, left(g.last_error, 300) as error
  from gen_durable.gen_durable g
 where g.id = any (array(
         select given.id from unnest(:ids::bigint[]) as given (id)
         union
         (select f.id from gen_durable.gen_durable f
           where f.status = 'failed' and f.finished_at is not null and f.expires_at is null and f.deleted_at is null
             and f.collected_at is null
           order by f.finished_at desc limit :most::int)))
   and g.status = 'failed' and g.deleted_at is null
 order by g.finished_at desc, g.id desc limit :most::int

-- name: newest_raised
-- Failed attempts that were tried again, among the last :most aborted executions of the newest instances. By executions_aborted.
select newest.instance_id as id, g.fsm, g.fsm_version, newest.step, newest.finished_at as at,
       coalesce(left(newest.error, 300), 'The worker died or lost its lease') as error
  from (select e.instance_id, e.step, e.finished_at, e.error, e.outcome from gen_durable.executions e
         where e.status = 'ABORTED' order by e.instance_id desc, e.step_seq desc limit :most::int) newest
  join gen_durable.gen_durable g on g.id = newest.instance_id
 where newest.outcome = 'lease' or newest.outcome = 'retry' and newest.error is not null
 order by newest.finished_at desc, newest.instance_id desc
