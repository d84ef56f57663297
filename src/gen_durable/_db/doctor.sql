-- What may be wrong with a database. For people who ask, now and then; nothing here is quick on a large backlog.

-- name: indexes
-- The indexes of our tables, and whether each of them is used: one whose building failed is not.
select c.relname as name, i.indisvalid and i.indisready as is_valid
  from pg_index i join pg_class c on c.oid = i.indexrelid join pg_namespace n on n.oid = c.relnamespace
 where n.nspname = :schema::text

-- name: bloat
-- Tables with more dead rows than live ones: vacuum does not keep up.
select s.relname as name, s.n_dead_tup as dead, s.n_live_tup as live,
       greatest(s.last_vacuum, s.last_autovacuum) as vacuumed_at
  from pg_stat_user_tables s
 where s.schemaname = :schema::text and s.n_dead_tup >= :least::bigint and s.n_dead_tup > s.n_live_tup
 order by s.relname

-- name: transactions
-- Transactions that have been open for long, prepared ones too: what dies meanwhile cannot be vacuumed away. Of other people's
-- sessions one sees the age only with pg_read_all_stats.
select a.pid::text as who, coalesce(a.usename::text, '?') as owner, a.state, a.xact_start as since from pg_stat_activity a
 where a.datname = current_database() and a.pid <> pg_backend_pid() and a.backend_type = 'client backend'
   and a.xact_start < statement_timestamp() - :longest::interval
union all
select p.gid, p.owner::text, 'prepared', p.prepared from pg_prepared_xacts p
 where p.database = current_database() and p.prepared < statement_timestamp() - :longest::interval
 order by since

-- name: session
-- What holds for this very statement, of what our connections are opened with.
select setting.name, current_setting(setting.name) as value from unnest(:names::text[]) as setting (name)

-- name: creators
-- Roles other than the owner that may create in our schema, or in a schema of the search_path that this role has by default: our
-- own sessions do not use that path, effects and people do. The owner of a schema is trusted by those who have it on their path.
with said as (
  select split_part(one.setting, '=', 2) as path
    from pg_db_role_setting s cross join lateral unnest(s.setconfig) as one (setting)
   where starts_with(one.setting, 'search_path=')
     and s.setdatabase in (0, (select d.oid from pg_database d where d.datname = current_database()))
     and s.setrole in (0, (select r.oid from pg_roles r where r.rolname = current_user))
   order by s.setrole = 0, s.setdatabase = 0 limit 1
), path as (
  select replace(btrim(each.name, ' "'), '$user', current_user) as name
    from unnest(string_to_array(coalesce((select said.path from said), '"$user", public'), ',')) as each (name)
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
-- The owner of our schema, if it is not that of our tables: that role can replace what is in it.
select owner.rolname::text as schema_owner, ours.rolname::text as table_owner
  from pg_namespace n join pg_roles owner on owner.oid = n.nspowner
  join pg_class c on c.relnamespace = n.oid and c.relname = 'gen_durable' join pg_roles ours on ours.oid = c.relowner
 where n.nspname = :schema::text and owner.oid <> ours.oid and not owner.rolsuper and owner.rolname <> 'pg_database_owner'
   and owner.oid <> (select d.datdba from pg_database d where d.datname = current_database())

-- name: leases
-- Leases that ran out so long ago that a reaper should have been there.
select count(*) as count, min(g.lease_expires_at) as since, (array_agg(g.id order by g.lease_expires_at))[1:10] as ids,
       array_agg(distinct g.locked_by) as workers
  from gen_durable.gen_durable g
 where g.status = 'executing' and g.lease_expires_at < statement_timestamp() - :grace::interval

-- name: backlog
-- What waits, by queue and machine, and who would take it; the same rules as in explain.sql.
with waiting as (
  select g.queue, g.fsm, g.fsm_version, count(*) as count, count(*) filter (where g.eligible_at <= statement_timestamp()) as due
    from gen_durable.gen_durable g where g.status = 'runnable' and not g.gated group by 1, 2, 3
  union all
  select g.queue, g.fsm, g.fsm_version, count(*), count(*) from gen_durable.gen_durable g
   where g.status = 'runnable' and g.concurrency_key is not null and g.gated group by 1, 2, 3
), line as (
  select queue, fsm, fsm_version, sum(count)::bigint as count, sum(due)::bigint as due from waiting group by 1, 2, 3
)
select line.queue, line.fsm, line.fsm_version, line.count, line.due, fleet.serving, fleet.able,
       exists (select from gen_durable.queues q where q.name = line.queue and q.is_paused) as is_paused
  from line
 cross join lateral (
   select count(*) filter (where each.by_queue or each.by_prefix) as serving,
          count(*) filter (where each.knows and each.by_queue or each.by_prefix and (each.knows or not each.leaves_unknown)) as able
     from (select line.queue = any (w.queues) as by_queue, w.leaves_unknown,
                  exists (select from unnest(w.prefixes) as prefix where starts_with(line.fsm, prefix)) as by_prefix,
                  exists (select from unnest(w.fsms, w.fsm_versions) as machine (fsm, version)
                           where machine.fsm = line.fsm and machine.version = line.fsm_version) as knows
             from gen_durable.workers w
            where w.expires_at > statement_timestamp() and not w.is_draining) each) fleet
 order by line.queue, line.fsm, line.fsm_version

-- name: schedules
-- Those whose slot came so long ago that a worker should have fired it.
select count(*) as count, min(late.next_at) as since, (array_agg(late.name order by late.next_at, late.name))[1:10] as names
  from (select s.name, s.next_at from gen_durable.schedules s
         where s.paused_at is null and s.next_at < statement_timestamp() - :grace::interval
         order by s.next_at limit :most::int) late

-- name: outbox
-- Events that should be out, by sink: due for long, or made long ago and tried in vain since. Of each sink (a skip scan of
-- outbox_due, up to 1000) so many of those that are due first.
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
-- Dead letters by sink, the oldest :most of all sinks together. An index scan of outbox_dead.
select dead.sink, count(*) as count, min(dead.dead_at) as since,
       (array_agg(dead.last_error order by dead.dead_at desc))[1] as last_error
  from (select o.sink, o.dead_at, o.last_error from gen_durable.outbox o
         where o.dead_at is not null order by o.id limit :most::int) dead
 group by dead.sink order by dead.sink

-- name: limits
-- What waits for a rate limit that does not exist, by its name: so many rows in all. A skip scan of gen_durable_limited over the
-- buckets, which may be one per customer: the first 100,000 that have somebody waiting, in less than a second.
with recursive bucket as (
  (select g.rate_limit as key from gen_durable.gen_durable g
    where g.status = 'runnable' and not g.gated and g.rate_limit is not null order by g.rate_limit limit 1)
  union all
  select next.key from bucket cross join lateral (
    select g.rate_limit as key from gen_durable.gen_durable g
     where g.status = 'runnable' and not g.gated and g.rate_limit > bucket.key order by g.rate_limit limit 1) next
)
select lost.name, count(*) as count, (array_agg(lost.id order by lost.id))[1:10] as ids
  from (select split_part(bucket.key, ':', 1) as name, waiting.id
          from (select * from bucket limit 100000) bucket
         cross join lateral (
           select g.id from gen_durable.gen_durable g
            where g.status = 'runnable' and not g.gated and g.rate_limit = bucket.key limit :most::int) waiting
         where not exists (select from gen_durable.limits l
                            where l.kind = 'rate' and l.name = split_part(bucket.key, ':', 1))
         limit :most::int) lost
 group by lost.name order by lost.name

-- name: clock
-- The database's clock, to be held against ours.
select statement_timestamp() as now
