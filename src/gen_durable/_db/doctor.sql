-- Doctor: checks of a database. Run on demand; some read the whole backlog.

-- name: indexes
-- The indexes of the schema and whether they are valid: an index whose build failed is not.
select c.relname as name, i.indisvalid and i.indisready as is_valid
  from pg_index i join pg_class c on c.oid = i.indexrelid join pg_namespace n on n.oid = c.relnamespace
 where n.nspname = :schema::text

-- name: bloat
-- Tables with more dead rows than live ones, of which autovacuum is overdue: no vacuum within :grace, although the server and the
-- schema are older than that.
select s.relname as name, s.n_dead_tup as dead, s.n_live_tup as live,
       greatest(s.last_vacuum, s.last_autovacuum) as vacuumed_at
  from pg_stat_user_tables s
 where s.schemaname = :schema::text and s.n_dead_tup >= :least::bigint and s.n_dead_tup > s.n_live_tup
   and greatest(s.last_vacuum, s.last_autovacuum, pg_postmaster_start_time(), (select min(m.applied_at) from gen_durable.migrations m))
       < statement_timestamp() - :grace::interval
 order by s.relname

-- name: transactions
-- Transactions, prepared ones included, that have been open for long: vacuum cannot remove rows that died since. The age of other
-- roles' sessions needs pg_read_all_stats.
select a.pid::text as who, coalesce(a.usename::text, '?') as owner, a.state, a.xact_start as since from pg_stat_activity a
 where a.datname = current_database() and a.pid <> pg_backend_pid() and a.backend_type = 'client backend'
   and a.xact_start < statement_timestamp() - :longest::interval
union all
select p.gid, p.owner::text, 'prepared', p.prepared from pg_prepared_xacts p
 where p.database = current_database() and p.prepared < statement_timestamp() - :longest::interval
 order by since

-- name: session
-- The settings of this session, as this statement sees them.
select setting.name, current_setting(setting.name) as value from unnest(:names::text[]) as setting (name)

-- name: creators
-- Roles other than the owner that may create objects in our schema, or in a schema of the default search_path of this role. Our
-- sessions do not use that path; effects and people do. The owner of a schema is trusted by the roles that have it on their path.
with configured as (
  select split_part(one.setting, '=', 2) as path
    from pg_db_role_setting s cross join lateral unnest(s.setconfig) as one (setting)
   where starts_with(one.setting, 'search_path=')
     and s.setdatabase in (0, (select d.oid from pg_database d where d.datname = current_database()))
     and s.setrole in (0, (select r.oid from pg_roles r where r.rolname = current_user))
   order by s.setrole = 0, s.setdatabase = 0 limit 1
), path as (
  select replace(btrim(each.name, ' "'), '$user', current_user) as name
    from unnest(string_to_array(coalesce((select configured.path from configured), '"$user", public'), ',')) as each (name)
)
select n.nspname as schema, n.nspname = :schema::text as is_ours,
       array_agg(distinct coalesce(r.rolname::text, 'public') order by coalesce(r.rolname::text, 'public')) as roles
  from pg_namespace n
 cross join lateral aclexplode(n.nspacl) acl
  left join pg_roles r on r.oid = acl.grantee
 where (n.nspname = :schema::text or n.nspname in (select path.name from path))
   and acl.privilege_type = 'CREATE' and acl.grantee <> n.nspowner
   and r.rolname is distinct from current_user and r.rolsuper is not true
 group by n.nspname order by n.nspname

-- name: owner
-- The owner of the schema, if it differs from the owner of the tables: it can replace objects.
select owner.rolname::text as schema_owner, ours.rolname::text as table_owner
  from pg_namespace n join pg_roles owner on owner.oid = n.nspowner
  join pg_class c on c.relnamespace = n.oid and c.relname = 'gen_durable' join pg_roles ours on ours.oid = c.relowner
 where n.nspname = :schema::text and owner.oid <> ours.oid and not owner.rolsuper and owner.rolname <> 'pg_database_owner'
   and owner.oid <> (select d.datdba from pg_database d where d.datname = current_database())

-- name: leases
-- Leases that expired more than :grace ago: a reaper should have taken them.
select count(*) as count, min(g.lease_expires_at) as since, (array_agg(g.id order by g.lease_expires_at))[1:10] as ids,
       array_agg(distinct g.locked_by) as workers
  from gen_durable.gen_durable g
 where g.status = 'executing' and g.lease_expires_at < statement_timestamp() - :grace::interval

