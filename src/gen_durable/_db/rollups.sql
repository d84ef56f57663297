-- Rollups: write and fold them, and read them for charts.

-- name: write
-- Write the counts of one worker, absolute per interval. Guard: a row keeps the larger count, so a statement that arrives late or twice
-- changes nothing. Locks: only rows of this worker.
with steps as (
  insert into gen_durable.step_stats as s (fsm, bucket, worker, incarnation, version, step, outcome, cause, to_step, n, started, run, wait)
  select row.fsm, row.bucket, :worker::text, :incarnation::bigint, row.version, row.step, row.outcome, row.cause, row.to_step, row.n,
         row.started, row.run::int[], row.wait::int[]
    from unnest(:step_fsms::text[], :step_buckets::timestamptz[], :versions::int[], :steps::text[], :outcomes::text[], :causes::text[],
                :to_steps::text[], :step_ns::bigint[], :step_started::bigint[], :step_runs::text[], :step_waits::text[])
         as row (fsm, bucket, version, step, outcome, cause, to_step, n, started, run, wait)
  on conflict (fsm, bucket, worker, incarnation, version, step, outcome, cause, to_step) do update
     set n = excluded.n, started = excluded.started, run = excluded.run, wait = excluded.wait where excluded.n > s.n
)
insert into gen_durable.machine_stats as m
       (fsm, bucket, worker, incarnation, version, n, started, done, failed, cancelled, retried, raised, stopped, run, wait)
select row.fsm, row.bucket, :worker::text, :incarnation::bigint, row.version, row.n, row.started, row.done, row.failed, row.cancelled,
       row.retried, row.raised, row.stopped, row.run::int[], row.wait::int[]
  from unnest(:fsms::text[], :fsm_versions::int[], :buckets::timestamptz[], :ns::bigint[], :started::bigint[], :done::bigint[],
              :failed::bigint[], :cancelled::bigint[], :retried::bigint[], :raised::bigint[], :stopped::bigint[], :runs::text[], :waits::text[])
       as row (fsm, version, bucket, n, started, done, failed, cancelled, retried, raised, stopped, run, wait)
on conflict (fsm, bucket, worker, incarnation, version) do update
   set n = excluded.n, started = excluded.started, done = excluded.done, failed = excluded.failed, cancelled = excluded.cancelled,
       retried = excluded.retried, raised = excluded.raised, stopped = excluded.stopped, run = excluded.run, wait = excluded.wait
 where excluded.n > m.n

-- name: fold_steps
-- Add a page of old rows to the rows of 5 minutes. Any number of collectors: each row is deleted and added by one of them. Locks: the
-- old rows, SKIP LOCKED; then the sums, in key order.
with page as materialized (
  select s.ctid as place, s.* from gen_durable.step_stats s
   where s.worker <> '' and s.bucket < statement_timestamp() - :age::interval
   order by s.bucket limit :most::int for update skip locked
), deleted as (
  delete from gen_durable.step_stats s using page where s.ctid = page.place
), folded as (
  insert into gen_durable.step_stats as s (fsm, bucket, worker, incarnation, version, step, outcome, cause, to_step, n, started, run, wait)
  select row.fsm, date_bin('5 min', row.bucket, 'epoch'), '', 0, row.version, row.step, row.outcome, row.cause, row.to_step,
         sum(row.n), sum(row.started), gen_durable.short_histogram({run_sums}), gen_durable.short_histogram({wait_sums})
    from page row group by 1, 2, row.version, row.step, row.outcome, row.cause, row.to_step
   order by 1, 2, row.version, row.step, row.outcome, row.cause, row.to_step
  on conflict (fsm, bucket, worker, incarnation, version, step, outcome, cause, to_step) do update
     set n = s.n + excluded.n, started = s.started + excluded.started, run = gen_durable.add_histograms(s.run, excluded.run),
         wait = gen_durable.add_histograms(s.wait, excluded.wait)
)
select count(*) as count from page

