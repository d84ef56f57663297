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
-- locked. As many rows as slots are free stay; the rows behind them are gated. The rows that stay are locked here: a transaction
-- that takes one of them out (a commit, a cancel, a deferral) ungates, and it waits for this transaction. SKIP LOCKED.
with key_heads as materialized (
  select row.*, row_number() over (partition by row.concurrency_key order by row.priority, row.eligible_at, row.id) = slots.free
         as is_last
    from unnest(:keys::text[], :free::int[]) as slots (key, free) cross join lateral (
      select * from (
        select g.id, g.priority, g.eligible_at, g.concurrency_key from gen_durable.gen_durable g
         where g.status = 'runnable' and g.concurrency_key = slots.key and not g.gated and g.eligible_at <= statement_timestamp()
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

-- name: stuck_keys
-- Keys with a free slot whose next row is gated. A correct engine never has one; the caller reports and ungates them.
with recursive gated_keys as (
  (select g.concurrency_key as key from gen_durable.gen_durable g
    where g.status = 'runnable' and g.gated order by g.concurrency_key limit 1)
  union all
  select (select g.concurrency_key from gen_durable.gen_durable g
           where g.status = 'runnable' and g.gated and g.concurrency_key > gated_keys.key
           order by g.concurrency_key limit 1)
    from gated_keys where gated_keys.key is not null
)
select gated_keys.key from gated_keys
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
          order by g.priority, g.eligible_at, g.id limit 32767) due
       limit slots.free) first
      where first.gated)