-- name: backlog
-- Runnable and parked rows by queue and machine, and the workers that serve them; by the rules of explain.sql. Parked rows are not
-- due. At most :most are counted: of runnable rows per machine, queue, version and priority, of parked ones per machine, queue,
-- version, status and step, by skip scans of gen_durable_machine and gen_durable_resting.
{search.groups}, prioritized as (
  (select g.fsm, g.queue, g.fsm_version, g.priority from gen_durable.gen_durable g
    where g.status = 'runnable' and not g.gated order by g.fsm collate "C", g.queue, g.fsm_version, g.priority limit 1)
  union all
  select next.* from prioritized one cross join lateral (
    select g.fsm, g.queue, g.fsm_version, g.priority from gen_durable.gen_durable g
     where g.status = 'runnable' and not g.gated
       and (g.fsm collate "C", g.queue, g.fsm_version, g.priority) > (one.fsm collate "C", one.queue, one.fsm_version, one.priority)
     order by g.fsm collate "C", g.queue, g.fsm_version, g.priority limit 1) next
), waiting as (
  select one.queue, one.fsm, one.fsm_version, due.count + later.count as count, due.count as due
    from (select * from prioritized limit 1000) one
   cross join lateral (
     select count(*) as count from (
       select from gen_durable.gen_durable g
        where g.status = 'runnable' and not g.gated and g.fsm collate "C" = one.fsm and g.queue = one.queue
          and g.fsm_version = one.fsm_version and g.priority = one.priority and g.eligible_at <= statement_timestamp()
        limit :most::int) row) due
   cross join lateral (
     select count(*) as count from (
       select from gen_durable.gen_durable g
        where g.status = 'runnable' and not g.gated and g.fsm collate "C" = one.fsm and g.queue = one.queue
          and g.fsm_version = one.fsm_version and g.priority = one.priority and g.eligible_at > statement_timestamp()
        limit :most::int - due.count) row) later
  union all
  select gated.queue, gated.fsm, gated.fsm_version, count(*), count(*) from (
    select g.queue, g.fsm, g.fsm_version from gen_durable.gen_durable g
     where g.status = 'runnable' and g.concurrency_key is not null and g.gated limit :most::int) gated
   group by 1, 2, 3
  union all
  select groups.queue, groups.fsm, groups.fsm_version, parked.count, 0
    from groups cross join lateral (
      select count(*) as count from (
        select from gen_durable.gen_durable g
         where g.fsm collate "C" = groups.fsm and g.queue = groups.queue and g.fsm_version = groups.fsm_version
           and g.status = groups.status and g.rest_step = groups.rest_step
           and g.status not in ('runnable', 'executing') and g.deleted_at is null limit :most::int) row) parked
   where groups.status in ('awaiting_signal', 'awaiting_children')
), backlog as (
  select queue, fsm, fsm_version, sum(count)::bigint as count, sum(due)::bigint as due from waiting group by 1, 2, 3
)
select backlog.queue, backlog.fsm, backlog.fsm_version, backlog.count, backlog.due, serving_workers.serving, serving_workers.able,
       exists (select from gen_durable.queues q where q.name = backlog.queue and q.is_paused) as is_paused
  from backlog
 cross join lateral (
   select count(*) filter (where each.by_queue or each.by_prefix) as serving,
          count(*) filter (where each.knows and each.by_queue or each.by_prefix and (each.knows or not each.leaves_unknown)) as able
     from (select backlog.queue = any (w.queues) as by_queue, w.leaves_unknown,
                  exists (select from unnest(w.prefixes) as prefix where starts_with(backlog.fsm, prefix)) as by_prefix,
                  exists (select from unnest(w.fsms, w.fsm_versions) as machine (fsm, version)
                           where machine.fsm = backlog.fsm and machine.version = backlog.fsm_version) as knows
             from gen_durable.workers w
            where w.expires_at > statement_timestamp() and not w.is_draining) each) serving_workers
 order by backlog.queue, backlog.fsm, backlog.fsm_version

