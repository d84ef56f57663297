-- Admission: which due rows a pick sees. Gating by concurrency key, deferring by rate limit.

-- name: lock_holders
-- First statement of gating: lock the holders of these keys and count their free slots. A key is busy only if its holders still
-- hold their slots under the lock. A holder that is ending is waited for, and then its slot is free. The limits are locked FOR
-- SHARE: a change of a limit is either visible here, or comes later and ungates.
-- Locks: limits by name; holders, ids descending.
with {slots}, holders as materialized (
  select g.concurrency_key as key
    from gen_durable.gen_durable g
   where g.concurrency_key = any (:keys::text[]) and g.concurrency_slot is not null
   order by g.id desc
     for no key update
)
{free_slots}

-- name: lock_free_holders
-- The same without waiting for holders that another transaction keeps locked: their slots count as free. This may leave a slot
-- idle until the next execution of the key ends (two holders that end at once do not see each other), so it is the fallback only.
with {slots}, holders as materialized (
  select g.concurrency_key as key
    from gen_durable.gen_durable g
   where g.concurrency_key = any (:keys::text[]) and g.concurrency_slot is not null
   order by g.id desc
     for no key update skip locked
)
{free_slots}

-- part: slots
-- The limits of these keys, by name.
slots as materialized (
  select l.name, l.slots from gen_durable.limits l
   where l.kind = 'concurrency' and l.name in (select split_part(keys.key, ':', 1) from unnest(:keys::text[]) as keys (key))
   order by l.name
     for share
)

-- part: free_slots
-- The number of free slots of each key.
select keys.key, greatest(coalesce((select slots.slots from slots where slots.name = split_part(keys.key, ':', 1)), 1)
                          - (select count(*) from holders where holders.key = keys.key), 0)::int as free
  from unnest(:keys::text[]) as keys (key)

-- name: gate
-- Second statement of gating: take the due rows of busy keys out of the pick index, at most 1000 per call, so that they do not
-- fill the picks. The transaction that frees a slot ungates the next row. SKIP LOCKED.
with blocked as materialized (
  select row.id from unnest(:keys::text[]) as busy (key) cross join lateral (
    select g.id from gen_durable.gen_durable g
     where g.status = 'runnable' and g.concurrency_key = busy.key and not g.gated and g.eligible_at <= statement_timestamp()
     order by g.priority, g.eligible_at, g.id limit 1000
       for no key update skip locked) row
   limit 1000
)
update gen_durable.gen_durable g set gated = true
  from blocked where g.id = blocked.id
returning g.concurrency_key

-- name: gate_behind
-- The same for keys with free slots whose first rows this picker cannot lease: they belong to another machine or queue, or are
-- locked. As many rows as slots are free stay, not counting rows that no worker can start; the rows behind them are gated. The
-- rows that stay are locked here: a transaction that takes one of them out (a commit, a cancel, a deferral) ungates, and it waits
-- for this transaction. SKIP LOCKED.
with key_heads as materialized (
  select row.*, row_number() over (partition by row.concurrency_key order by row.priority, row.eligible_at, row.id) = slots.free
         as is_last
    from unnest(:keys::text[], :free::int[]) as slots (key, free) cross join lateral (
      select * from (
        select g.id, g.priority, g.eligible_at, g.concurrency_key from gen_durable.gen_durable g
         where g.status = 'runnable' and g.concurrency_key = slots.key and not g.gated and g.eligible_at <= statement_timestamp()
           and (g.fsm, g.fsm_version, g.queue) not in (select p.fsm, p.fsm_version, p.queue from gen_durable.passed_over p)
         order by g.priority, g.eligible_at, g.id limit 32767
           for no key update skip locked) free
      limit slots.free) row
), blocked as materialized (
  select row.id from key_heads cross join lateral (
    select g.id from gen_durable.gen_durable g
     where key_heads.is_last
       and g.status = 'runnable' and g.concurrency_key = key_heads.concurrency_key and not g.gated
       and g.eligible_at <= statement_timestamp()
       and (g.priority, g.eligible_at, g.id) > (key_heads.priority, key_heads.eligible_at, key_heads.id)
     order by g.priority, g.eligible_at, g.id limit 1000
       for no key update skip locked) row
   limit 1000
)
update gen_durable.gen_durable g set gated = true
  from blocked where g.id = blocked.id
