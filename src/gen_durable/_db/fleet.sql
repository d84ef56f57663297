-- Who works here, and how the queues are to be served.

-- name: appear
-- A worker says that it is there, and forgets those that have not said so for long.
with gone as (
  delete from gen_durable.workers w where w.expires_at < statement_timestamp() - interval '10 minutes'
)
insert into gen_durable.workers (name, host, pid, version, seen_at, expires_at, is_draining, queues, prefixes, leaves_unknown,
                                 fsms, fsm_versions)
values (:name::text, :host::text, :pid::int, :version::text, statement_timestamp(),
        statement_timestamp() + :alive_for::interval, :is_draining::boolean, :queues::text[], :prefixes::text[],
        :leaves_unknown::boolean, :fsms::text[], :fsm_versions::int[])
    on conflict (name) do update
   set seen_at = excluded.seen_at, expires_at = excluded.expires_at, is_draining = excluded.is_draining

-- name: disappear
-- A worker has come to its end.
delete from gen_durable.workers w where w.name = :name::text

-- name: workers
-- Those that are there, and those that died or were cut off a short while ago.
select w.name, w.host, w.pid, w.version, w.started_at, w.seen_at, w.expires_at > statement_timestamp() as is_live,
       w.is_draining, w.queues, w.prefixes, w.leaves_unknown, w.fsms, w.fsm_versions
  from gen_durable.workers w order by w.name

-- name: settings
-- What was said about queues at run time. A worker asks twice per poll_interval.
select q.name, q.is_paused, q.concurrency from gen_durable.queues q

-- name: pause_queue
-- No pick takes anything of it from now on.
select name, is_paused, paused_at, concurrency from gen_durable.pause_queue(:name::text, :actor::text)

-- name: resume_queue
-- It is served again.
select name, is_paused, paused_at, concurrency from gen_durable.resume_queue(:name::text, :actor::text)

-- name: set_queue
-- How many at once in each worker; null is what the worker was told.
select name, is_paused, paused_at, concurrency from gen_durable.set_queue(:name::text, :concurrency::int, :actor::text)

-- name: queues
-- Every queue that there is, by its rows, its workers, its machines or what was said about it; and how much waits in it. It
-- reads whatever is runnable or executing.
with depth as (
  select g.queue, count(*) filter (where g.eligible_at <= statement_timestamp()) as due,
         count(*) filter (where g.eligible_at > statement_timestamp()) as future, 0 as gated, 0 as executing,
         min(g.eligible_at) filter (where g.eligible_at <= statement_timestamp()) as oldest_due_at
    from gen_durable.gen_durable g where g.status = 'runnable' and not g.gated group by g.queue
  union all
  select g.queue, 0, 0, count(*), 0, min(g.eligible_at) from gen_durable.gen_durable g
   where g.status = 'runnable' and g.concurrency_key is not null and g.gated group by g.queue
  union all
  select g.queue, 0, 0, 0, count(*), null from gen_durable.gen_durable g where g.status = 'executing' group by g.queue
), known as (
  select queue as name from depth union select q.name from gen_durable.queues q union select m.queue from gen_durable.machines m
  union select unnest(w.queues) from gen_durable.workers w where w.expires_at > statement_timestamp()
)
select known.name, coalesce(q.is_paused, false) as is_paused, q.paused_at, q.concurrency,
       coalesce(sum(depth.due), 0)::bigint as due, coalesce(sum(depth.future), 0)::bigint as future,
       coalesce(sum(depth.gated), 0)::bigint as gated, coalesce(sum(depth.executing), 0)::bigint as executing,
       -- As a moment that every driver can read.
       case when min(depth.oldest_due_at) >= '0001-01-02 00:00+00' then min(depth.oldest_due_at) end as oldest_due_at,
       (select count(*) from gen_durable.workers w
         where w.expires_at > statement_timestamp() and known.name = any (w.queues)) as workers
  from known left join gen_durable.queues q on q.name = known.name left join depth on depth.queue = known.name
 group by known.name, q.is_paused, q.paused_at, q.concurrency order by known.name