-- name: busy
-- Queues whose first instance has been due for more than :grace, while all live workers that serve them execute as many steps as they
-- can. At most :most leased rows are counted. Not while a worker serves a prefix: which queues it serves is not known.
with in_flight as materialized (
  select leased.locked_by, leased.queue, count(*) as count
    from (select g.locked_by, g.queue from gen_durable.gen_durable g where g.status = 'executing' limit :most::int) leased
   group by leased.locked_by, leased.queue
), serving as materialized (
  select served.queue, coalesce(q.concurrency, served.capacity) as capacity, w.capacity as total,
         coalesce((select f.count from in_flight f where f.locked_by = w.name and f.queue = served.queue), 0) as running,
         coalesce((select sum(f.count) from in_flight f where f.locked_by = w.name), 0) as all_running
    from gen_durable.workers w
   cross join lateral unnest(w.queues, w.capacities) as served (queue, capacity)
    left join gen_durable.queues q on q.name = served.queue
   where w.expires_at > statement_timestamp() and not w.is_draining and not coalesce(q.is_paused, false)
     and not exists (select from gen_durable.workers p where p.expires_at > statement_timestamp() and p.prefixes <> '{}')
)
select busy.queue, busy.workers, busy.running, busy.capacity, first.eligible_at as since
  from (select s.queue, count(*) as workers, sum(s.running)::bigint as running, sum(s.capacity)::bigint as capacity
          from serving s group by s.queue
        having bool_and(s.running >= s.capacity or coalesce(s.all_running >= s.total, false))) busy
 cross join lateral (
   select g.eligible_at from gen_durable.gen_durable g
    where g.status = 'runnable' and not g.gated and g.queue = busy.queue
    order by g.queue, g.priority, g.eligible_at, g.id limit 1) first
 where first.eligible_at < statement_timestamp() - :grace::interval
 order by busy.queue

-- name: steps
-- Live rows by machine, version and step, of which live workers run the machine and version, but none of them has the step. By skip
-- scans of gen_durable_resting and gen_durable_machine. Of runnable rows, each machine, queue and version has its first and last :sample
-- in the order of the pick read: rows that workers could not start are deferred, so they are among the last.
{search.groups}, {search.runnable_groups}, known as materialized (
  select machine.fsm, machine.version, array_agg(distinct step.name order by step.name) as steps
    from gen_durable.workers w
   cross join lateral unnest(w.fsms, w.fsm_versions) with ordinality as machine (fsm, version, number)
   cross join lateral jsonb_array_elements_text(coalesce(w.fsm_steps -> (machine.number - 1)::int, '[]')) as step (name)
   where w.expires_at > statement_timestamp() and not w.is_draining
   group by 1, 2
), parked as (
  select groups.fsm, groups.fsm_version, groups.rest_step as step, (
           select count(*) from (
             select from gen_durable.gen_durable g
              where g.status not in ('runnable', 'executing') and g.deleted_at is null and g.fsm collate "C" = groups.fsm
                and g.queue = groups.queue and g.fsm_version = groups.fsm_version and g.status = groups.status
                and g.rest_step = groups.rest_step limit :most::int) row) as count, false as is_cut
    from groups join known on known.fsm = groups.fsm and known.version = groups.fsm_version
   where groups.status in ('awaiting_signal', 'awaiting_children') and groups.rest_step <> all (known.steps)
), runnable as (
  select one.fsm, one.fsm_version, row.step, count(*) as count,
         sum(count(*)) over (partition by one.fsm, one.fsm_version, one.queue) >= 2 * :sample::int as is_cut
    from (select * from runnable_groups limit 1000) one
    join known on known.fsm = one.fsm and known.version = one.fsm_version
   cross join lateral (
     select r.step from gen_durable.gen_durable r
      where r.id = any (array(
        (select g.id from gen_durable.gen_durable g
          where g.status = 'runnable' and not g.gated and g.fsm collate "C" = one.fsm and g.queue = one.queue
            and g.fsm_version = one.fsm_version order by g.priority, g.eligible_at, g.id limit :sample::int)
        union
        (select g.id from gen_durable.gen_durable g
          where g.status = 'runnable' and not g.gated and g.fsm collate "C" = one.fsm and g.queue = one.queue
            and g.fsm_version = one.fsm_version order by g.priority desc, g.eligible_at desc, g.id desc limit :sample::int)))) row
   group by one.fsm, one.fsm_version, one.queue, row.step
), gated as (
  select one.fsm, one.fsm_version, one.step, count(*) as count, sum(count(*)) over () >= 2 * :sample::int as is_cut
    from (select g.fsm, g.fsm_version, g.step from gen_durable.gen_durable g
           where g.status = 'runnable' and g.concurrency_key is not null and g.gated limit 2 * :sample::int) one
   group by one.fsm, one.fsm_version, one.step
), live as (
  select * from runnable union all select * from gated union all select * from parked
)
select live.fsm, live.fsm_version, live.step, sum(live.count)::bigint as count, bool_or(live.is_cut) as is_cut, known.steps
  from live join known on known.fsm = live.fsm and known.version = live.fsm_version
 where live.step <> all (known.steps)
 group by live.fsm, live.fsm_version, live.step, known.steps
 order by live.fsm, live.fsm_version, live.step

