-- Workers and queues: registration, pauses, queue metrics.

-- name: announce
-- Register a worker, or refresh its registration at a heartbeat. Deletes registrations that expired 10 minutes ago.
-- differs: other code has registered one of its machines; is_orphaned: and no live worker runs that code.
with deleted as (
  delete from gen_durable.workers w where w.expires_at < statement_timestamp() - interval '10 minutes'
), announced as (
  insert into gen_durable.workers (name, host, pid, version, seen_at, expires_at, is_draining, queues, capacities, capacity, in_flight, prefixes,
                                   prefix_capacities, leaves_unknown, fsms, fsm_versions, fsm_steps, fsm_digests, paused_queues, paused_since,
                                   schema_version)
  values (:name::text, :host::text, :pid::int, :version::text, statement_timestamp(),
          statement_timestamp() + :alive_for::interval, :is_draining::boolean, :queues::text[], :capacities::int[],
          :capacity::int, :in_flight::int, :prefixes::text[], :prefix_capacities::int[], :leaves_unknown::boolean,
          :fsms::text[], :fsm_versions::int[], :fsm_steps::text::jsonb, :fsm_digests::text[], :paused_queues::text[],
          :paused_since::timestamptz[], :schema_version::int)
      on conflict (name) do update
     set seen_at = excluded.seen_at, expires_at = excluded.expires_at, is_draining = excluded.is_draining,
         in_flight = excluded.in_flight, paused_queues = excluded.paused_queues, paused_since = excluded.paused_since,
         -- Sent by the event loop, so it is not blocked.
         blocked = null
)
select coalesce(bool_or(true), false) as differs,
       coalesce(bool_or(not exists (
         select from gen_durable.workers w
          where w.expires_at > statement_timestamp() and not w.is_draining
            and (m.fsm, m.fsm_version, m.digest) in (select * from unnest(w.fsms, w.fsm_versions, w.fsm_digests)))), false) as is_orphaned
  from unnest(:fsms::text[], :fsm_versions::int[], :fsm_digests::text[]) as given (fsm, fsm_version, digest)
  join gen_durable.machines m on m.fsm = given.fsm and m.fsm_version = given.fsm_version
 where m.digest is distinct from given.digest

-- name: withdraw
-- Deregister a worker on shutdown.
delete from gen_durable.workers w where w.name = :name::text

-- name: store_incompatible
-- Register the findings of a worker's start.
update gen_durable.workers w set incompatible = :findings::text::jsonb where w.name = :name::text

-- name: incompatible
-- What live workers have found at their start, as long as one of the listed instances is live and has its version.
select w.name as worker, w.started_at, found.finding::text as finding
  from gen_durable.workers w cross join lateral jsonb_array_elements(w.incompatible) as found (finding)
 where w.expires_at > statement_timestamp()
   and exists (select from gen_durable.gen_durable g
                where g.id = any (array(select id.value::bigint from jsonb_array_elements_text(found.finding -> 'facts' -> 'ids') as id (value)))
                  and g.finished_at is null and g.deleted_at is null
                  and g.fsm_version = (found.finding -> 'facts' ->> 'version')::int)
 order by w.started_at, w.name

-- name: blocked
-- Register which step blocks the event loop of a worker; null: none. Renews the registration: the event loop cannot do that.
update gen_durable.workers w
   set blocked = :blocked::text::jsonb || jsonb_build_object('since', statement_timestamp() - :duration::interval),
       seen_at = statement_timestamp(),
       expires_at = greatest(w.expires_at, statement_timestamp() + :alive_for::interval)
 where w.name = :name::text

-- name: workers
-- Registered workers, including those that expired recently.
select w.name, w.host, w.pid, w.version, w.started_at, w.seen_at, w.expires_at > statement_timestamp() as is_live,
       w.is_draining, w.queues, w.capacities, w.capacity, w.in_flight, w.prefixes, w.prefix_capacities, w.leaves_unknown, w.fsms, w.fsm_versions, w.schema_version,
       w.blocked::text as blocked
  from gen_durable.workers w order by w.name

-- name: overrides
-- Run-time settings of queues. Workers read them twice per poll_interval.
select q.name, q.paused_at, q.concurrency from gen_durable.queues q

-- name: pause_queue
-- Pause a queue: later picks return nothing from it.
select name, is_paused, paused_at, paused_by, concurrency from gen_durable.pause_queue(:name::text, :reason::text, :actor::text)

-- name: unconfirmed
-- The queue as it is now, and the live workers that have not confirmed its pause. A worker registers before its first pick, so a
-- worker that is not listed has read the pause in every pick, has confirmed it, or is not live.
select q.name, q.is_paused, q.paused_at, q.paused_by, q.concurrency,
       array(select w.name from gen_durable.workers w
              where w.expires_at > statement_timestamp()
                and not exists (select from unnest(w.paused_queues, w.paused_since) as confirmed (queue, since)
                                 where confirmed.queue = q.name and confirmed.since = q.paused_at)
              order by w.name) as workers
  from gen_durable.queues q where q.name = :name::text