returning g.concurrency_key

-- name: ungate
-- After a transaction freed slots: return the next gated rows of each key to the pick index.
select queue from gen_durable.ungate(:keys::text[]) as queue

-- name: defer_throttled
-- Defer the due rows of exhausted buckets to their turns, and stop at 1000 rows. Returns the number of each.
select key, count from gen_durable.defer_throttled(:keys::text[], :queues::text[], :fsms::text[], :versions::int[])

-- name: pull_forward
-- Make the next deferred rows of a full bucket due now. A bucket is full although rows wait for their turns if rows before them
-- were cancelled. The rows keep their turns; those without enough tokens are deferred again. Returns the queues with work.
-- Locks: ids descending, SKIP LOCKED. Cost: a skip scan over the buckets that have deferred rows.
with recursive limited_keys as (
  (select g.rate_limit as key from gen_durable.gen_durable g
    where g.status = 'runnable' and g.rate_turn_at is not null order by g.rate_limit limit 1)
  union all
  select (select g.rate_limit from gen_durable.gen_durable g
           where g.status = 'runnable' and g.rate_turn_at is not null and g.rate_limit > limited_keys.key
           order by g.rate_limit limit 1)
    from limited_keys where limited_keys.key is not null
), full_buckets as materialized (
  select limited_keys.key from limited_keys
   where limited_keys.key is not null
     and exists (select from gen_durable.limits l where l.kind = 'rate' and l.name = split_part(limited_keys.key, ':', 1))
     and not exists (select from gen_durable.buckets b where b.key = limited_keys.key and b.full_at > statement_timestamp())
     and not exists (select from gen_durable.gen_durable g
                      where g.status = 'runnable' and g.rate_turn_at is not null and g.rate_limit = limited_keys.key
                        and g.eligible_at <= statement_timestamp() + interval '1 second')
), next_turns as materialized (
  select row.id from full_buckets cross join lateral (
    select g.id from gen_durable.gen_durable g
     where g.status = 'runnable' and g.rate_turn_at is not null and g.rate_limit = full_buckets.key
     order by g.rate_turn_at, g.id limit 1000) row
), unlocked as materialized (
  select g.id from next_turns join gen_durable.gen_durable g on g.id = next_turns.id
   where g.status = 'runnable' and g.rate_turn_at is not null
   order by g.id desc for no key update of g skip locked
)
update gen_durable.gen_durable g set eligible_at = statement_timestamp()
  from unlocked where g.id = unlocked.id
returning g.queue

