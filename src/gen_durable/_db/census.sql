-- Count instances by machine, version, status and step, without reading all of them.

-- name: of_all
-- Of all machines. Skip scans of gen_durable_resting and gen_durable_machine find the groups and the machines.
{search.groups}, machine as (
  (select g.fsm from gen_durable.gen_durable g where g.status = 'runnable' and not g.gated order by g.fsm collate "C" limit 1)
  union all
  select next.fsm from machine cross join lateral (
    select g.fsm from gen_durable.gen_durable g
     where g.status = 'runnable' and not g.gated and g.fsm collate "C" > machine.fsm collate "C"
     order by g.fsm collate "C" limit 1) next
), {figures}

-- name: of_machines
-- Of the given machines.
{search.groups_of_machines}, machine as (
  select distinct given.fsm from unnest(:fsms::text[]) as given (fsm)
), {figures}

-- part: figures
--   resting    parked and ended rows; of done and cancelled ones at most :most_ended are counted. The first :sample rows by id of
--              each other group tell the oldest and what they await.
--   runnable   the first rows in the order of the pick; gated and executing ones are few, or the first :most are counted
-- `since`: when the oldest began to be as it is; of due rows, when it became due.
-- Rows are read by the ids that a bounded scan of an index has found: otherwise the planner may read and sort all rows of a group.
resting as (
  select one.fsm, one.fsm_version, one.status::text as state, one.rest_step as step, counted.count, counted.at_least, sample.since,
         case when one.status = 'awaiting_signal' then sample.awaits end as awaits
    from (select * from groups limit 1000) one cross join lateral (
      select count(*), count(*) >= case when one.status in ('done', 'cancelled') then :most_ended::int else :most::int end as at_least
        from ((select from gen_durable.gen_durable g
                where g.fsm collate "C" = one.fsm and g.queue = one.queue and g.fsm_version = one.fsm_version and g.status = one.status
                  and g.rest_step = one.rest_step and g.status not in ('runnable', 'executing') and g.deleted_at is null
                  and one.status not in ('done', 'cancelled') limit :most::int)
              union all
              (select from gen_durable.gen_durable g
                where g.fsm collate "C" = one.fsm and g.queue = one.queue and g.fsm_version = one.fsm_version and g.status = one.status
                  and g.rest_step = one.rest_step and g.status not in ('runnable', 'executing') and g.deleted_at is null
                  and one.status in ('done', 'cancelled') limit :most_ended::int)) each) counted
   cross join lateral (
     select min(named.since) as since, jsonb_agg(jsonb_build_array(named.awaits, named.count)) as awaits from (
       select row.awaits, count(*), min(coalesce(row.finished_at, row.updated_at)) as since from gen_durable.gen_durable row
        where row.id = any (array(
          select g.id from gen_durable.gen_durable g
           where g.fsm collate "C" = one.fsm and g.queue = one.queue and g.fsm_version = one.fsm_version and g.status = one.status
             and g.rest_step = one.rest_step and g.status not in ('runnable', 'executing') and g.deleted_at is null
             and one.status not in ('done', 'cancelled') order by g.id limit :sample::int))
        group by row.awaits) named) sample
), runnable as (
  select one.fsm, one.fsm_version, one.state, one.step, count(*) as count, sum(count(*)) over (partition by one.fsm) >= :most::int as at_least,
         min(case one.state when 'due' then one.eligible_at else one.updated_at end) as since, null::jsonb as awaits
    from (select row.*, case when row.attempt > 0 then 'retrying' when row.eligible_at > statement_timestamp() then 'later'
                             else 'due' end as state
            from machine cross join lateral (
              select r.fsm, r.fsm_version, r.step, r.attempt, r.eligible_at, r.updated_at from gen_durable.gen_durable r
               where r.id = any (array(
                 select g.id from gen_durable.gen_durable g
                  where g.status = 'runnable' and not g.gated and g.fsm collate "C" = machine.fsm
                  order by g.queue, g.fsm_version, g.priority, g.eligible_at, g.id limit :most::int))) row) one
   group by one.fsm, one.fsm_version, one.state, one.step
), gated as (
  select one.fsm, one.fsm_version, 'gated', one.step, count(*), sum(count(*)) over () >= :most::int, min(one.updated_at), null::jsonb
    from (select g.fsm, g.fsm_version, g.step, g.updated_at from gen_durable.gen_durable g
           where g.status = 'runnable' and g.gated and g.concurrency_key is not null limit :most::int) one
   group by one.fsm, one.fsm_version, one.step
), executing as (
  select one.fsm, one.fsm_version, 'executing', one.step, count(*), sum(count(*)) over () >= :most::int, min(one.leased_at), null::jsonb
    from (select g.fsm, g.fsm_version, g.step, g.leased_at from gen_durable.gen_durable g
           where g.status = 'executing' limit :most::int) one
   group by one.fsm, one.fsm_version, one.step
)
select found.fsm, found.fsm_version, found.state, found.step, sum(found.count)::bigint as count, bool_or(found.at_least) as at_least,
       statement_timestamp() - min(found.since) as oldest,
       coalesce(jsonb_agg(found.awaits) filter (where found.awaits is not null), '[]')::text as awaits
  from (select * from resting union all select * from runnable union all select * from gated union all select * from executing) found
 where :fsms::text[] is null or found.fsm = any (:fsms::text[])
 group by found.fsm, found.fsm_version, found.state, found.step
 order by found.fsm, found.fsm_version, found.step, found.state
