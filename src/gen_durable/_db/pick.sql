-- Leasing: which rows run next, what they need to run, and how the rows of a busy key get out of the way.

-- name: pick
-- Lease up to :demand due rows of one queue: the lowest priority first, then the longest due. One statement, and an empty
-- queue costs only its first index probe. Nothing waits: rows that somebody holds are skipped. A paused queue is empty.
--   * Priorities are walked by a skip scan, so a million future rows on an urgent priority cost one probe.
--   * Literal limits inside and :demand outside: a bare parameter is planned as a tenth of the table. Rows are pulled, and
--     so locked, one by one; no more than :demand of them.
--   * A keyed row is admitted only if nobody holds the key and no due row of the key stands before it, gated or locked by
--     another picker or not. Two pickers can still choose two rows of one key when a more urgent row was committed
--     between their snapshots; the unique index on the slot refuses the second, and its pick is run again.
-- The time that a row is due since comes back as a number: a timestamp may lie where no driver can follow.
-- A denied row comes back without lease_token, once per key, so that its key can be gated.
with recursive moment as materialized (
  select statement_timestamp() as now
), priority as (
  (select g.priority as value from gen_durable.gen_durable g
    where g.status = 'runnable' and not g.gated and g.queue = :queue
      and not exists (select from gen_durable.queues q where q.name = :queue and q.is_paused)
    order by g.priority limit 1)
  union all
  select (select g.priority from gen_durable.gen_durable g
           where g.status = 'runnable' and not g.gated and g.queue = :queue and g.priority > priority.value
           order by g.priority limit 1)
    from priority where priority.value is not null
), candidate as materialized (
  select * from (
    select due.* from priority cross join lateral (
      select g.id, g.fsm, g.priority, g.eligible_at, g.concurrency_key from gen_durable.gen_durable g
       where g.status = 'runnable' and not g.gated and g.queue = :queue and g.priority = priority.value
         and g.eligible_at <= (select now from moment)
         and (g.fsm, g.fsm_version) in (select * from unnest(:fsms::text[], :versions::int[]))
       order by g.eligible_at, g.id limit 1000
         for no key update skip locked) due
     where priority.value is not null limit 1000) first
  limit :demand::int
{leasing}

-- name: pick_by_prefix
-- The same for every machine whose name lies in [:low, :high), whatever its queue: the lowest priority first, then the longest
-- due, over all types together. What it costs grows with the number of types and with :reach, not with the number of rows.
--   line     every type, queue and priority that there is, with its first row: a skip scan. Those of paused queues lead nowhere.
--   head     the lines that matter: of the first :reach rows, none is in a line that begins behind the :reach-th of these.
--   sample   some rows of each, of every priority twice :reach in all; where they put the :reach-th, everything behind it is
--            out of the question (bound). Without that, a hundred types would be read :reach deep each.
--   chosen   the first :reach rows. They are locked one by one in this order, no more of them than :demand; :reach is larger,
--            because some may be locked by others.
-- Null :fsms: known here or not, the namespace is ours.
with recursive moment as materialized (
  select statement_timestamp() as now
), line as (
  (select g.fsm, g.queue, g.priority, g.eligible_at, g.id from gen_durable.gen_durable g
    where g.status = 'runnable' and not g.gated and g.fsm collate "C" >= :low::text and g.fsm collate "C" < :high::text
    order by g.fsm collate "C", g.queue, g.priority, g.eligible_at, g.id limit 1)
  union all
  select next.* from line cross join lateral (
    select g.fsm, g.queue, g.priority, g.eligible_at, g.id from gen_durable.gen_durable g
     where g.status = 'runnable' and not g.gated and g.fsm collate "C" < :high::text
       and (g.fsm collate "C", g.queue, g.priority) > (line.fsm collate "C", line.queue, line.priority)
     order by g.fsm collate "C", g.queue, g.priority, g.eligible_at, g.id limit 1) next
), head as materialized (
  select first.*, count(*) over (partition by first.priority) as lines from (
    select line.fsm, line.queue, line.priority from line cross join lateral (
      select line.eligible_at, line.id where :fsms::text[] is null
      union all
      (select g.eligible_at, g.id from gen_durable.gen_durable g
        where :fsms::text[] is not null
          and g.status = 'runnable' and not g.gated and g.fsm collate "C" = line.fsm and g.queue = line.queue
          and g.priority = line.priority and g.eligible_at <= (select now from moment)
          and (g.fsm, g.fsm_version) in (select * from unnest(:fsms::text[], :versions::int[]))
        order by g.eligible_at, g.id limit 1)) first
     where line.eligible_at <= (select now from moment) and (:fsms::text[] is null or line.fsm = any (:fsms::text[]))
       and line.queue <> all (array(select q.name from gen_durable.queues q where q.is_paused))
     order by line.priority, first.eligible_at, first.id limit :reach::int) first
), sample as (
  select due.* from head cross join lateral (
    select * from (
      select g.priority, g.eligible_at, g.id from gen_durable.gen_durable g
       where g.status = 'runnable' and not g.gated and g.fsm collate "C" = head.fsm and g.queue = head.queue
         and g.priority = head.priority
         and g.eligible_at <= (select now from moment)
         and (:fsms::text[] is null or (g.fsm, g.fsm_version) in (select * from unnest(:fsms::text[], :versions::int[])))
       order by g.eligible_at, g.id limit 1000) first
    limit 2 * :reach::int / head.lines + 1) due
), bound as materialized (
  select sample.priority, sample.eligible_at from sample
   order by sample.priority, sample.eligible_at, sample.id offset :reach::int - 1 limit 1
), chosen as materialized (
  select due.* from head cross join lateral (
    select * from (
      select g.id, g.priority, g.eligible_at from gen_durable.gen_durable g
       where g.status = 'runnable' and not g.gated and g.fsm collate "C" = head.fsm and g.queue = head.queue
         and g.priority = head.priority
         and g.eligible_at <= coalesce((select case when bound.priority = head.priority then bound.eligible_at end from bound),
                                       (select now from moment))
         and (:fsms::text[] is null or (g.fsm, g.fsm_version) in (select * from unnest(:fsms::text[], :versions::int[])))
       order by g.eligible_at, g.id limit 1000) first
    limit :reach::int) due
   where not exists (select from bound where head.priority > bound.priority)
   order by due.priority, due.eligible_at, due.id limit :reach::int
), candidate as materialized (
  select * from (
    select free.* from chosen cross join lateral (
      select g.id, g.fsm, g.priority, g.eligible_at, g.concurrency_key from gen_durable.gen_durable g
       where g.id = chosen.id and g.status = 'runnable' and not g.gated and g.eligible_at <= (select now from moment)
         for no key update skip locked) free
    limit 1000) first
  limit :demand::int
{leasing}

-- part: leasing
-- What both picks do with their candidates.
), admitted as materialized (
  select candidate.*, candidate.concurrency_key is null or (
      not exists (select from gen_durable.gen_durable holder
                   where holder.concurrency_key = candidate.concurrency_key and holder.concurrency_slot is not null)
      and not exists (select from gen_durable.gen_durable ahead
                   where ahead.status = 'runnable' and ahead.concurrency_key = candidate.concurrency_key
                     and (ahead.priority, ahead.eligible_at, ahead.id)
                       < (candidate.priority, candidate.eligible_at, candidate.id)
                     and ahead.eligible_at <= (select now from moment))) as is_admitted
    from candidate
), leased as (
  update gen_durable.gen_durable g
     set status = 'executing', lease_token = :lease_token::bigint, locked_by = :worker::text,
         lease_expires_at = (select now from moment) + coalesce(
           (select own.lease from unnest(:own_fsms::text[], :own_versions::int[], :own_steps::text[], :own_leases::interval[])
                   as own (fsm, version, step, lease)
             where own.fsm = g.fsm and own.version = g.fsm_version and own.step = g.step), :lease::interval),
         leased_at = (select now from moment),
         concurrency_slot = case when g.concurrency_key is not null then 0 end,
         execution = least(g.execution, 2147483646) + 1, updated_at = (select now from moment)
    from admitted
   where g.id = admitted.id and admitted.is_admitted
  returning g.id, g.lease_token, g.fsm, g.fsm_version, g.step, g.step_seq, g.attempt, g.state::text as state,
            g.awaits, g.timed_out, g.has_signals, coalesce(g.spawn_round = g.step_seq, false) as has_children,
            g.parent_id, g.concurrency_key, g.correlation_key, g.queue, g.priority,
            extract(epoch from g.eligible_at)::float8 as due, g.leased_at, g.max_attempts, g.slot_at, g.execution, g.traceparent,
            g.inserted_at
)
select * from leased
union all
select * from (
  select distinct on (admitted.concurrency_key) admitted.id, null::bigint, admitted.fsm, null::int, null, null::bigint,
         null::int, null, null::text[], null::boolean, null::boolean, null::boolean, null::bigint,
         admitted.concurrency_key, null, null, admitted.priority, null::float8, null::timestamptz, null::int,
         null::timestamptz, null::int, null, null::timestamptz
    from admitted where not admitted.is_admitted
   order by admitted.concurrency_key, admitted.priority, admitted.eligible_at, admitted.id) denied

-- name: inboxes
-- The unread signals of leased rows, oldest first. Only for rows that ever had one.
select s.target_id, s.id, s.name, s.payload::text as payload, s.inserted_at, s.traceparent
  from gen_durable.signals s
 where s.target_id = any (:ids::bigint[]) and s.consumed_seq is null
 order by s.target_id, s.id

-- name: children
-- The children of the last spawn of leased rows, in the order of their specs. Only for rows that a barrier released.
select child.parent_id, child.id, child.fsm, child.fsm_version, child.status::text as status, child.state::text as state,
       child.result::text as result, child.last_error
  from unnest(:ids::bigint[], :rounds::bigint[]) as parent (id, round)
  join gen_durable.gen_durable child on child.parent_id = parent.id and child.parent_round = parent.round
 order by child.parent_id, child.id

-- name: lock_holders
-- First half of gating, in one transaction with the second: lock who holds these keys. A key is busy only if its holder is
-- still there under the lock. A holder that somebody has locked may be ending at this moment: its key does not count as busy.
select g.concurrency_key
  from gen_durable.gen_durable g
 where g.concurrency_key = any (:keys::text[]) and g.concurrency_slot is not null
 order by g.id desc
   for no key update skip locked

-- name: gate
-- Second half: the due rows of busy keys leave the pick index, in bounded chunks, so that they cannot fill every pick in
-- front of rows that could run. Whoever frees the key lets the next one in (ungate).
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
-- The same for keys that nobody holds, but whose first row the picker could not take: another machine's, in another queue, or
-- held by somebody. It stays where it is, and what is behind it goes out of the way. It cannot leave the line without a
-- transaction that ungates: an execution that ends, or a cancel; and those wait for this one, which has locked it.
with first as materialized (
  select row.* from unnest(:keys::text[]) as free (key) cross join lateral (
    select g.id, g.priority, g.eligible_at, g.concurrency_key from gen_durable.gen_durable g
     where g.status = 'runnable' and g.concurrency_key = free.key and not g.gated and g.eligible_at <= statement_timestamp()
     order by g.priority, g.eligible_at, g.id limit 1
       for no key update skip locked) row
), blocked as materialized (
  select row.id from first cross join lateral (
    select g.id from gen_durable.gen_durable g
     where g.status = 'runnable' and g.concurrency_key = first.concurrency_key and not g.gated
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

-- name: stuck_keys
-- An alarm more than a repair: keys that nobody holds, with gated rows and none in the pick index. Without faults: none.
with recursive line as (
  (select g.concurrency_key as key from gen_durable.gen_durable g
    where g.status = 'runnable' and g.concurrency_key is not null order by g.concurrency_key limit 1)
  union all
  select (select g.concurrency_key from gen_durable.gen_durable g
           where g.status = 'runnable' and g.concurrency_key is not null and g.concurrency_key > line.key
           order by g.concurrency_key limit 1)
    from line where line.key is not null
)
select line.key from line
 where line.key is not null
   and exists (select from gen_durable.gen_durable g
                where g.status = 'runnable' and g.concurrency_key = line.key and g.gated)
   and not exists (select from gen_durable.gen_durable g
                    where g.status = 'runnable' and g.concurrency_key = line.key and not g.gated
                      and g.eligible_at <= statement_timestamp())
   and not exists (select from gen_durable.gen_durable holder
                    where holder.concurrency_key = line.key and holder.concurrency_slot is not null)
