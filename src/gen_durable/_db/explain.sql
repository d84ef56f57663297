-- Why does it not run?

-- name: explain
-- Everything that may keep one instance from running, in one look. Each fact is found by an index, whatever the backlog is.
--   serving   live workers that serve its queue, or a prefix of its machine's name, and are not about to leave
--   able      those of them that also know its machine in its version, or run whatever lies under their prefix
--   knowing   live workers that know its machine, whatever they serve
select g.id, g.fsm, g.fsm_version, g.step, g.status::text as status, g.queue, statement_timestamp() as now, g.eligible_at,
       g.awaits, g.await_deadline, g.children_pending, g.updated_at, g.finished_at, g.last_error, g.concurrency_key,
       g.locked_by, g.leased_at, g.started_at, g.lease_expires_at, g.cancel_requested_at, g.cancelled_by, g.cancel_reason,
       g.deleted_at, g.delete_reason,
       exists (select from gen_durable.workers w where w.name = g.locked_by and w.expires_at > statement_timestamp())
         as is_worker_live,
       (select q.paused_at from gen_durable.queues q where q.name = g.queue and q.is_paused) as paused_at,
       (select json_agg(json_build_object('id', held.id, 'worker', held.locked_by, 'since', held.leased_at) order by held.id)::text
          from (select h.id, h.locked_by, h.leased_at from gen_durable.gen_durable h
                 where h.concurrency_key = g.concurrency_key and h.concurrency_slot is not null and h.id <> g.id
                 limit 20) held) as holders,
       (select ahead.id from gen_durable.gen_durable ahead
         where ahead.status = 'runnable' and ahead.concurrency_key = g.concurrency_key
           and (ahead.priority, ahead.eligible_at, ahead.id) < (g.priority, g.eligible_at, g.id)
           and ahead.eligible_at <= statement_timestamp()
         order by ahead.priority, ahead.eligible_at, ahead.id limit 1) as first_in_line,
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
           limit 1000) line) as ahead,
       coalesce(fleet.serving, 0) as serving, coalesce(fleet.able, 0) as able, coalesce(fleet.knowing, 0) as knowing
  from gen_durable.gen_durable g
 cross join lateral (
   select count(*) filter (where each.by_queue or each.by_prefix) as serving,
          count(*) filter (where each.knows and each.by_queue or each.by_prefix and (each.knows or not each.leaves_unknown)) as able,
          count(*) filter (where each.knows) as knowing
     from (select g.queue = any (w.queues) as by_queue, w.leaves_unknown,
                  exists (select from unnest(w.prefixes) as prefix where starts_with(g.fsm, prefix)) as by_prefix,
                  exists (select from unnest(w.fsms, w.fsm_versions) as machine (fsm, version)
                           where machine.fsm = g.fsm and machine.version = g.fsm_version) as knows
             from gen_durable.workers w
            where w.expires_at > statement_timestamp() and not w.is_draining) each) fleet
 where g.id = :id::bigint
