-- Find instances by filters: pages, ids, counts.
--
-- search.py composes a statement from the parts of this file: with `:x is null or …`, a generic plan could not use an index. A
-- statement reads one or more sources. Each source reads one index, and together they contain every matching row once:
--   by_id                         without a filter other than time, newest first
--   by_correlation_key …          by key, parent, schedule or compensation: the most selective filter
--   runnable, gated, executing    live rows, if the wanted statuses include them. The runnable ones are sorted, so they are all read
--   resting                       parked and ended rows by machine, queue, version, status and step
--   deleted …                     soft-deleted rows, if they are wanted

-- name: bounds
-- Translate a moment to ids by binary search: `low` is the id of a row inserted before it, `high` of one inserted at it or later;
-- null if none was found. The search stops at ranges of 1000 ids. Ids grow with inserted_at, except that a statement takes its ids
-- some time after its timestamp: callers shift the moment by :slack, and check inserted_at as well.
with recursive moment as materialized (
  select :moment::timestamptz + :slack::interval as at
), search as (
  select 0::bigint as low, null::bigint as high, (select max(g.id) + 1 from gen_durable.gen_durable g) as top, 0 as depth
  union all
  select case when probe.inserted_at < (select at from moment) then probe.id else search.low end,
         case when probe.inserted_at >= (select at from moment) then probe.id else search.high end,
         case when probe.inserted_at < (select at from moment) then search.top else middle.id end, search.depth + 1
    from search cross join lateral (select search.low + (search.top - search.low) / 2 as id) middle
    left join lateral (
      select g.id, g.inserted_at from gen_durable.gen_durable g
       where g.id >= middle.id and g.id < search.top order by g.id limit 1) probe on true
   where search.top - search.low > 1000
)
select nullif(search.low, 0) as low, search.high from search order by search.depth desc limit 1

-- part: page
-- One page, newest first.
select * from gen_durable.snapshots where id = any (array(
{ids}
)) order by id desc

-- part: ids
{groups}
select found.id from (
{sources}
) found order by found.id desc limit :limit::int

-- part: count
{groups}
select count(*) as count from (
{sources}
) found

-- part: tally
-- The number of instances per machine and status.
{groups}
select found.fsm, found.status::text as status, count(*) as count from (
{sources}
) found group by found.fsm, found.status order by found.fsm, found.status::text

-- part: newest
-- The rows of a source that the page may contain, in the order of an index.
order by g.id desc limit :limit::int

-- part: newest_sorted
-- The same of a source without such an index. `id + 0` keeps the planner from walking the primary key.
order by g.id + 0 desc limit :limit::int

-- part: all
-- Every row. OFFSET keeps a lateral source from being planned as a join.
offset 0

-- part: by_id
select g.fsm, g.status, g.id from gen_durable.gen_durable g where true {conditions} {newest}

-- part: by_correlation_key
select g.fsm, g.status, g.id from gen_durable.gen_durable g where g.correlation_key = :correlation_key::text {conditions} {newest}

-- part: by_unique_key
-- The row that occupies the key.
select g.fsm, g.status, g.id from gen_durable.gen_durable g
 where g.unique_key = :unique_key::bytea
   and g.status = any (g.unique_scope) and (g.deleted_at is null or g.status = 'executing') {conditions} {newest}

-- part: by_former_unique_key
-- The rows that occupied it before.
select g.fsm, g.status, g.id from gen_durable.gen_durable g
 where g.unique_key = :unique_key::bytea
   and (g.status = any (g.unique_scope) and (g.deleted_at is null or g.status = 'executing')) is not true {conditions} {newest}

-- part: by_parent
select g.fsm, g.status, g.id from gen_durable.gen_durable g where g.parent_id = :parent_id::bigint {conditions} {newest}

-- part: by_schedule
select g.fsm, g.status, g.id from gen_durable.gen_durable g where g.schedule = :schedule::text {conditions} {newest}

-- part: by_compensation
select g.fsm, g.status, g.id from gen_durable.gen_durable g where g.compensation is not null {conditions} {newest}

-- part: by_concurrency_key
select g.fsm, g.status, g.id from gen_durable.gen_durable g
 where g.concurrency_key = :concurrency_key::text and g.status not in ('runnable', 'executing') {conditions} {newest}

-- part: runnable_by_concurrency_key
select g.fsm, g.status, g.id from gen_durable.gen_durable g
 where g.concurrency_key = :concurrency_key::text and g.status = 'runnable' {conditions} {newest}

-- part: runnable
select g.fsm, g.status, g.id from gen_durable.gen_durable g where g.status = 'runnable' and not g.gated {conditions} {newest}

-- part: runnable_of_machines
select one.* from (select distinct given.fsm from unnest(:fsms::text[]) as given (fsm)) machine cross join lateral (
  select g.fsm, g.status, g.id from gen_durable.gen_durable g
   where g.status = 'runnable' and not g.gated and g.fsm collate "C" = machine.fsm {conditions} {newest}) one

-- part: gated
select g.fsm, g.status, g.id from gen_durable.gen_durable g where g.status = 'runnable' and g.gated {conditions} {newest}