-- name: schedules
-- Schedules whose fire time passed more than :grace ago: a worker should have fired them.
select count(*) as count, min(late.next_at) as since, (array_agg(late.name order by late.next_at, late.name))[1:10] as names
  from (select s.name, s.next_at from gen_durable.schedules s
         where s.paused_at is null and s.next_at < statement_timestamp() - :grace::interval
         order by s.next_at limit :most::int) late

-- name: failing_schedules
-- Schedules that could not insert at their last fire time. Skipped fire times are not failures.
select s.name, s.last_error from gen_durable.schedules s
 where s.paused_at is null and s.last_error not in ('an instance of it was still live', 'an instance had its key')
 order by s.name limit :most::int

-- name: outbox
-- Late events by sink: due for long, or old and failed. Per sink (a skip scan of outbox_due, at most 1000) the first :most by
-- due time.
with recursive sink as (
  (select o.sink from gen_durable.outbox o where o.published_at is null and o.dead_at is null order by o.sink limit 1)
  union all
  select next.sink from sink cross join lateral (
    select o.sink from gen_durable.outbox o
     where o.published_at is null and o.dead_at is null and o.sink > sink.sink order by o.sink limit 1) next
)
select sink.sink, late.count, late.since, late.oldest, late.last_error
  from (select * from sink limit 1000) sink
 cross join lateral (
   select count(*) as count, min(pending.since) as since, min(pending.created_at) as oldest, max(pending.last_error) as last_error
     from (select o.last_error, o.created_at, case when o.attempts > 0 then o.created_at else o.next_at end as since
             from gen_durable.outbox o
            where o.sink = sink.sink and o.published_at is null and o.dead_at is null
            order by o.next_at, o.id limit :most::int) pending
    where pending.since < statement_timestamp() - :grace::interval) late
 where late.count > 0
 order by sink.sink

-- name: dead_letters
-- Dead letters by sink, of the oldest :most of all sinks. An index scan of outbox_dead.
select dead.sink, count(*) as count, min(dead.dead_at) as since,
       (array_agg(dead.last_error order by dead.dead_at desc))[1] as last_error
  from (select o.sink, o.dead_at, o.last_error from gen_durable.outbox o
         where o.dead_at is not null order by o.id limit :most::int) dead
 group by dead.sink order by dead.sink

-- name: undo
-- Instances that ended with undo steps left, because an undo step failed or was stopped; at most :most. By gen_durable_compensation.
select count(*) as count, min(left_over.finished_at) as since, (array_agg(left_over.id order by left_over.id desc))[1:10] as ids,
       (array_agg(left_over.last_error order by left_over.id desc))[1] as last_error
  from (select g.id, g.finished_at, g.last_error from gen_durable.gen_durable g
         where g.compensation is not null and g.compensation -> 'end' is not null and g.undo_steps is not null
           and g.finished_at is not null and g.deleted_at is null
         limit :most::int) left_over

-- name: limits
-- Rows that wait for a rate limit that does not exist, by limit, at most :most rows. A skip scan of gen_durable_limited over at
-- most 100,000 buckets: there may be one per customer.
with recursive bucket as (
  (select g.rate_limit as key from gen_durable.gen_durable g
    where g.status = 'runnable' and not g.gated and g.rate_limit is not null order by g.rate_limit limit 1)
  union all
  select next.key from bucket cross join lateral (
    select g.rate_limit as key from gen_durable.gen_durable g
     where g.status = 'runnable' and not g.gated and g.rate_limit > bucket.key order by g.rate_limit limit 1) next
)
select stalled.name, count(*) as count, (array_agg(stalled.id order by stalled.id))[1:10] as ids
  from (select split_part(bucket.key, ':', 1) as name, waiting.id
          from (select * from bucket limit 100000) bucket
         cross join lateral (
           select g.id from gen_durable.gen_durable g
            where g.status = 'runnable' and not g.gated and g.rate_limit = bucket.key limit :most::int) waiting
         where not exists (select from gen_durable.limits l
                            where l.kind = 'rate' and l.name = split_part(bucket.key, ':', 1))
         limit :most::int) stalled
 group by stalled.name order by stalled.name

-- name: clock
-- The clock of the database, to compare with ours.
select statement_timestamp() as now
