-- Databases that come and go with tests. Names begin with gen_durable_test_ and the token of the session that made them.

-- name: lock
-- One process makes the template while the others of the same run wait for it.
select pg_advisory_lock(hashtextextended(:name::text, 0))

-- name: unlock
-- The other half.
select pg_advisory_unlock(hashtextextended(:name::text, 0))

-- name: exists
-- Whether there is a database of this name.
select exists (select from pg_database where datname = :name::text) as found

-- name: old_templates
-- Templates of earlier versions of the schema, but for the last few: another checkout may use those.
select d.datname as name from pg_database d
 where d.datname like 'gen\_durable\_template\_%' and pg_has_role(d.datdba, 'usage')
 order by d.oid desc offset 8

-- name: orphans
-- Databases whose session is gone: it was killed before it could drop them. A live one shows its token as its name.
select d.datname as name from pg_database d
 where d.datname ~ '^gen_durable_test_[0-9a-f]{8}_[0-9]+$' and pg_get_userbyid(d.datdba) = current_user
   and not exists (select from pg_stat_activity a
                    where a.application_name = 'gen_durable test ' || split_part(d.datname, '_', 4))
