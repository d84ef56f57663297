-- Statistics. Each statement reads a bounded number of rows by index, so that it can run every few seconds at any size.

-- name: counts
-- Instances by machine, version and status, at most :most counted per group; at most 1000 groups. Skip scans of gen_durable_resting
-- and gen_durable_machine; gated and executing rows are few, or their first :most are counted.
with recursive resting as (
  (select g.fsm, g.queue, g.fsm_version, g.status from gen_durable.gen_durable g
    where g.status not in ('runnable', 'executing') and g.deleted_at is null
    order by g.fsm collate "C", g.queue, g.fsm_version, g.status limit 1)
  union all
  select next.* from resting cross join lateral (
    select g.fsm, g.queue, g.fsm_version, g.status from gen_durable.gen_durable g
     where g.status not in ('runnable', 'executing') and g.deleted_at is null
       and (g.fsm collate "C", g.queue, g.fsm_version, g.status)
           > (resting.fsm collate "C", resting.queue, resting.fsm_version, resting.status)
     order by g.fsm collate "C", g.queue, g.fsm_version, g.status limit 1) next
), {search.runnable_groups}, counted as (
  select one.fsm, one.fsm_version, one.status::text as status, row.count
    from (select * from resting limit 1000) one cross join lateral (
      select count(*) from (
        select from gen_durable.gen_durable g
         where g.status not in ('runnable', 'executing') and g.deleted_at is null and g.fsm collate "C" = one.fsm
           and g.queue = one.queue and g.fsm_version = one.fsm_version and g.status = one.status limit :most::int) each) row
  union all
  select one.fsm, one.fsm_version, 'runnable', row.count
    from (select * from runnable_groups limit 1000) one cross join lateral (
      select count(*) from (
        select from gen_durable.gen_durable g
         where g.status = 'runnable' and not g.gated and g.fsm collate "C" = one.fsm and g.queue = one.queue
           and g.fsm_version = one.fsm_version limit :most::int) each) row
  union all
  select gated.fsm, gated.fsm_version, 'runnable', count(*) from (
    select g.fsm, g.fsm_version from gen_durable.gen_durable g
     where g.status = 'runnable' and g.gated and g.concurrency_key is not null limit :most::int) gated
   group by gated.fsm, gated.fsm_version
  union all
  select leased.fsm, leased.fsm_version, 'executing', count(*) from (
    select g.fsm, g.fsm_version from gen_durable.gen_durable g where g.status = 'executing' limit :most::int) leased
   group by leased.fsm, leased.fsm_version
)
select fsm, fsm_version, status, least(sum(count), :most::int)::bigint as count
  from counted group by fsm, fsm_version, status order by fsm, fsm_version, status

-- name: ended
-- How many instances ended within :period, by status, and when the first of them ended; the newest :most. The rows of machines that
-- declare a retention are in another index, by the time of their removal: one range per declared retention.
select status.name::text as status, count(*) as count, min(ended.finished_at) as since, statement_timestamp() as now
  from unnest('{done,failed,cancelled}'::gen_durable.durable_status[]) as status (name)
 cross join lateral (
   select * from (
     (select g.finished_at from gen_durable.gen_durable g
       where g.status = status.name and g.finished_at > statement_timestamp() - :period::interval and g.finished_at is not null
         and g.expires_at is null and g.deleted_at is null and g.collected_at is null
       order by g.finished_at desc limit :most::int)
     union all
     select late.finished_at
       from (select distinct make_interval(secs => (m.retention ->> status.name::text)::double precision) as kept
               from gen_durable.machines m where m.retention ? status.name::text) declared
      cross join lateral (
        select g.finished_at from gen_durable.gen_durable g
         where g.finished_at is not null and g.expires_at is not null and g.deleted_at is null and g.collected_at is null
           and g.expires_at > statement_timestamp() - :period::interval + declared.kept
           and g.expires_at <= statement_timestamp() + declared.kept
           and g.status = status.name and g.expires_at = g.finished_at + declared.kept
         order by g.expires_at desc limit :most::int) late
   ) each order by each.finished_at desc limit :most::int) ended
 group by status.name

-- part: sampled
-- The executions of the newest instances, at most :most of each kind, by executions_commit and executions_aborted.
sample as materialized (
  (select e.instance_id, e.step, e.status, e.outcome, e.error, e.leased_at, e.started_at, e.finished_at from gen_durable.executions e
    where e.status in ('COMMITTED', 'DONE') order by e.instance_id desc, e.step_seq desc limit :most::int)
  union all
  (select e.instance_id, e.step, e.status, e.outcome, e.error, e.leased_at, e.started_at, e.finished_at from gen_durable.executions e
    where e.status = 'ABORTED' order by e.instance_id desc, e.step_seq desc limit :most::int)
), machine as materialized (
  select ids.instance_id, (select g.fsm from gen_durable.gen_durable g where g.id = ids.instance_id) as fsm
    from (select distinct sample.instance_id from sample) ids
)

-- name: steps
-- Durations of sampled executions by machine and step, in seconds; those without a lease were not run.
with {sampled}
select machine.fsm, sample.step, count(*) as executions, count(*) filter (where sample.status = 'ABORTED') as not_committed,
       percentile_cont(0.5) within group (order by took.seconds) as p50,
       percentile_cont(0.95) within group (order by took.seconds) as p95, max(took.seconds) as longest
  from sample join machine using (instance_id)
 cross join lateral (
   select greatest(extract(epoch from sample.finished_at - coalesce(sample.started_at, sample.leased_at)), 0)::double precision
            as seconds) took
 where sample.leased_at is not null and machine.fsm is not null and sample.outcome <> 'unknown_step'
 group by machine.fsm, sample.step order by p95 desc nulls last, machine.fsm, sample.step

-- name: failures
-- Sampled failures by machine, step and kind of error.
with {sampled}, failure as (
  select machine.fsm, sample.step, sample.instance_id, sample.finished_at, sample.error,
         sample.outcome in ('stop', 'undo', 'poison') as is_final,
         case when sample.outcome in ('lease', 'poison') then 'process died'
              else coalesce(substring(sample.error from '^([A-Za-z_][A-Za-z0-9_.]*)(?::|$)'),
                            regexp_replace(left(sample.error, 60), '[0-9]+', 'N', 'g')) end as kind
    from sample join machine using (instance_id)
   where machine.fsm is not null
     and (sample.outcome in ('stop', 'lease', 'poison') or sample.error is not null)
)
select fsm, step, coalesce(kind, 'no reason') as error, count(*) filter (where not is_final) as continued,
       count(*) filter (where is_final) as failed, max(finished_at) as last_at,
       (array_agg(failure.error order by finished_at desc, instance_id desc))[1] as last_error,
       (array_agg(instance_id order by finished_at desc, instance_id desc))[1] as instance_id
  from failure group by fsm, step, kind order by count(*) desc, fsm, step, kind
