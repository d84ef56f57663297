-- The version of the schema.

-- name: lock
-- Serialize migrations of one schema. Transaction-level, so a pooler cannot leave it locked.
select pg_advisory_xact_lock(hashtextextended('gen_durable.migrate:' || :schema::text, 0))

-- name: is_there
-- Whether the schema is installed, from the catalog cache of this session: cheap, but a recent commit may be missing.
select to_regclass(quote_ident(:schema::text) || '.migrations') is not null as is_there

-- name: exists
-- Whether the schema exists and is installed, who owns it, and the encoding of the database. Reads the catalog.
select current_setting('server_encoding') as encoding,
       exists (select from pg_namespace where nspname = :schema::text) as has_schema,
       exists (select from pg_class c join pg_namespace n on n.oid = c.relnamespace
                where n.nspname = :schema::text and c.relname = 'migrations') as has_migrations,
       -- The owner of the schema, if this role must not trust it. A superuser is a member of all roles.
       (select owner.rolname::text
          from pg_namespace n join pg_roles owner on owner.oid = n.nspowner join pg_roles us on us.rolname = current_user
         where n.nspname = :schema::text and owner.oid <> us.oid and not owner.rolsuper and owner.rolname <> 'pg_database_owner'
           and owner.oid <> (select d.datdba from pg_database d where d.datname = current_database())
           and (us.rolsuper or not pg_has_role(owner.oid, 'member'))) as foreign_owner

-- name: version
-- The newest applied increment, and the oldest code that works with all applied increments.
select max(version) as version, max(oldest_code) as oldest_code from gen_durable.migrations

-- name: left_behind
-- Live workers whose code is older than :oldest_code.
select w.name, w.schema_version from gen_durable.workers w
 where w.expires_at > statement_timestamp() and w.schema_version < :oldest_code::int
 order by w.name

-- name: record
-- Record an applied increment.
insert into gen_durable.migrations (version, oldest_code) values (:version::int, :oldest_code::int)

-- name: forget
-- Remove the record of a reverted increment.
delete from gen_durable.migrations where version = :version::int

-- name: audit
-- Record a migration in the audit log.
select gen_durable.audit_action('schema', 'migrated', :reason::text, :actor::text,
                                jsonb_build_object('version', :version::int, 'before', :before::int))
