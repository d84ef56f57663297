-- Explain: why does an instance not run?

-- name: explain
-- Everything that may prevent one instance from running, in one statement. Each fact is read by an index, whatever the backlog.
--   serving       live workers that serve its queue, or a prefix of its machine's name, and are not draining
--   able          those of them that also know its machine and version, or run every machine under their prefix
--   knowing       live workers that know its machine and version, whatever they serve
--   blocked_workers
--                 those of the able workers whose event loop is blocked, and by what
--   has_step      whether one of the able workers runs rows at its step; known_steps: the steps at which they run rows
--   holders       the executions that hold the slots of its key, if no slot is free
--   first_of_key, ahead_of_key
--                 the due rows of its key that start before it, at most 1000: null if a slot is left for this row. Rows that
--                 no worker can start (passed_over) do not count.
--   incompatible  what live workers found at their start that concerns it: a state of its version, or it is listed
--   running, queue_capacity, oldest
--                 the executions of its queue on the able workers, how many these can run, and the one that began first: null if
--                 one of them has free capacity, serves it by prefix, or the row is not due. At most 10000 executions are read.
--   tokens_at     when its bucket has its tokens, if it waits for them; after the rows whose turns are before
with in_flight as materialized (
  select leased.locked_by, leased.queue, count(*) as count, (array_agg(leased.id order by leased.leased_at, leased.id))[1] as oldest
    from (select e.locked_by, e.queue, e.id, e.leased_at from gen_durable.gen_durable e
           where e.status = 'executing' limit 10000) leased
   group by leased.locked_by, leased.queue
)
select g.id, g.fsm, g.fsm_version, g.step, g.attempt, g.crash_count, coalesce(g.max_attempts, (m.max_attempts ->> g.step)::int) as max_attempts,
       g.error::text as error, array(select jsonb_object_keys(m.signals)) as signals,
       array(select signal.name from jsonb_each(m.signals) as signal (name, schema)
              where signal.schema not in ('null', '{}', '{"type": "null"}')) as signals_with_payload,
       g.status::text as status, g.queue, statement_timestamp() as now, g.eligible_at,
       g.awaits, g.await_deadline, g.children_pending, g.updated_at, g.finished_at, g.last_error, g.concurrency_key,
       g.rate_limit, coalesce(g.weight, 1) as weight, g.rate_turn_at is not null as has_rate_turn,
       g.locked_by, g.leased_at, g.started_at, g.lease_expires_at, g.cancel_requested_at, g.cancelled_by, g.cancel_reason,
       g.deleted_at, g.delete_reason, g.collected_at, g.undo_steps::text as undo_steps, g.compensation::text as compensation,
       g.progress::text as progress,
       exists (select from gen_durable.workers w where w.name = g.locked_by and w.expires_at > statement_timestamp())
         as is_worker_live,
       exists (select from gen_durable.workers w where w.expires_at > statement_timestamp()) as is_any_worker_live,
       (select w.blocked::text from gen_durable.workers w where w.name = g.locked_by and w.expires_at > statement_timestamp())
         as blocked,
       pause.paused_at, pause.paused_by,
       key_slots.slots,
       (select json_agg(json_build_object('id', held.id, 'worker', held.locked_by, 'since', held.leased_at) order by held.id)::text
          from gen_durable.gen_durable held
         where key_slots.free <= 0 and held.concurrency_key = g.concurrency_key and held.concurrency_slot is not null) as holders,
       case when ahead_of_key.count >= greatest(key_slots.free, 1) then ahead_of_key.first end as first_of_key,
       least(ahead_of_key.count, 1000) as ahead_of_key,
       bucket.limit_name,
       case when bucket.tokens_at > statement_timestamp()
             and (g.rate_turn_at is not null or bucket.tokens_at > g.eligible_at) then bucket.tokens_at end as tokens_at,
       (select array_agg(other.name order by other.name) from (
          select distinct s.name from gen_durable.signals s
           where g.has_signals and s.target_id = g.id and s.consumed_seq is null
             and s.name <> all (coalesce(g.awaits, '{}'))
           order by s.name limit 10) other) as other_signals,
       (select count(*) from gen_durable.gen_durable child
         where child.parent_id = g.id and child.parent_round = g.spawn_round) as children,
       (select array_agg(live.id order by live.id) from (
          select child.id from gen_durable.gen_durable child
           where child.parent_id = g.id and child.parent_round = g.spawn_round
             and child.status not in ('done', 'failed', 'cancelled')
           order by child.id limit 10) live) as live_children,
       (select count(*) from (
          select from gen_durable.gen_durable ahead
           where ahead.status = 'runnable' and not ahead.gated and ahead.queue = g.queue
             and (ahead.priority, ahead.eligible_at, ahead.id) < (g.priority, g.eligible_at, g.id)
             and ahead.eligible_at <= statement_timestamp()
           limit 1000) due) as ahead,
       by_worker.blocked_workers::text as blocked_workers,
       (select json_agg(json_build_object('reason', 'incompatible', 'workers', known.workers, 'since', known.since, 'code', known.code,
                                          'problem', known.problem, 'fix', known.fix) order by known.code, known.problem)::text
          from (select found.finding ->> 'code' as code, found.finding ->> 'what' as problem, found.finding ->> 'fix' as fix,
                       array_agg(w.name order by w.name) as workers, min(w.started_at) as since
                  from gen_durable.workers w cross join lateral jsonb_array_elements(w.incompatible) as found (finding)
                 where w.expires_at > statement_timestamp() and g.finished_at is null
                   and found.finding -> 'facts' ->> 'machine' = g.fsm and (found.finding -> 'facts' ->> 'version')::int = g.fsm_version
                   and (found.finding ->> 'code' = 'state.undecodable' or found.finding -> 'facts' -> 'ids' @> to_jsonb(g.id))
                 group by 1, 2, 3) known)
         as incompatible,
       coalesce(by_worker.serving, 0) as serving, coalesce(by_worker.able, 0) as able, coalesce(by_worker.knowing, 0) as knowing,
       full_workers.running, full_workers.capacity as queue_capacity, full_workers.oldest, full_workers.oldest_worker,
       full_workers.oldest_since, by_worker.known_steps, coalesce(g.step = any (by_worker.known_steps), false) as has_step
  from gen_durable.gen_durable g
  left join gen_durable.machines m on m.fsm = g.fsm and m.fsm_version = g.fsm_version
  left join gen_durable.queues pause on pause.name = g.queue and pause.is_paused
 cross join lateral (
   select count(*) filter (where each.by_queue or each.by_prefix) as serving,
          count(*) filter (where each.knows and each.by_queue or each.by_prefix and (each.knows or not each.leaves_unknown)) as able,
          count(*) filter (where each.knows) as knowing,
          json_agg(json_build_object('worker', each.name, 'blocked', each.blocked) order by each.name)
            filter (where each.blocked is not null
                      and (each.knows and each.by_queue or each.by_prefix and (each.knows or not each.leaves_unknown)))
            as blocked_workers,
          (select array_agg(distinct step.name order by step.name)
             from jsonb_array_elements(jsonb_agg(each.steps) filter (where each.knows and (each.by_queue or each.by_prefix)))
                  as known (steps)
            cross join lateral jsonb_array_elements_text(known.steps) as step (name)) as known_steps
     from (select w.name, w.blocked, g.queue = any (w.queues) as by_queue, w.leaves_unknown, machine.number is not null as knows,
                  exists (select from unnest(w.prefixes) as prefix where starts_with(g.fsm, prefix)) as by_prefix,
                  coalesce(w.fsm_steps -> (machine.number - 1)::int, '[]') as steps
             from gen_durable.workers w
             left join lateral (
               select known.number from unnest(w.fsms, w.fsm_versions) with ordinality as known (fsm, version, number)
                where known.fsm = g.fsm and known.version = g.fsm_version limit 1) machine on true
            where w.expires_at > statement_timestamp() and not w.is_draining) each) by_worker
 cross join lateral (
   select limited.slots,
          limited.slots - (select count(*) from gen_durable.gen_durable holder
                            where holder.concurrency_key = g.concurrency_key and holder.concurrency_slot is not null) as free
     from (select coalesce((select l.slots from gen_durable.limits l
                             where l.kind = 'concurrency' and l.name = split_part(g.concurrency_key, ':', 1)), 1) as slots) limited
   ) key_slots
 cross join lateral (
   select count(*) as count, (array_agg(ahead.id order by ahead.priority, ahead.eligible_at, ahead.id))[1] as first
     from (select * from (
             select ahead.priority, ahead.eligible_at, ahead.id from gen_durable.gen_durable ahead
              where ahead.status = 'runnable' and ahead.concurrency_key = g.concurrency_key
                and (ahead.fsm, ahead.fsm_version, ahead.queue)
                    not in (select p.fsm, p.fsm_version, p.queue from gen_durable.passed_over p)
                and (ahead.priority, ahead.eligible_at, ahead.id) < (g.priority, g.eligible_at, g.id)
                and ahead.eligible_at <= statement_timestamp()
              order by ahead.priority, ahead.eligible_at, ahead.id limit 32767) first
            limit greatest(key_slots.free, 1000)) ahead) ahead_of_key
  left join lateral (
   select totals.running, totals.capacity, first.id as oldest, first.locked_by as oldest_worker, first.leased_at as oldest_since
     from (select sum(able.running) as running, sum(able.capacity) as capacity, array_agg(able.oldest) as oldest,
                  bool_and(coalesce(able.running >= able.capacity, false) or coalesce(able.all_running >= able.total, false)) as is_full
             from (select case when g.queue = any (w.queues)
                               then coalesce(q.concurrency, w.capacities[array_position(w.queues, g.queue)]) end as capacity,
                          w.capacity as total,
                          -- Subqueries: in_flight is read only if there is such a worker and the row is due.
                          (select coalesce(sum(f.count), 0) from in_flight f where f.locked_by = w.name) as all_running,
                          (select coalesce(sum(f.count), 0) from in_flight f
                            where f.locked_by = w.name and f.queue = g.queue) as running,
                          (select f.oldest from in_flight f where f.locked_by = w.name and f.queue = g.queue) as oldest
                     from gen_durable.workers w
                     left join gen_durable.queues q on q.name = g.queue
                    where g.status = 'runnable' and not g.gated and g.eligible_at <= statement_timestamp()
                      and w.expires_at > statement_timestamp() and not w.is_draining
                      and (g.fsm, g.fsm_version) in (select * from unnest(w.fsms, w.fsm_versions))
                      and (g.queue = any (w.queues)
                           or exists (select from unnest(w.prefixes) as prefix where starts_with(g.fsm, prefix)))) able) totals
     left join lateral (
       select held.id, held.locked_by, held.leased_at from gen_durable.gen_durable held
        where held.id = any (totals.oldest) and held.status = 'executing' order by held.leased_at, held.id limit 1) first on true
    where totals.is_full) full_workers on true
  left join lateral (
   select l.name as limit_name, greatest(
            b.full_at + cost.own - gen_durable.refill(l.burst, l.allowed, l.period),
            case when g.rate_turn_at is not null then g.eligible_at
                 else (select last.eligible_at + cost.own from gen_durable.gen_durable last
                        where last.status = 'runnable' and last.rate_turn_at is not null and last.rate_limit = g.rate_limit
                          and last.queue = g.queue
                        order by last.rate_turn_at desc limit 1) end) as tokens_at
     from gen_durable.limits l
    cross join lateral (select gen_durable.refill(least(coalesce(g.weight, 1), l.burst), l.allowed, l.period) as own) cost
     left join gen_durable.buckets b on b.key = g.rate_limit
    where l.kind = 'rate' and l.name = split_part(g.rate_limit, ':', 1)) bucket on true
 where g.id = :id::bigint
