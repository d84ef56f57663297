-- Find instances by filters: pages, ids, counts.
--
-- search.py composes a statement from the parts of this file: with `:x is null or …`, a generic plan could not use an index. A
-- statement reads one or more sources. Each source reads one index, and together they contain every matching row once:
--   by_id                         without a filter other than time, newest first
--   by_ids                        the given ids
--   by_correlation_key …          by key, parent, schedule or compensation: the most selective filter
--   runnable, gated, executing    live rows, if the wanted statuses include them. No index has the runnable ones in the order of ids:
--                                 a page looks among the newest rows first, and only then sorts them (`walked`)
--   resting                       parked and ended rows by machine, queue, version, status and step
--   deleted …                     soft-deleted rows, if they are wanted
--
-- Conditions without an index (the state, the last error, attempts …) are checked by a statement `newest_…`: on the newest :limit rows
-- that the other conditions select, and not on more. The caller continues below the last id that was examined.

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

-- name: queue_names
-- Queues that workers serve and queues with settings, for completion; at most :most of each.
select found.name from (
  (select q.name from gen_durable.queues q order by q.name limit :most::int)
  union
  (select served.name from gen_durable.workers w cross join unnest(w.queues) as served (name) limit :most::int)) found

-- name: schedule_names
-- Schedules, for completion.
select s.name from gen_durable.schedules s order by s.name limit :most::int

-- name: worker_names
-- Workers, for completion.
select w.name from gen_durable.workers w order by w.name limit :most::int

-- name: concurrency_limit_names
-- Concurrency limits, for completion.
select l.name from gen_durable.limits l where l.kind = 'concurrency' order by l.name limit :most::int

-- name: rate_limit_names
-- Rate limits, for completion.
select l.name from gen_durable.limits l where l.kind = 'rate' order by l.name limit :most::int

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

-- part: ids_upwards
{groups}
select found.id from (
{sources}
) found order by found.id limit :limit::int

-- part: walked
-- A page of rows that include runnable ones. A backlog is usually among the newest rows: if the newest rows of all contain enough
-- matching ones, the sources are not read. Otherwise they are, and all runnable rows of the filter are sorted.
{groups} walk as materialized (
  select g.id, (true {conditions}) as is_matching
    from (select * from gen_durable.gen_durable g where true {places} order by g.id {direction} limit 2 * greatest(:limit::int, 1000)) g
), walked as materialized (
  select count(*) filter (where walk.is_matching) >= :limit::int or count(*) < 2 * greatest(:limit::int, 1000) as is_enough from walk
)
select found.id from (
select walk.id from walk where walk.is_matching and (select walked.is_enough from walked)
union all
select source.id from (
{sources}
) source where not (select walked.is_enough from walked)
) found order by found.id {direction} limit :limit::int

-- part: count
{groups}
select count(*) as count from (
{sources}
) found

-- part: capped
-- At most :limit of them are read.
{groups}
select count(*) as count from (select from (
{sources}
) found limit :limit::int) each

-- part: tally
-- The number of instances per machine and status.
{groups}
select found.fsm, found.status::text as status, count(*) as count from (
{sources}
) found group by found.fsm, found.status order by found.fsm, found.status::text

-- part: tally_of_groups
-- The same with the resting rows of each group counted at once, which takes half of the time.
{groups}
select found.fsm, found.status::text as status, sum(found.number)::bigint as count from (
select one.fsm, one.status, 1 as number from (
{sources}
) one
union all
{resting}
) found group by found.fsm, found.status having sum(found.number) > 0 order by found.fsm, found.status::text

-- part: candidates
candidates as materialized (
{ids}
), examined as materialized (
  select count(*) as examined, {last}(candidates.id) as last from candidates
)

-- part: newest_page
-- The matching rows among the candidates, newest first; with the number of candidates and the id of the last of them. At least one row.
with {candidates}, matching as materialized (
  select g.id from gen_durable.gen_durable g
   where g.id = any (array(select candidates.id from candidates)) {checks}
   order by g.id desc limit :most::int
)
select examined.examined, examined.last, snapshot.*
  from examined left join gen_durable.snapshots snapshot on snapshot.id = any (array(select matching.id from matching))
 order by snapshot.id desc

