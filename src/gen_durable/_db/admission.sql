-- Which due rows a pick may see: gating by concurrency key, deferring by rate limit.

-- name: lock_holders
-- First half of gating, in one transaction with the second: lock who holds these keys, and count how many slots are free. A key
-- is busy only if its holders are still there under the lock; one that ends at this moment is waited for, and then its slot is
-- free. The limits are locked too: whoever changes one does so before, or after, and then lets the next rows in.
{holders}     for no key update
{free_slots}
-- name: lock_free_holders
-- The same for a key of which somebody keeps a holder locked: that one's slot counts as free. It may leave a slot idle until the
-- next of the key ends (two holders that end side by side do not see each other), so it is not the rule.
{holders}     for no key update skip locked
{free_slots}
-- part: holders
-- Who holds these keys, in the order of all locks.
with slots as materialized (
  select l.name, l.slots from gen_durable.limits l
   where l.kind = 'concurrency' and l.name in (select split_part(keys.key, ':', 1) from unnest(:keys::text[]) as keys (key))
   order by l.name
     for share
), holder as materialized (
  select g.concurrency_key as key
    from gen_durable.gen_durable g
   where g.concurrency_key = any (:keys::text[]) and g.concurrency_slot is not null
   order by g.id desc

-- part: free_slots
-- How many slots each key has left.
)
select keys.key, greatest(coalesce((select slots.slots from slots where slots.name = split_part(keys.key, ':', 1)), 1)
                          - (select count(*) from holder where holder.key = keys.key), 0)::int as free
  from unnest(:keys::text[]) as keys (key)

-- name: gate
-- Second half: the due rows of busy keys leave the pick index, in bounded chunks, so that they cannot fill every pick in
-- front of rows that could run. Whoever frees a slot lets the next one in (ungate).
with blocked as materialized (
  select row.id from unnest(:keys::text[]) as busy (key) cross join lateral (
    select g.id from gen_durable.gen_durable g
     where g.status = 'runnable' and g.concurrency_key = busy.key and not g.gated and g.eligible_at <= statement_timestamp()
     order by g.priority, g.eligible_at, g.id limit 1000
       for no key update skip locked) row
)
update gen_durable.gen_durable g set gated = true
  from blocked where g.id = blocked.id
returning g.concurrency_key

-- name: gate_behind
-- The same for keys with free slots, but whose first rows the picker could not take: another machine's, in another queue, or
-- held by somebody. As many as there are slots stay where they are, and what is behind them goes out of the way. They cannot
-- leave the line without a transaction that ungates: an execution that ends, a cancel, a bucket that puts them off; and those
-- wait for this one, which has locked them.
with first as materialized (
  select row.*, row_number() over (partition by row.concurrency_key order by row.priority, row.eligible_at, row.id) = line.free
         as is_last
    from unnest(:keys::text[], :free::int[]) as line (key, free) cross join lateral (
      select * from (
        select g.id, g.priority, g.eligible_at, g.concurrency_key from gen_durable.gen_durable g
         where g.status = 'runnable' and g.concurrency_key = line.key and not g.gated and g.eligible_at <= statement_timestamp()
         order by g.priority, g.eligible_at, g.id limit 32767
           for no key update skip locked) free
      limit line.free) row
), blocked as materialized (
  select row.id from first cross join lateral (
    select g.id from gen_durable.gen_durable g
     where first.is_last
       and g.status = 'runnable' and g.concurrency_key = first.concurrency_key and not g.gated
       and g.eligible_at <= statement_timestamp()
       and (g.priority, g.eligible_at, g.id) > (first.priority, first.eligible_at, first.id)
     order by g.priority, g.eligible_at, g.id limit 1000
       for no key update skip locked) row
)
update gen_durable.gen_durable g set gated = true
  from blocked where g.id = blocked.id
returning g.concurrency_key

-- name: ungate
-- A later statement of every transaction that frees a key: let the next row of each key in.
select queue from gen_durable.ungate(:keys::text[]) as queue

-- name: defer_throttled
-- The due rows of buckets that are empty get the times at which it will be their turn, in bounded chunks; how many of each.
select key, count from gen_durable.defer_throttled(:keys::text[], :queues::text[], :fsms::text[], :versions::int[])

-- name: pull_forward
-- Those whose turn is yet to come although their bucket is full: somebody before them in its plan was cancelled. The first of them
-- are due now. They keep their places, and those for whom the bucket is not enough are put off again. The queues that have
-- work now.
with recursive line as (
  (select g.rate_limit as key from gen_durable.gen_durable g
    where g.status = 'runnable' and g.rate_turn_at is not null order by g.rate_limit limit 1)
  union all
  select (select g.rate_limit from gen_durable.gen_durable g
           where g.status = 'runnable' and g.rate_turn_at is not null and g.rate_limit > line.key
           order by g.rate_limit limit 1)
    from line where line.key is not null
), idle as materialized (
  select line.key from line
   where line.key is not null
     and exists (select from gen_durable.limits l where l.kind = 'rate' and l.name = split_part(line.key, ':', 1))
     and not exists (select from gen_durable.buckets b where b.key = line.key and b.full_at > statement_timestamp())
     and not exists (select from gen_durable.gen_durable g
                      where g.status = 'runnable' and g.rate_turn_at is not null and g.rate_limit = line.key
                        and g.eligible_at <= statement_timestamp() + interval '1 second')
), early as materialized (
  select row.id from idle cross join lateral (
    select g.id from gen_durable.gen_durable g
     where g.status = 'runnable' and g.rate_turn_at is not null and g.rate_limit = idle.key
     order by g.rate_turn_at, g.id limit 1000) row
), free as materialized (
  select g.id from early join gen_durable.gen_durable g on g.id = early.id
   where g.status = 'runnable' and g.rate_turn_at is not null
   order by g.id desc for no key update of g skip locked
)
update gen_durable.gen_durable g set eligible_at = statement_timestamp()
  from free where g.id = free.id
returning g.queue

-- name: stuck_keys
-- An alarm more than a repair: keys with a free slot for which the next in line is gated. Without faults: none.
with recursive line as (
  (select g.concurrency_key as key from gen_durable.gen_durable g
    where g.status = 'runnable' and g.gated order by g.concurrency_key limit 1)
  union all
  select (select g.concurrency_key from gen_durable.gen_durable g
           where g.status = 'runnable' and g.gated and g.concurrency_key > line.key
           order by g.concurrency_key limit 1)
    from line where line.key is not null
)
select line.key from line
 cross join lateral (
   select coalesce((select l.slots from gen_durable.limits l
                     where l.kind = 'concurrency' and l.name = split_part(line.key, ':', 1)), 1)
          - (select count(*) from gen_durable.gen_durable holder
              where holder.concurrency_key = line.key and holder.concurrency_slot is not null) as free) slots
 where line.key is not null and slots.free > 0
   and exists (
     select from (
       select * from (
         select g.gated from gen_durable.gen_durable g
          where g.status = 'runnable' and g.concurrency_key = line.key and g.eligible_at <= statement_timestamp()
          order by g.priority, g.eligible_at, g.id limit 32767) due
       limit slots.free) first
      where first.gated)
