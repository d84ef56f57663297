-- How much waits in each queue, for gauges.

-- name: depths
-- Bounded however much there is: at most 200 lines (a queue and a priority: a skip scan of the pick index), and at most
-- :most rows counted per figure and line; a figure that has reached it means "at least". Gated rows are not in the pick
-- index; of those with a concurrency key, :most are looked at.
with recursive moment as materialized (
  select statement_timestamp() as now
), line as (
  (select g.queue, g.priority, g.eligible_at from gen_durable.gen_durable g
    where g.status = 'runnable' and not g.gated
    order by g.queue, g.priority, g.eligible_at, g.id limit 1)
  union all
  select next.* from line cross join lateral (
    select g.queue, g.priority, g.eligible_at from gen_durable.gen_durable g
     where g.status = 'runnable' and not g.gated and (g.queue, g.priority) > (line.queue, line.priority)
     order by g.queue, g.priority, g.eligible_at, g.id limit 1) next
), figure as (
  select line.queue, due.count as due, later.count as scheduled, 0::bigint as gated, 0::bigint as executing,
         case when line.eligible_at <= (select now from moment) then (select now from moment) - line.eligible_at end as oldest
    from (select * from line limit 200) line
   cross join lateral (
     select count(*) from (
       select from gen_durable.gen_durable g
        where g.status = 'runnable' and not g.gated and g.queue = line.queue and g.priority = line.priority
          and g.eligible_at <= (select now from moment) limit :most::int) row) due
   cross join lateral (
     select count(*) from (
       select from gen_durable.gen_durable g
        where g.status = 'runnable' and not g.gated and g.queue = line.queue and g.priority = line.priority
          and g.eligible_at > (select now from moment) limit :most::int) row) later
  union all
  select keyed.queue, 0, 0, count(*) filter (where keyed.gated), 0, null from (
    select g.queue, g.gated from gen_durable.gen_durable g
     where g.status = 'runnable' and g.concurrency_key is not null limit :most::int) keyed
   group by keyed.queue
  union all
  select leased.queue, 0, 0, 0, count(*), null from (
    select g.queue from gen_durable.gen_durable g where g.status = 'executing' limit :most::int) leased
   group by leased.queue
)
select queue, sum(due)::bigint as due, sum(scheduled)::bigint as scheduled, sum(gated)::bigint as gated,
       sum(executing)::bigint as executing, max(oldest) as oldest
  from figure group by queue order by queue