-- name: fold_machines
-- The same of the totals per version of a machine.
with page as materialized (
  select m.ctid as place, m.* from gen_durable.machine_stats m
   where m.worker <> '' and m.bucket < statement_timestamp() - :age::interval
   order by m.bucket limit :most::int for update skip locked
), deleted as (
  delete from gen_durable.machine_stats m using page where m.ctid = page.place
), folded as (
  insert into gen_durable.machine_stats as m
         (fsm, bucket, worker, incarnation, version, n, started, done, failed, cancelled, retried, raised, stopped, run, wait)
  select row.fsm, date_bin('5 min', row.bucket, 'epoch'), '', 0, row.version, sum(row.n), sum(row.started), sum(row.done), sum(row.failed),
         sum(row.cancelled), sum(row.retried), sum(row.raised), sum(row.stopped),
         gen_durable.short_histogram({run_sums}), gen_durable.short_histogram({wait_sums})
    from page row group by 1, 2, row.version order by 1, 2, row.version
  on conflict (fsm, bucket, worker, incarnation, version) do update
     set n = m.n + excluded.n, started = m.started + excluded.started, done = m.done + excluded.done,
         failed = m.failed + excluded.failed, cancelled = m.cancelled + excluded.cancelled, retried = m.retried + excluded.retried,
         raised = m.raised + excluded.raised, stopped = m.stopped + excluded.stopped,
         run = gen_durable.add_histograms(m.run, excluded.run), wait = gen_durable.add_histograms(m.wait, excluded.wait)
)
select count(*) as count from page

-- name: sweep
-- Delete a page of each table that is older than the retention, and of the backlog older than :age all but one row per 5 minutes.
with steps as (
  delete from gen_durable.step_stats s where s.ctid = any (array(
    select old.ctid from gen_durable.step_stats old
     where old.worker = '' and old.bucket < statement_timestamp() - :retention::interval
     order by old.bucket limit :most::int for update skip locked)) returning 1
), machines as (
  delete from gen_durable.machine_stats m where m.ctid = any (array(
    select old.ctid from gen_durable.machine_stats old
     where old.worker = '' and old.bucket < statement_timestamp() - :retention::interval
     order by old.bucket limit :most::int for update skip locked)) returning 1
), thinned as (
  delete from gen_durable.backlog b where b.ctid = any (array(
    select old.ctid from gen_durable.backlog old
     where not old.is_kept and old.bucket < statement_timestamp() - :age::interval
     order by old.bucket limit :most::int for update skip locked)) returning 1
), expired as (
  delete from gen_durable.backlog b where b.ctid = any (array(
    select old.ctid from gen_durable.backlog old
     where old.is_kept and old.bucket < statement_timestamp() - :retention::interval
     order by old.bucket limit :most::int for update skip locked)) returning 1
)
select greatest((select count(*) from steps), (select count(*) from machines), (select count(*) from thinned),
                (select count(*) from expired)) as count