-- part: newest_ids
-- The same, ids only.
with {candidates}, matching as materialized (
  select g.id from gen_durable.gen_durable g
   where g.id = any (array(select candidates.id from candidates)) {checks}
   order by g.id desc limit :most::int
)
select examined.examined, examined.last, matching.id from examined left join matching on true order by matching.id desc

-- part: newest_ids_upwards
-- The same among the oldest candidates, oldest first.
with {candidates}, matching as materialized (
  select g.id from gen_durable.gen_durable g
   where g.id = any (array(select candidates.id from candidates)) {checks}
   order by g.id limit :most::int
)
select examined.examined, examined.last, matching.id from examined left join matching on true order by matching.id

-- part: newest_tally
-- The number of matching candidates per machine and status.
with {candidates}, matching as materialized (
  select g.fsm, g.status, count(*) as count from gen_durable.gen_durable g
   where g.id = any (array(select candidates.id from candidates)) {checks} group by g.fsm, g.status
)
select examined.examined, examined.last, matching.fsm, matching.status::text as status, matching.count
  from examined left join matching on true order by matching.fsm, matching.status::text

-- part: among
-- Which of these rows match.
select g.id from gen_durable.gen_durable g where g.id = any (:among::bigint[]) {checks}

-- part: newest
-- The rows of a source that the page may contain, in the order of an index.
order by g.id desc limit :limit::int

-- part: newest_sorted
-- The same of a source without such an index. `id + 0` keeps the planner from walking the primary key.
order by g.id + 0 desc limit :limit::int

-- part: oldest
order by g.id limit :limit::int

-- part: oldest_sorted
order by g.id + 0 limit :limit::int

-- part: any
-- Some rows, in any order.
limit :limit::int

-- part: all
-- Every row. OFFSET keeps a lateral source from being planned as a join.
offset 0

-- part: by_id
select g.fsm, g.status, g.id from gen_durable.gen_durable g where true {conditions} {newest}

-- part: by_ids
select g.fsm, g.status, g.id from gen_durable.gen_durable g where g.id = any (:ids::bigint[]) {conditions} {newest}

-- part: by_correlation_keys
-- The rows that occupy the keys.
select one.* from (select distinct given.key from unnest({correlation_keys}) as given (key)) wanted cross join lateral (
  select g.fsm, g.status, g.id from gen_durable.gen_durable g
   where g.correlation_key = wanted.key
     and g.status = any (g.correlation_scope) and (g.deleted_at is null or g.status = 'executing') {conditions} {newest}) one

-- part: by_former_correlation_keys
-- The rows that occupied them before.
select one.* from (select distinct given.key from unnest({correlation_keys}) as given (key)) wanted cross join lateral (
  select g.fsm, g.status, g.id from gen_durable.gen_durable g
   where g.correlation_key = wanted.key
     and (g.status = any (g.correlation_scope) and (g.deleted_at is null or g.status = 'executing')) is not true
     {conditions} {newest}) one

-- part: by_unique_keys
select one.* from (select distinct given.key from unnest({unique_keys}) as given (key)) wanted cross join lateral (
  select g.fsm, g.status, g.id from gen_durable.gen_durable g
   where g.unique_key = wanted.key
     and g.status = any (g.unique_scope) and (g.deleted_at is null or g.status = 'executing') {conditions} {newest}) one

-- part: by_former_unique_keys
-- The rows that occupied them before.
select one.* from (select distinct given.key from unnest({unique_keys}) as given (key)) wanted cross join lateral (
  select g.fsm, g.status, g.id from gen_durable.gen_durable g
   where g.unique_key = wanted.key
     and (g.status = any (g.unique_scope) and (g.deleted_at is null or g.status = 'executing')) is not true
     {conditions} {newest}) one

-- part: keys_as_bytes
array(select convert_to(given.key, 'UTF8') from unnest(:keys::text[]) as given (key))

-- part: by_parents
select one.* from (select distinct given.id from unnest(:parent_ids::bigint[]) as given (id)) wanted cross join lateral (
  select g.fsm, g.status, g.id from gen_durable.gen_durable g where g.parent_id = wanted.id {conditions} {newest}) one

-- part: by_schedules
select one.* from (select distinct given.name from unnest(:schedules::text[]) as given (name)) wanted cross join lateral (
  select g.fsm, g.status, g.id from gen_durable.gen_durable g where g.schedule = wanted.name {conditions} {newest}) one