-- name: resume_queue
-- Resume a queue.
select name, is_paused, paused_at, paused_by, concurrency from gen_durable.resume_queue(:name::text, :reason::text, :actor::text)

-- name: set_queue
-- Set the concurrency of a queue per worker; null: each worker uses its own setting.
select name, is_paused, paused_at, paused_by, concurrency
  from gen_durable.set_queue(:name::text, :concurrency::int, :reason::text, :actor::text)

-- name: queues
-- All queues, by their rows, workers, machines and run-time settings, with their backlog. Bounded, so that it can run at every
-- scrape: at most 1000 groups (queue and priority, by a skip scan of the pick index) of registered queues, 1000 of all queues,
-- and at most :most rows counted per group and figure; a figure at that bound means "at least". Registered queues have their
-- own groups, so queue names that only producers use cannot displace them. The scan visits all registered queues once per
-- priority, so each has its first group within the bound.
with recursive moment as materialized (
  select statement_timestamp() as now
), registered as materialized (
  select q.name from gen_durable.queues q union select m.queue from gen_durable.machines m
  union select unnest(w.queues) from gen_durable.workers w where w.expires_at > statement_timestamp()
), registered_groups as (
  select r.name as queue, first.priority, first.eligible_at from registered r cross join lateral (
    select g.priority, g.eligible_at from gen_durable.gen_durable g
     where g.status = 'runnable' and not g.gated and g.queue = r.name
     order by g.queue, g.priority, g.eligible_at, g.id limit 1) first
  union all
  select l.queue, next.priority, next.eligible_at from registered_groups l cross join lateral (
    select g.priority, g.eligible_at from gen_durable.gen_durable g
     where g.status = 'runnable' and not g.gated and g.queue = l.queue and g.priority > l.priority
     order by g.queue, g.priority, g.eligible_at, g.id limit 1) next
), groups as (
  (select g.queue, g.priority, g.eligible_at from gen_durable.gen_durable g
    where g.status = 'runnable' and not g.gated
    order by g.queue, g.priority, g.eligible_at, g.id limit 1)
  union all
  select next.* from groups cross join lateral (
    select g.queue, g.priority, g.eligible_at from gen_durable.gen_durable g
     where g.status = 'runnable' and not g.gated and (g.queue, g.priority) > (groups.queue, groups.priority)
     order by g.queue, g.priority, g.eligible_at, g.id limit 1) next
), figure as (
  select one.queue, due.count as due, later.count as future, 0::bigint as gated, 0::bigint as executing,
         -- Bounded below: the difference of extreme timestamps overflows.
         case when one.eligible_at <= (select now from moment)
              then (select now from moment) - greatest(one.eligible_at, '0001-01-02 00:00+00') end as oldest
    from ((select * from registered_groups limit 1000)
          union all
          select l.* from (select * from groups limit 1000) l where l.queue not in (select r.name from registered r)) one
   cross join lateral (
     select count(*) from (
       select from gen_durable.gen_durable g
        where g.status = 'runnable' and not g.gated and g.queue = one.queue and g.priority = one.priority
          and g.eligible_at <= (select now from moment) limit :most::int) row) due
   cross join lateral (
     select count(*) from (
       select from gen_durable.gen_durable g
        where g.status = 'runnable' and not g.gated and g.queue = one.queue and g.priority = one.priority
          and g.eligible_at > (select now from moment) limit :most::int) row) later
  union all
  select gated.queue, 0, 0, count(*), 0, null from (
    select g.queue from gen_durable.gen_durable g
     where g.status = 'runnable' and g.gated and g.concurrency_key is not null limit :most::int) gated
   group by gated.queue
  union all
  select leased.queue, 0, 0, 0, count(*), null from (
    select g.queue from gen_durable.gen_durable g where g.status = 'executing' limit :most::int) leased
   group by leased.queue
), known as (
  select queue as name from figure union select r.name from registered r
)
select known.name, coalesce(q.is_paused, false) as is_paused, q.paused_at, q.paused_by, q.concurrency,
       coalesce(sum(figure.due), 0)::bigint as due, coalesce(sum(figure.future), 0)::bigint as future,
       coalesce(sum(figure.gated), 0)::bigint as gated, coalesce(sum(figure.executing), 0)::bigint as executing,
       max(figure.oldest) as oldest,
       (select count(*) from gen_durable.workers w
         where w.expires_at > statement_timestamp() and known.name = any (w.queues)) as workers,
       known.name in (select r.name from registered r) as is_registered
  from known left join gen_durable.queues q on q.name = known.name left join figure on figure.queue = known.name
 group by known.name, q.is_paused, q.paused_at, q.paused_by, q.concurrency order by known.name