-- name: write_backlog
-- Count what is due, executes and waits, per machine, unless another worker has done it in this interval. The advisory lock, until the
-- end of the statement, keeps two workers from counting at once. At most :most rows are counted per group, at most 1000 groups.
-- Nothing is written while there is nothing to do.
with recursive interval_now as materialized (
  select now.bucket, not exists (select from gen_durable.backlog b where b.fsm = '' and b.bucket = now.bucket)
                     and pg_try_advisory_xact_lock(hashtextextended('gen_durable.backlog', 0)) as is_ours
    from (select date_bin('15 s', statement_timestamp(), 'epoch') as bucket) now
), runnable as (
  (select g.fsm, g.queue, g.fsm_version, g.priority from gen_durable.gen_durable g
    where g.status = 'runnable' and not g.gated and (select is_ours from interval_now)
    order by g.fsm collate "C", g.queue, g.fsm_version, g.priority limit 1)
  union all
  select next.* from runnable cross join lateral (
    select g.fsm, g.queue, g.fsm_version, g.priority from gen_durable.gen_durable g
     where g.status = 'runnable' and not g.gated
       and (g.fsm collate "C", g.queue, g.fsm_version, g.priority)
           > (runnable.fsm collate "C", runnable.queue, runnable.fsm_version, runnable.priority)
     order by g.fsm collate "C", g.queue, g.fsm_version, g.priority limit 1) next
), parked as (
  (select g.fsm, g.queue, g.fsm_version, g.status from gen_durable.gen_durable g
    where g.status not in ('runnable', 'executing') and g.deleted_at is null and (select is_ours from interval_now)
    order by g.fsm collate "C", g.queue, g.fsm_version, g.status limit 1)
  union all
  select next.* from parked cross join lateral (
    select g.fsm, g.queue, g.fsm_version, g.status from gen_durable.gen_durable g
     where g.status not in ('runnable', 'executing') and g.deleted_at is null
       and (g.fsm collate "C", g.queue, g.fsm_version, g.status)
           > (parked.fsm collate "C", parked.queue, parked.fsm_version, parked.status)
     order by g.fsm collate "C", g.queue, g.fsm_version, g.status limit 1) next
), counted as (
  select one.fsm, row.count as due, 0::bigint as executing, 0::bigint as waiting
    from (select * from runnable limit 1000) one cross join lateral (
      select count(*) from (
        select from gen_durable.gen_durable g
         where g.status = 'runnable' and not g.gated and g.fsm collate "C" = one.fsm and g.queue = one.queue
           and g.fsm_version = one.fsm_version and g.priority = one.priority and g.eligible_at <= statement_timestamp()
         limit :most::int) each) row
  union all
  select one.fsm, 0, 0, row.count
    from (select * from parked limit 1000) one cross join lateral (
      select count(*) from (
        select from gen_durable.gen_durable g
         where one.status in ('awaiting_signal', 'awaiting_children')
           and g.status not in ('runnable', 'executing') and g.deleted_at is null and g.fsm collate "C" = one.fsm
           and g.queue = one.queue and g.fsm_version = one.fsm_version and g.status = one.status limit :most::int) each) row
  union all
  select leased.fsm, 0, count(*), 0 from (
    select g.fsm from gen_durable.gen_durable g where g.status = 'executing' and (select is_ours from interval_now) limit :most::int) leased
   group by leased.fsm
)
insert into gen_durable.backlog (fsm, bucket, due, executing, waiting, is_kept)
select coalesce(counted.fsm, ''), interval_now.bucket, sum(counted.due), sum(counted.executing), sum(counted.waiting),
       date_bin('5 min', interval_now.bucket, 'epoch') = interval_now.bucket
  from counted cross join interval_now group by grouping sets ((counted.fsm, interval_now.bucket), (interval_now.bucket))
having sum(counted.due + counted.executing + counted.waiting) > 0
on conflict (fsm, bucket) do nothing

-- name: series
-- The totals of one machine (of one :version, or all), or with an empty name of all machines, per :width since :period ago.
select date_bin(:width::interval, row.bucket, 'epoch') as at, sum(row.n)::bigint as executions, sum(row.started)::bigint as started,
       sum(row.done)::bigint as done, sum(row.failed)::bigint as failed, sum(row.cancelled)::bigint as cancelled,
       sum(row.retried)::bigint as retried, sum(row.raised)::bigint as raised, sum(row.stopped)::bigint as stopped,
       {run_sums}::bigint[] as run, {wait_sums}::bigint[] as wait
  from gen_durable.machine_stats row
 where row.fsm = :fsm::text and (:version::int is null or row.version = :version::int)
   and row.bucket >= date_bin(:width::interval, statement_timestamp() - :period::interval, 'epoch')
 group by 1 order by 1