-- part: by_compensation
select g.fsm, g.status, g.id from gen_durable.gen_durable g where g.compensation is not null {conditions} {newest}

-- part: by_concurrency_keys
select one.* from (select distinct given.key from unnest(:concurrency_keys::text[]) as given (key)) wanted cross join lateral (
  select g.fsm, g.status, g.id from gen_durable.gen_durable g
   where g.concurrency_key = wanted.key and g.status not in ('runnable', 'executing') {conditions} {newest}) one

-- part: runnable_by_concurrency_keys
select one.* from (select distinct given.key from unnest(:concurrency_keys::text[]) as given (key)) wanted cross join lateral (
  select g.fsm, g.status, g.id from gen_durable.gen_durable g
   where g.concurrency_key = wanted.key and g.status = 'runnable' {conditions} {newest}) one

-- part: runnable
-- The status is a constant: no index contains it, and counts read only gen_durable_machine.
select g.fsm, 'runnable'::gen_durable.durable_status as status, g.id from gen_durable.gen_durable g
 where g.status = 'runnable' and not g.gated {conditions} {newest}

-- part: runnable_of_machines
select one.* from (select distinct given.fsm from unnest(:fsms::text[]) as given (fsm)) machine cross join lateral (
  select g.fsm, 'runnable'::gen_durable.durable_status as status, g.id from gen_durable.gen_durable g
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

-- part: counted_resting
select groups.fsm, groups.status, one.number from (select * from groups where true {group_conditions}) groups cross join lateral (
  select count(*) as number from gen_durable.gen_durable g
   where g.fsm collate "C" = groups.fsm and g.queue = groups.queue and g.fsm_version = groups.fsm_version
     and g.status = groups.status and g.rest_step = groups.rest_step
     and g.status not in ('runnable', 'executing') and g.deleted_at is null
     {conditions}) one

-- part: no_rows
select g.fsm, g.status, g.id from gen_durable.gen_durable g where false

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

-- part: runnable_groups
-- The machines, queues and versions of runnable rows that are not gated, by a skip scan of gen_durable_machine.
runnable_groups as (
  (select g.fsm, g.queue, g.fsm_version from gen_durable.gen_durable g
    where g.status = 'runnable' and not g.gated order by g.fsm collate "C", g.queue, g.fsm_version limit 1)
  union all
  select next.* from runnable_groups groups cross join lateral (
    select g.fsm, g.queue, g.fsm_version from gen_durable.gen_durable g
     where g.status = 'runnable' and not g.gated
       and (g.fsm collate "C", g.queue, g.fsm_version) > (groups.fsm collate "C", groups.queue, groups.fsm_version)
     order by g.fsm collate "C", g.queue, g.fsm_version limit 1) next
)

-- Conditions, by the field of the filter.

-- part: on_fsms
and g.fsm collate "C" = any (:fsms::text[])
-- part: on_ids
and g.id = any (:ids::bigint[])
-- part: on_versions
and g.fsm_version = any (:versions::int[])
-- part: on_steps
and g.step = any (:steps::text[])
-- part: on_statuses
and g.status = any (:statuses::text[]::gen_durable.durable_status[])
-- part: on_queues
and g.queue = any (:queues::text[])
-- part: on_keys
and (g.correlation_key = any (:keys::text[]) or g.unique_key = any ({keys_as_bytes}))
-- part: on_correlation_keys
and g.correlation_key = any (:correlation_keys::text[])
-- part: on_unique_keys
and g.unique_key = any (:unique_keys::bytea[])
-- part: on_concurrency_keys
and g.concurrency_key = any (:concurrency_keys::text[])
-- part: on_parent_ids
and g.parent_id = any (:parent_ids::bigint[])
-- part: on_schedules
and g.schedule = any (:schedules::text[])
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
-- part: on_after
and g.id > :after::bigint
-- part: on_after_sorted
and g.id + 0 > :after::bigint
-- part: without_deleted
and g.deleted_at is null
-- part: without_deleted_live
-- For runnable rows: without reading them, because hardly any live row is deleted.
and g.id <> all (array(
  select d.id from gen_durable.gen_durable d where d.deleted_at is not null and d.finished_at is null))
-- part: only_deleted
and g.deleted_at is not null
-- part: group_versions
and groups.fsm_version = any (:versions::int[])
-- part: group_statuses
and groups.status = any (:statuses::text[]::gen_durable.durable_status[])
-- part: group_queues
and groups.queue = any (:queues::text[])
-- part: group_steps
and groups.rest_step = any (:steps::text[])

-- Conditions of single terms, `{n}` times each. {row} is the row `g` or a group.

-- part: if_machine
({row}.fsm = any (:names_{n}::text[])
 or exists (select from unnest(:prefixes_{n}::text[]) as prefix (name) where starts_with({row}.fsm, prefix.name)))
-- part: if_step
{row}.{step} = any (:names_{n}::text[])
-- part: if_queue
{row}.queue = any (:names_{n}::text[])
-- part: if_version
exists (select from unnest(:lows_{n}::bigint[], :highs_{n}::bigint[]) as range (low, high)
         where {row}.fsm_version between range.low and range.high)
-- part: if_status
(g.status = any (:statuses_{n}::text[]::gen_durable.durable_status[])
 or 'due' = any (:words_{n}::text[]) and g.status = 'runnable' and not g.gated and g.eligible_at <= statement_timestamp()
 or 'later' = any (:words_{n}::text[]) and g.status = 'runnable' and not g.gated and g.eligible_at > statement_timestamp()
 or 'gated' = any (:words_{n}::text[]) and g.status = 'runnable' and g.gated
 or 'retrying' = any (:words_{n}::text[]) and g.status = 'runnable' and g.attempt > 0
 or 'compensating' = any (:words_{n}::text[]) and g.compensation -> 'end' is not null and g.finished_at is null
 or 'deleted' = any (:words_{n}::text[]) and g.deleted_at is not null)
-- part: if_due
(g.status = 'runnable' and not g.gated and g.eligible_at <= statement_timestamp())
-- part: if_later
(g.status = 'runnable' and not g.gated and g.eligible_at > statement_timestamp())
-- part: due_runnable
-- On rows of `runnable`: only columns of gen_durable_pick and gen_durable_machine, so that no row is read.
g.eligible_at <= statement_timestamp()
-- part: later_runnable
g.eligible_at > statement_timestamp()
-- part: if_id
g.id = any (:ids_{n}::bigint[])
-- part: if_key
(g.correlation_key = any (:keys_{n}::text[])
 or g.unique_key = any (array(select convert_to(given.key, 'UTF8') from unnest(:keys_{n}::text[]) as given (key))))
-- part: if_concurrency
g.concurrency_key = any (:keys_{n}::text[])
-- part: if_parent
g.parent_id = any (:ids_{n}::bigint[])
-- part: if_schedule
g.schedule = any (:names_{n}::text[])
-- part: if_limit
(g.rate_limit = any (:keys_{n}::text[]) or split_part(g.rate_limit, ':', 1) = any (:keys_{n}::text[]))
-- part: if_worker
(g.status = 'executing' and g.locked_by = any (:names_{n}::text[]))
-- part: if_awaits
(g.status = 'awaiting_signal' and g.awaits && :names_{n}::text[])
-- part: if_attempt
exists (select from unnest(:lows_{n}::bigint[], :highs_{n}::bigint[]) as range (low, high)
         where g.attempt + 1::bigint between range.low and range.high)
-- part: if_priority
exists (select from unnest(:lows_{n}::bigint[], :highs_{n}::bigint[]) as range (low, high)
         where g.priority between range.low and range.high)
-- part: if_stuck
(g.finished_at is null and g.updated_at >= coalesce(:after_{n}::text::timestamptz, '-infinity')
 and g.updated_at < coalesce(:before_{n}::text::timestamptz, 'infinity'))
-- part: if_ended
(g.finished_at >= coalesce(:after_{n}::text::timestamptz, '-infinity') and g.finished_at < coalesce(:before_{n}::text::timestamptz, 'infinity'))
-- part: if_error
(g.last_error = any (:texts_{n}::text[]) or g.error ->> 'type' = any (:texts_{n}::text[])
 or exists (select from unnest(:parts_{n}::text[]) as part (text) where strpos(lower(g.last_error), lower(part.text)) > 0))
-- part: if_state
(g.state #> :path_{n}::text[]) = any (:values_{n}::text[]::jsonb[])