-- part: executing
select g.fsm, g.status, g.id from gen_durable.gen_durable g where g.status = 'executing' {conditions} {newest}

-- part: deleted
select g.fsm, g.status, g.id from gen_durable.gen_durable g
 where g.deleted_at is not null and g.finished_at is not null {conditions} {newest}

-- part: deleted_live
select g.fsm, g.status, g.id from gen_durable.gen_durable g
 where g.deleted_at is not null and g.finished_at is null {conditions} {newest}

-- part: deleted_parked
select g.fsm, g.status, g.id from gen_durable.gen_durable g
 where g.deleted_at is not null and g.finished_at is null and g.status not in ('runnable', 'executing') {conditions} {newest}

-- part: resting
select one.* from (select * from groups where true {group_conditions}) groups cross join lateral (
  select g.fsm, g.status, g.id from gen_durable.gen_durable g
   where g.fsm collate "C" = groups.fsm and g.queue = groups.queue and g.fsm_version = groups.fsm_version
     and g.status = groups.status and g.rest_step = groups.rest_step
     and g.status not in ('runnable', 'executing') and g.deleted_at is null
     {conditions} {newest}) one

-- part: groups
-- The groups of resting rows, by a skip scan: one probe per machine, queue, version, status and step.
with recursive groups as (
  (select g.fsm, g.queue, g.fsm_version, g.status, g.rest_step from gen_durable.gen_durable g
    where g.status not in ('runnable', 'executing') and g.deleted_at is null
    order by g.fsm collate "C", g.queue, g.fsm_version, g.status, g.rest_step limit 1)
  union all
  select next.* from groups cross join lateral (
    select g.fsm, g.queue, g.fsm_version, g.status, g.rest_step from gen_durable.gen_durable g
     where g.status not in ('runnable', 'executing') and g.deleted_at is null
       and (g.fsm collate "C", g.queue, g.fsm_version, g.status, g.rest_step)
           > (groups.fsm collate "C", groups.queue, groups.fsm_version, groups.status, groups.rest_step)
     order by g.fsm collate "C", g.queue, g.fsm_version, g.status, g.rest_step limit 1) next
)

-- part: groups_of_machines
-- The same of the given machines only.
with recursive groups as (
  select first.* from (select distinct given.fsm from unnest(:fsms::text[]) as given (fsm)) machine cross join lateral (
    select g.fsm, g.queue, g.fsm_version, g.status, g.rest_step from gen_durable.gen_durable g
     where g.status not in ('runnable', 'executing') and g.deleted_at is null and g.fsm collate "C" = machine.fsm
     order by g.queue, g.fsm_version, g.status, g.rest_step limit 1) first
  union all
  select next.* from groups cross join lateral (
    select g.fsm, g.queue, g.fsm_version, g.status, g.rest_step from gen_durable.gen_durable g
     where g.status not in ('runnable', 'executing') and g.deleted_at is null and g.fsm collate "C" = groups.fsm
       and (g.queue, g.fsm_version, g.status, g.rest_step)
           > (groups.queue, groups.fsm_version, groups.status, groups.rest_step)
     order by g.queue, g.fsm_version, g.status, g.rest_step limit 1) next
)

-- Conditions, by the field of the filter.

-- part: on_fsms
and g.fsm collate "C" = any (:fsms::text[])
-- part: on_version
and g.fsm_version = :version::int
-- part: on_steps
and g.step = any (:steps::text[])
-- part: on_statuses
and g.status = any (:statuses::text[]::gen_durable.durable_status[])
-- part: on_queue
and g.queue = :queue::text
-- part: on_correlation_key
and g.correlation_key = :correlation_key::text
-- part: on_unique_key
and g.unique_key = :unique_key::bytea
-- part: on_concurrency_key
and g.concurrency_key = :concurrency_key::text
-- part: on_parent_id
and g.parent_id = :parent_id::bigint
-- part: on_schedule
and g.schedule = :schedule::text
-- part: on_compensating
and g.compensation -> 'end' is not null and g.finished_at is null
-- part: on_inserted_after
and g.inserted_at >= :inserted_after::timestamptz and g.id > :low::bigint
-- part: on_inserted_before
and g.inserted_at < :inserted_before::timestamptz and g.id < :high::bigint
-- part: on_before
and g.id < :before::bigint
-- part: on_before_sorted
-- `id + 0` keeps the planner from walking the primary key.
and g.id + 0 < :before::bigint
-- part: without_deleted
and g.deleted_at is null
-- part: without_deleted_live
-- For runnable rows: without reading them, because hardly any live row is deleted.
and g.id <> all (array(
  select d.id from gen_durable.gen_durable d where d.deleted_at is not null and d.finished_at is null))
-- part: only_deleted
and g.deleted_at is not null
-- part: group_version
and groups.fsm_version = :version::int
-- part: group_statuses
and groups.status = any (:statuses::text[]::gen_durable.durable_status[])
-- part: group_queue
and groups.queue = :queue::text
-- part: group_steps
and groups.rest_step = any (:steps::text[])
