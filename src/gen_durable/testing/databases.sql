-- Databases of tests. Names start with gen_durable_test_ and the token of the session that created them.

-- name: others
-- The number of other clients of this database.
select count(*) from pg_stat_activity a
 where a.datname = current_database() and a.pid <> pg_backend_pid() and a.backend_type = 'client backend'

-- name: shape
-- A checksum of everything but rows that a test may have changed: every object that is not PostgreSQL's own with its version,
-- planner statistics, settings, prepared transactions. Also the rows of a new database, and whether a relation has grown.
select (select sum(hashtextextended(thing.kind || ' ' || thing.id || ' ' || thing.version, 0)) from (
          select 'relation' as kind, c.oid::text as id, concat_ws(' ', c.xmin, c.relpages, c.reltuples) as version
            from pg_class c where c.oid >= 16384
          union all select 'column', a.attrelid || '.' || a.attnum, a.xmin::text from pg_attribute a where a.attrelid >= 16384
          union all select 'default', d.oid::text, d.xmin::text from pg_attrdef d where d.oid >= 16384
          union all select 'function', p.oid::text, p.xmin::text from pg_proc p where p.oid >= 16384
          union all select 'type', t.oid::text, t.xmin::text from pg_type t where t.oid >= 16384
          union all select 'trigger', t.oid::text, t.xmin::text from pg_trigger t
          union all select 'constraint', c.oid::text, c.xmin::text from pg_constraint c where c.oid >= 16384
          union all select 'index', i.indexrelid::text, i.xmin::text from pg_index i where i.indexrelid >= 16384
          union all select 'rule', r.oid::text, r.xmin::text from pg_rewrite r where r.oid >= 16384
          union all select 'sequence', s.seqrelid::text, s.xmin::text from pg_sequence s
          union all select 'label', e.oid::text, e.xmin::text from pg_enum e
          union all select 'language', l.oid::text, l.xmin::text from pg_language l
          union all select 'kind of statistics', s.oid::text, s.xmin::text from pg_statistic_ext s
          union all select 'policy', p.oid::text, p.xmin::text from pg_policy p
          union all select 'schema', n.oid::text, n.xmin::text from pg_namespace n
          union all select 'extension', e.oid::text, e.xmin::text from pg_extension e
          union all select 'event trigger', e.oid::text, e.xmin::text from pg_event_trigger e
          union all select 'rights to come', d.oid::text, d.xmin::text from pg_default_acl d
          union all select 'publication', p.oid::text, p.xmin::text from pg_publication p
          union all select 'large object', l.oid::text, l.xmin::text from pg_largeobject_metadata l
          union all select 'statistics', s.starelid::text, s.xmin::text from pg_statistic s where s.starelid >= 16384
          union all select 'database', d.oid::text, d.xmin::text from pg_database d where d.datname = current_database()
          union all select 'setting', s.setrole::text, s.setconfig::text from pg_db_role_setting s
                     where s.setdatabase = (select d.oid from pg_database d where d.datname = current_database())
          union all select 'others', count(*)::text, sum(d.objid::bigint)::text from pg_depend d where d.objid >= 16384
          union all select 'prepared', count(*)::text, '' from pg_prepared_xacts p where p.database = current_database()) thing) as shape,
       (select string_agg(m::text, ' ' order by m::text) from gen_durable.migrations m) as migrations,
       (select string_agg(s::text, ' ') from gen_durable.settings s) as settings,
       (select bool_or(pg_relation_size(c.oid) > 262144) from pg_class c where c.oid >= 16384 and c.relkind in ('r', 'i', 't')) as is_large

-- name: tables
-- The tables of a schema that are empty in a new database.
select c.relname as name from pg_class c
 where c.relnamespace = (select n.oid from pg_namespace n where n.nspname = :schema::text) and c.relkind = 'r'
   and c.relname not in ('migrations', 'settings')

-- name: tidy
-- Drop the tables and views that a test created in `public`.
do $$ begin
  execute coalesce((
    select string_agg(format('drop %s if exists %s cascade', case c.relkind when 'v' then 'view' else 'table' end, c.oid::regclass), '; ')
      from pg_class c where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'v')), 'select');
end $$

-- name: rewind
-- Reset sequences and statistics.
select pg_stat_reset(), (select count(setval(s.seqrelid::regclass, s.seqstart, false)) from pg_sequence s)

-- name: lock
-- Lock the template, so that one process creates it while others wait.
select pg_advisory_lock(hashtextextended(:name::text, 0))

-- name: unlock
-- Unlock the template.
select pg_advisory_unlock(hashtextextended(:name::text, 0))

-- name: exists
-- Whether a database with this name exists.
select exists (select from pg_database where datname = :name::text) as found

-- name: old_templates
-- Templates of earlier schemas except the last eight, which other checkouts may use.
select d.datname as name from pg_database d
 where d.datname like 'gen\_durable\_template\_%' and pg_has_role(d.datdba, 'usage')
 order by d.oid desc offset 8

-- name: orphans
-- Databases whose session was killed before it dropped them. A live session has its token as application_name.
select d.datname as name from pg_database d
 where d.datname ~ '^gen_durable_test_[0-9a-f]{8}_[0-9]+$' and pg_get_userbyid(d.datdba) = current_user
   and not exists (select from pg_stat_activity a
                    where a.application_name = 'gen_durable test ' || split_part(d.datname, '_', 4))