-- name: machines
-- The totals of each machine since :period ago. The names come from a skip scan of the primary key.
with recursive machine as (
  (select m.fsm from gen_durable.machine_stats m where m.fsm > '' order by m.fsm limit 1)
  union all
  select next.fsm from machine cross join lateral (
    select m.fsm from gen_durable.machine_stats m where m.fsm > machine.fsm order by m.fsm limit 1) next
)
select machine.fsm, total.*
  from machine cross join lateral (
    select sum(row.n)::bigint as executions, sum(row.started)::bigint as started, sum(row.done)::bigint as done,
           sum(row.failed)::bigint as failed, sum(row.cancelled)::bigint as cancelled, sum(row.retried)::bigint as retried,
           sum(row.raised)::bigint as raised, sum(row.stopped)::bigint as stopped,
           {run_sums}::bigint[] as run, {wait_sums}::bigint[] as wait
      from gen_durable.machine_stats row
     where row.fsm = machine.fsm and row.bucket >= statement_timestamp() - :period::interval) total
 where total.executions > 0
 order by machine.fsm

-- name: workers
-- How many executions each worker ended, of all machines, per :width since :period ago.
select m.worker, date_bin(:width::interval, m.bucket, 'epoch') as at, sum(m.n)::bigint as executions
  from gen_durable.machine_stats m
 where m.fsm = '' and m.worker <> ''
   and m.bucket >= date_bin(:width::interval, statement_timestamp() - :period::interval, 'epoch')
 group by 1, 2

-- name: backlog
-- The backlog of one machine, or with an empty name of all: the largest of each :width.
select date_bin(:width::interval, b.bucket, 'epoch') as at, max(b.due) as due, max(b.executing) as executing, max(b.waiting) as waiting
  from gen_durable.backlog b
 where b.fsm = :fsm::text and b.bucket >= date_bin(:width::interval, statement_timestamp() - :period::interval, 'epoch')
 group by 1 order by 1

-- name: steps
-- The executions of one machine since :period ago, by version, step, outcome, cause and next step.
select row.version, row.step, row.outcome, row.cause, row.to_step, sum(row.n)::bigint as executions, sum(row.started)::bigint as started,
       {run_sums}::bigint[] as run, {wait_sums}::bigint[] as wait
  from gen_durable.step_stats row
 where row.fsm = :fsm::text and row.bucket >= statement_timestamp() - :period::interval
 group by 1, 2, 3, 4, 5 order by 1, 2, 6 desc, 3, 4, 5

-- name: step_series
-- The executions of one step in one version per :width since :period ago.
select date_bin(:width::interval, row.bucket, 'epoch') as at, sum(row.n)::bigint as executions
  from gen_durable.step_stats row
 where row.fsm = :fsm::text and row.step = :step::text and row.version = :version::int
   and row.bucket >= date_bin(:width::interval, statement_timestamp() - :period::interval, 'epoch')
 group by 1 order by 1

-- part: run_sums
array[sum(row.run[1]), sum(row.run[2]), sum(row.run[3]), sum(row.run[4]), sum(row.run[5]), sum(row.run[6]),
       sum(row.run[7]), sum(row.run[8]), sum(row.run[9]), sum(row.run[10]), sum(row.run[11]), sum(row.run[12]),
       sum(row.run[13]), sum(row.run[14]), sum(row.run[15]), sum(row.run[16]), sum(row.run[17]), sum(row.run[18]),
       sum(row.run[19]), sum(row.run[20]), sum(row.run[21]), sum(row.run[22]), sum(row.run[23]), sum(row.run[24])]

-- part: wait_sums
array[sum(row.wait[1]), sum(row.wait[2]), sum(row.wait[3]), sum(row.wait[4]), sum(row.wait[5]), sum(row.wait[6]),
       sum(row.wait[7]), sum(row.wait[8]), sum(row.wait[9]), sum(row.wait[10]), sum(row.wait[11]), sum(row.wait[12]),
       sum(row.wait[13]), sum(row.wait[14]), sum(row.wait[15]), sum(row.wait[16]), sum(row.wait[17]), sum(row.wait[18]),
       sum(row.wait[19]), sum(row.wait[20]), sum(row.wait[21]), sum(row.wait[22]), sum(row.wait[23]), sum(row.wait[24])]