-- name: mark_unserved
-- Mark the groups of rows (machine, version, queue) that no live worker can start, and unmark those that one can; by the rules of
-- explain.sql. Groups are those of ungated rows, and those marked before: an unserved row that is next in its key is not gated.
-- A group without ungated rows is unmarked after a day. It may have gated rows, which are next in their keys again. An unmarked
-- group explains that to stuck_keys for 10 minutes.
-- Cost: a skip scan over the groups. Writes only what has changed.
with recursive backlog as (
  (select g.fsm, g.queue, g.fsm_version from gen_durable.gen_durable g
    where g.status = 'runnable' and not g.gated
    order by g.fsm collate "C", g.queue, g.fsm_version limit 1)
  union all
  select next.* from backlog cross join lateral (
    select g.fsm, g.queue, g.fsm_version from gen_durable.gen_durable g
     where g.status = 'runnable' and not g.gated
       and (g.fsm collate "C", g.queue, g.fsm_version) > (backlog.fsm collate "C", backlog.queue, backlog.fsm_version)
     order by g.fsm collate "C", g.queue, g.fsm_version limit 1) next
), groups as materialized (
  select each.*, not exists (select from gen_durable.queues q where q.name = each.queue and q.is_paused) and exists (
           select from gen_durable.workers w
            cross join lateral (
              select each.queue = any (w.queues) as by_queue,
                     exists (select from unnest(w.prefixes) as prefix where starts_with(each.fsm, prefix)) as by_prefix,
                     exists (select from unnest(w.fsms, w.fsm_versions) as machine (fsm, version)
                              where machine.fsm = each.fsm and machine.version = each.fsm_version) as knows) worker
            where w.expires_at > statement_timestamp() and not w.is_draining
              and (worker.knows and worker.by_queue or worker.by_prefix and (worker.knows or not w.leaves_unknown)))
         as is_served
    from (select found.fsm, found.queue, found.fsm_version, bool_or(found.has_rows) as has_rows from (
            select b.fsm, b.queue, b.fsm_version, true as has_rows from backlog b
            union all select u.fsm, u.queue, u.fsm_version, false from gen_durable.unserved u) found
           group by found.fsm, found.queue, found.fsm_version) each
), marked as (
  insert into gen_durable.unserved as u (fsm, fsm_version, queue)
  select groups.fsm, groups.fsm_version, groups.queue from groups
   where groups.has_rows and not groups.is_served
     and not exists (select from gen_durable.unserved u
                      where u.fsm = groups.fsm and u.fsm_version = groups.fsm_version and u.queue = groups.queue and u.served_at is null)
   order by groups.fsm, groups.fsm_version, groups.queue
      on conflict (fsm, fsm_version, queue) do update set since = excluded.since, served_at = null where u.served_at is not null
), unmarked as (
  update gen_durable.unserved u set served_at = statement_timestamp()
    from groups
   where u.fsm = groups.fsm and u.fsm_version = groups.fsm_version and u.queue = groups.queue and u.served_at is null
     and (groups.is_served or not groups.has_rows and u.since < statement_timestamp() - interval '1 day')
)
delete from gen_durable.unserved u using groups
 where u.fsm = groups.fsm and u.fsm_version = groups.fsm_version and u.queue = groups.queue
   and (groups.is_served or not groups.has_rows) and u.served_at < statement_timestamp() - interval '10 minutes'

-- name: stuck_keys
-- Keys with a free slot whose next row is gated; the caller ungates them. Only a group that has been marked or unmarked (unserved)
-- makes such keys; otherwise a correct engine never has one.
with recursive gated_keys as (
  (select g.concurrency_key as key from gen_durable.gen_durable g
    where g.status = 'runnable' and g.gated order by g.concurrency_key limit 1)
  union all
  select (select g.concurrency_key from gen_durable.gen_durable g
           where g.status = 'runnable' and g.gated and g.concurrency_key > gated_keys.key
           order by g.concurrency_key limit 1)
    from gated_keys where gated_keys.key is not null
)
select gated_keys.key, exists (select from gen_durable.unserved) as is_expected from gated_keys
 cross join lateral (
   select coalesce((select l.slots from gen_durable.limits l
                     where l.kind = 'concurrency' and l.name = split_part(gated_keys.key, ':', 1)), 1)
          - (select count(*) from gen_durable.gen_durable holder
              where holder.concurrency_key = gated_keys.key and holder.concurrency_slot is not null) as free) slots
 where gated_keys.key is not null and slots.free > 0
   and exists (
     select from (
       select * from (
         select g.gated from gen_durable.gen_durable g
          where g.status = 'runnable' and g.concurrency_key = gated_keys.key and g.eligible_at <= statement_timestamp()
            and (g.fsm, g.fsm_version, g.queue) not in (select p.fsm, p.fsm_version, p.queue from gen_durable.passed_over p)
          order by g.priority, g.eligible_at, g.id limit 32767) due
       limit slots.free) first
      where first.gated)
