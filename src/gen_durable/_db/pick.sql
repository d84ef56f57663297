-- Lease due rows, and load what their steps read: inboxes and children.
--
-- A pick consists of CTEs, in three groups:
--   picking    which due rows, in which order: `candidates`, locked one by one with SKIP LOCKED
--   admission  which of them have a slot of their concurrency key and tokens of their rate limit: `granted`
--   leasing    `leased`, `audited`
-- `pick` has no admission: it leases nothing if a candidate needs it. The other picks have all three groups.
--
-- The column `kind` says what a row of the result is:
--   leased             a leased instance; `details` is a JSON array of columns that most instances do not use
--   needs_admission    a candidate has a concurrency key or a rate limit; `pick` has leased nothing
--   denied             a concurrency key without a free slot, and its first candidate; `details` is the key. Gate it.
--   throttled          a rate limit bucket with too few tokens; `details` is [bucket, wanted, granted]. Defer its rows.
--   awaiting_capacity  a row with a rate limit waits for free capacity of the worker
--   foreign_head       machines of other workers occupy the head of the queue: use pick_by_machine

-- name: pick
-- Lease up to :demand due rows of one queue, ordered by priority, then by eligible_at, if none of them needs admission. A paused
-- queue is empty. Locks: SKIP LOCKED, so it never waits. Cost: an empty queue costs one index probe.
with recursive {moment}, {priorities}, {due_candidates}, {foreign_head}, granted as (
  select candidates.id, candidates.position, null::smallint as slot, null::timestamptz as granted_at
    from candidates where not exists (select from candidates where candidates.needs_admission)
), {leased}, {audited}, {needs_admission}, notices as (
  select * from needs_admission union all select * from foreign_head
)
{result}

-- name: pick_with_admission
-- The same for rows with concurrency keys and rate limits. Locks: take_tokens() waits for buckets, in the order of their keys.
-- Guard: a row with a concurrency key needs a free slot for each due row of the key up to it, gated and locked rows included. Two
-- pickers can still choose the same slot if a more urgent row was committed between their snapshots. The unique index on
-- (concurrency_key, concurrency_slot) rejects the second, and its pick runs again.
with recursive {moment}, {priorities}, {due_candidates}, {foreign_head}, {slots}, {tokens}, {leased}, {audited},
     {needs_admission}, {refused}, notices as (
  select * from needs_admission union all select * from refused union all select * from foreign_head
)
{result}

-- name: pick_by_machine
-- Lease the same rows in the same order, in a queue whose head belongs to machines that are not registered here: it does not
-- read their rows. It costs more than `pick` in other queues: one probe per machine and priority. It reports no foreign_head once
-- the head of the queue belongs to registered machines; then `pick` is used again.
with recursive {moment}, {priorities}, group_heads as (
  select machine.fsm, :queue as queue, machine.version, first.priority, first.eligible_at, first.id
    from priority cross join unnest(:fsms::text[], :versions::int[]) as machine (fsm, version) cross join lateral (
      select g.priority, g.eligible_at, g.id from gen_durable.gen_durable g
       where g.status = 'runnable' and not g.gated and g.fsm collate "C" = machine.fsm and g.queue = :queue
         and g.fsm_version = machine.version and g.priority = priority.value
       order by g.eligible_at, g.id limit 1) first
), {merged_candidates}, {foreign_head}, {slots}, {tokens}, {leased}, {audited},
     {needs_admission}, {refused}, notices as (
  select * from needs_admission union all select * from refused union all select * from foreign_head
)
{result}

-- name: pick_by_prefix
-- Lease due rows of all machines whose name is in [:low, :high), in all queues that are not paused, in the order of `pick`.
-- :fsms null: also machines that are not registered here. The cost grows with the number of machines and :reach, not with the
-- number of rows.
with recursive {moment}, walked as (
  (select g.fsm, g.queue, g.fsm_version as version, g.priority, g.eligible_at, g.id from gen_durable.gen_durable g
    where g.status = 'runnable' and not g.gated and g.fsm collate "C" >= :low::text and g.fsm collate "C" < :high::text
    order by g.fsm collate "C", g.queue, g.fsm_version, g.priority, g.eligible_at, g.id limit 1)
  union all
  select next.* from walked cross join lateral (
    select g.fsm, g.queue, g.fsm_version, g.priority, g.eligible_at, g.id from gen_durable.gen_durable g
     where g.status = 'runnable' and not g.gated and g.fsm collate "C" < :high::text
       and (g.fsm collate "C", g.queue, g.fsm_version, g.priority)
           > (walked.fsm collate "C", walked.queue, walked.version, walked.priority)
     order by g.fsm collate "C", g.queue, g.fsm_version, g.priority, g.eligible_at, g.id limit 1) next
), group_heads as (
  select * from walked
   where (:fsms::text[] is null or (walked.fsm, walked.version) in (select * from unnest(:fsms::text[], :versions::int[])))
     and walked.queue <> all (array(select q.name from gen_durable.queues q where q.is_paused))
), {merged_candidates}, {slots}, {tokens}, {leased}, {audited}, {needs_admission}, {refused}, notices as (
  select * from needs_admission union all select * from refused
)
{result}

-- part: moment
moment as materialized (
  select statement_timestamp() as now
)

-- part: priorities
-- The priorities of the queue with the first row of each.
--   scanned    by a skip scan: one probe per priority, also for priorities of future rows. The scan stops after 100 priorities,
--              unless the queue has many due rows.
--   due_rows   the due rows of such a queue, at most 10,001; read only if the scan has come to 100 priorities
--   priority   the scanned priorities, and then those of the due rows. The index of due_rows has no rows of priorities -10 to 10.
-- A pick reads only as many priorities as it needs for its rows.
scanned as (
  (select 1 as number, g.priority as value, g.eligible_at as since, g.id as first from gen_durable.gen_durable g
    where g.status = 'runnable' and not g.gated and g.queue = :queue
      and not exists (select from gen_durable.queues q where q.name = :queue and q.is_paused)
    order by g.priority, g.eligible_at, g.id limit 1)
  union all
  select scanned.number + 1, next.* from scanned cross join lateral (
    select g.priority, g.eligible_at, g.id from gen_durable.gen_durable g
     where g.status = 'runnable' and not g.gated and g.queue = :queue and g.priority > scanned.value
     order by g.priority, g.eligible_at, g.id limit 1) next
   where scanned.number < 100 or (select count(*) from due_rows) > 10000
), due_rows as materialized (
  select g.priority from gen_durable.gen_durable g
   where g.status = 'runnable' and not g.gated and g.priority not between -10 and 10 and g.queue = :queue
     and g.eligible_at <= (select now from moment)
   order by g.eligible_at limit 10001
), priority as (
  select scanned.value, scanned.since, scanned.first from scanned
  union all
  select later.value, timestamptz '-infinity', 0 from (
    select due_rows.priority as value from due_rows union select generate_series(-10, 10) order by value) later
   where later.value > (select max(scanned.value) from scanned having count(*) >= 100)
)

-- part: due_candidates
--   * Literal limits inside, :demand outside: a parameter as the only limit is planned as a tenth of the table. Rows are read,
--     and so locked, one by one, at most :demand of them.
--   * `nullif(...) is not null` makes the planner assume that most rows belong to the registered machines, so it reads the
--     index in order and stops early. A plain condition becomes a join with few expected rows: all due rows are read and sorted.
--   * The rows of one priority do not start at priority.since: with a second bound the planner expects few rows as well.
--   * Rows with deleted_at are never leased, even if they are still runnable (see end_deleted).
candidates as materialized (
  select first.*, row_number() over () as position from (
    select * from (
      select due.* from priority cross join lateral (
        select g.id, g.fsm, g.step, g.priority, g.eligible_at, g.concurrency_key, g.rate_limit, g.weight, g.rate_turn_at, g.queue,
               g.concurrency_key is not null or g.rate_limit is not null as needs_admission
          from gen_durable.gen_durable g
         where g.status = 'runnable' and not g.gated and g.queue = :queue and g.priority = priority.value
           and g.eligible_at <= (select now from moment) and g.deleted_at is null
           and nullif((g.fsm, g.fsm_version) in (select * from unnest(:fsms::text[], :versions::int[])), false) is not null
           and nullif(g.concurrency_key = any (:passed_keys::text[]) is true, true) is not null
           and nullif(g.rate_limit = any (:passed_buckets::text[]) is true, true) is not null
         order by g.eligible_at, g.id limit 1000
           for no key update skip locked) due
       limit 1000) bounded
    limit :demand::int) first
)

-- part: merged_candidates
-- Merge the groups. A group is the due rows of one machine, version, queue and priority, ordered by eligible_at.
--   group_heads  the first row of every group (defined by the pick)
--   near_groups  the first :reach groups by their heads: no other group contains one of the first :reach rows
--   sample       some rows of each group, in all twice :reach per priority
--   cutoff       the :reach-th row of the sample: rows behind it are not read. Without it, :reach rows of each group are read.
--   nearest      the first :reach rows. :reach exceeds :demand, because other sessions may have locked some of them.
--   candidates   the nearest rows that are not locked, at most :demand; they are locked one by one in this order
near_groups as materialized (
  select first.*, count(*) over (partition by first.priority) as count from (
    select h.fsm, h.queue, h.version, h.priority from group_heads h where h.eligible_at <= (select now from moment)
     order by h.priority, h.eligible_at, h.id limit :reach::int) first
), sample as (
  select due.* from near_groups cross join lateral (
    select * from (
      select g.priority, g.eligible_at, g.id from gen_durable.gen_durable g
       where g.status = 'runnable' and not g.gated
         and g.fsm collate "C" = near_groups.fsm and g.queue = near_groups.queue and g.fsm_version = near_groups.version
         and g.priority = near_groups.priority and g.eligible_at <= (select now from moment)
         and nullif(g.concurrency_key = any (:passed_keys::text[]) is true, true) is not null
         and nullif(g.rate_limit = any (:passed_buckets::text[]) is true, true) is not null
       order by g.eligible_at, g.id limit 1000) first
    limit 2 * :reach::int / near_groups.count + 1) due
   where near_groups.count > 1
), cutoff as materialized (
  select sample.priority, sample.eligible_at from sample
   order by sample.priority, sample.eligible_at, sample.id offset :reach::int - 1 limit 1
), nearest as materialized (
  select due.* from near_groups cross join lateral (
    select * from (
      select g.id, g.priority, g.eligible_at from gen_durable.gen_durable g
       where g.status = 'runnable' and not g.gated
         and g.fsm collate "C" = near_groups.fsm and g.queue = near_groups.queue and g.fsm_version = near_groups.version
         and g.priority = near_groups.priority
         and g.eligible_at <= coalesce(
               (select case when cutoff.priority = near_groups.priority then cutoff.eligible_at end from cutoff),
               (select now from moment))
         and nullif(g.concurrency_key = any (:passed_keys::text[]) is true, true) is not null
         and nullif(g.rate_limit = any (:passed_buckets::text[]) is true, true) is not null
       order by g.eligible_at, g.id limit 1000) first
    limit :reach::int) due
   where not exists (select from cutoff where near_groups.priority > cutoff.priority)
   order by due.priority, due.eligible_at, due.id limit :reach::int
), candidates as materialized (
  select first.*, row_number() over () as position from (
    select * from (
      select free.* from nearest cross join lateral (
        select g.id, g.fsm, g.step, g.priority, g.eligible_at, g.concurrency_key, g.rate_limit, g.weight, g.rate_turn_at, g.queue,
               g.concurrency_key is not null or g.rate_limit is not null as needs_admission
          from gen_durable.gen_durable g
         where g.id = nearest.id and g.status = 'runnable' and not g.gated and g.eligible_at <= (select now from moment)
           and g.deleted_at is null
           for no key update skip locked) free
      limit 1000) bounded
    limit :demand::int) first
)

-- part: foreign_head
-- One row if the first due row of the queue, and more than 20 of the first 50, belong to machines that are not registered here. It
-- starts at priority.since, so it does not read index entries of rows that have left the head and are not vacuumed yet.
foreign_head as (
  select 'foreign_head' as kind, null::bigint as id, null as fsm, null as step, null as queue, null as details from (
    select head.* from priority cross join lateral (
      select g.priority, g.fsm, g.fsm_version from gen_durable.gen_durable g
       where g.status = 'runnable' and not g.gated and g.queue = :queue and g.priority = priority.value
         and (g.eligible_at, g.id) >= (priority.since, priority.first) and g.eligible_at <= (select now from moment)
       order by g.eligible_at, g.id limit 1) head
     limit 1) head
   where (head.fsm, head.fsm_version) not in (select * from unnest(:fsms::text[], :versions::int[]))
     and (select count(*) from (
            select g.fsm, g.fsm_version from gen_durable.gen_durable g
             where g.status = 'runnable' and not g.gated and g.queue = :queue and g.priority = head.priority
               and g.eligible_at <= (select now from moment)
             order by g.eligible_at, g.id limit 50) near
           where (near.fsm, near.fsm_version) not in (select * from unnest(:fsms::text[], :versions::int[]))) > 20
)

-- part: slots
-- Slots of concurrency keys.
--   key_capacity  per key: free slots, held slots, and the last candidate. If a limit was lowered, the executions above it still
--                 count as held.
--   key_heads     the first due rows of each key up to its last candidate, as many as slots are free; gated and locked rows too,
--                 but not rows that no worker can start (passed_over). Candidates count: this worker may be new.
--   free_slots    per key: the numbers of free slots. Among as many numbers as slots are held and wanted, enough are free.
--   slotted       the candidates with their slots: the n-th row of a key gets its n-th free slot
key_capacity as materialized (
  select last.*, least(greatest(slots.count - held.count, 0), 32767) as free, held.count as held
    from (select distinct on (candidates.concurrency_key) candidates.concurrency_key as key, candidates.priority,
                 candidates.eligible_at, candidates.id
            from candidates where candidates.concurrency_key is not null
           order by candidates.concurrency_key, candidates.position desc) last
   cross join lateral (
     select coalesce((select l.slots from gen_durable.limits l
                       where l.kind = 'concurrency' and l.name = split_part(last.key, ':', 1)), 1) as count) slots
   cross join lateral (
     select count(*)::int as count from gen_durable.gen_durable holder
      where holder.concurrency_key = last.key and holder.concurrency_slot is not null) held
), key_heads as materialized (
  select key_capacity.key, key_capacity.held, head.id,
         row_number() over (partition by key_capacity.key order by head.priority, head.eligible_at, head.id) as position
    from key_capacity cross join lateral (
      select * from (
        select g.id, g.priority, g.eligible_at from gen_durable.gen_durable g
         where g.status = 'runnable' and g.concurrency_key = key_capacity.key and g.eligible_at <= (select now from moment)
           and (g.priority, g.eligible_at, g.id) <= (key_capacity.priority, key_capacity.eligible_at, key_capacity.id)
           and ((g.fsm, g.fsm_version, g.queue) not in (select p.fsm, p.fsm_version, p.queue from gen_durable.passed_over p)
                or g.id in (select candidates.id from candidates))
         order by g.priority, g.eligible_at, g.id limit 32767) first
      limit key_capacity.free) head
), free_slots as materialized (
  select wanted.key, array(
           select series.number from generate_series(0, wanted.count - 1) as series (number)
            where (select true from gen_durable.gen_durable holder
                    where holder.concurrency_key = wanted.key and holder.concurrency_slot = series.number limit 1) is null
            order by series.number) as numbers
    from (select key_heads.key, max(key_heads.held) + count(*)::int as count from key_heads group by key_heads.key) wanted
), slotted as materialized (
  select candidates.*, slot.number as slot, candidates.concurrency_key is null or slot.id is not null as has_slot
    from candidates
    left join (select key_heads.id, free_slots.numbers[key_heads.position]::smallint as number
                 from key_heads join free_slots on free_slots.key = key_heads.key) slot on slot.id = candidates.id
)

-- part: tokens
-- Tokens of rate limits.
--   awaiting_capacity  the first candidate that needs tokens but is behind :capacity others. The pick stops before it: tokens are
--                      for starts, so a row that needs tokens is not leased ahead of the worker's capacity.
--   token_grants       take_tokens() grants a prefix of the rows of each bucket, under the lock of the bucket
--   granted            the candidates to lease; leased_at of a row with a rate limit is the moment of its grant
awaiting_capacity as materialized (
  select min(starting.position) as position from (
    select slotted.position, slotted.rate_limit, row_number() over (order by slotted.position) as number
      from slotted where slotted.has_slot and :demand::int > :capacity::int) starting
   where starting.rate_limit is not null and starting.number > :capacity::int
), admitted as materialized (
  select slotted.* from slotted
   where slotted.has_slot and slotted.position < coalesce((select position from awaiting_capacity), 2147483647)
), token_grants as materialized (
  select charges.ids[answer.ord] as id, answer.granted_at, answer.is_known
    from (select array_agg(admitted.id order by admitted.position) as ids,
                 array_agg(admitted.rate_limit order by admitted.position) as keys,
                 array_agg(admitted.weight order by admitted.position) as weights,
                 array_agg(admitted.rate_turn_at order by admitted.position) as rate_turns
            from admitted where admitted.rate_limit is not null having count(*) > 0) charges
   cross join lateral gen_durable.take_tokens(charges.keys, charges.weights, charges.rate_turns) as answer
), granted as (
  select admitted.id, admitted.position, admitted.slot, token_grants.granted_at
    from admitted left join token_grants on token_grants.id = admitted.id
   where admitted.rate_limit is null or token_grants.granted_at is not null
)

-- part: leased
leased as (
  update gen_durable.gen_durable g
     set status = 'executing', lease_token = :lease_token::bigint, locked_by = :worker::text,
         lease_expires_at = (select now from moment) + case when :own_fsms::text[] is null then :lease::interval else coalesce(
           (select own.lease from unnest(:own_fsms::text[], :own_versions::int[], :own_steps::text[], :own_leases::interval[])
                   as own (fsm, version, step, lease)
             where own.fsm = g.fsm and own.version = g.fsm_version and own.step = g.step), :lease::interval) end,
         leased_at = coalesce(granted.granted_at, (select now from moment)), rate_turn_at = null, concurrency_slot = granted.slot,
         execution = least(g.execution, 2147483646) + 1, updated_at = (select now from moment)
    from granted where g.id = granted.id
  returning granted.position, g.id, g.fsm, g.fsm_version, g.step, g.step_seq, g.attempt, g.state, g.queue, g.execution, g.leased_at,
            date_part('epoch', greatest(g.eligible_at, '1970-01-01 00:00+00')) as due_at,
            case when g.has_signals or g.timed_out or :traced::boolean
                   or num_nonnulls(g.awaits, g.spawn_round, g.parent_id, g.concurrency_key, g.correlation_key, g.max_attempts,
                                   g.fire_time, g.rate_limit, g.traceparent, g.failure, g.compensation, g.checkpoint) > 0
                 then json_build_array(
                        g.awaits, g.timed_out, g.has_signals, coalesce(g.spawn_round = g.step_seq, false), g.parent_id,
                        g.concurrency_key, g.correlation_key, case when g.compensation is null then g.max_attempts end, g.fire_time, g.rate_limit, g.traceparent,
                        case when :traced::boolean then g.inserted_at end, g.failure::text,
                        g.compensation is not null, g.checkpoint::text) end as details
)

-- part: audited
audited as (
  insert into gen_durable.audit_events (instance_id, event, data)
  select leased.id, 'leased', jsonb_build_object(
           'step', leased.step, 'step_seq', leased.step_seq + 1, 'execution', leased.execution, 'attempt', leased.attempt,
           'worker', :worker::text)
    from leased
   where (select s.audit from gen_durable.settings s) = 'all'
)

-- part: needs_admission
needs_admission as (
  select 'needs_admission' as kind, null::bigint as id, null as fsm, null as step, null as queue, null as details
   where exists (select from candidates where candidates.needs_admission)
)

-- part: refused
-- What admission reports about candidates that it did not grant.
refused as (
  select 'denied' as kind, first.id, first.fsm, null as step, null as queue, to_json(first.concurrency_key)::text as details from (
    select distinct on (slotted.concurrency_key) slotted.id, slotted.fsm, slotted.concurrency_key
      from slotted where not slotted.has_slot
     order by slotted.concurrency_key, slotted.position) first
  union all
  select 'throttled', null, min(admitted.fsm), min(admitted.step), admitted.queue, json_build_array(
           admitted.rate_limit, count(*),
           case when bool_and(token_grants.is_known) then count(token_grants.granted_at) end)::text
    from token_grants join admitted on admitted.id = token_grants.id
   group by admitted.rate_limit, admitted.queue having count(*) > count(token_grants.granted_at)
  union all
  select 'awaiting_capacity', null, null, null, null, null from awaiting_capacity where awaiting_capacity.position is not null
)

-- part: result
-- The caller sorts by position: UPDATE returns rows in no particular order.
select 'leased' as kind, leased.position, leased.id, leased.fsm, leased.fsm_version, leased.step, leased.step_seq, leased.attempt,
       leased.state::text as state, leased.queue, leased.execution, leased.leased_at, leased.due_at, leased.details::text as details
  from leased
union all
select notices.kind, null, notices.id, notices.fsm, null, notices.step, null, null, null, notices.queue, null, null, null, notices.details
  from notices

-- name: undo_starts
-- Of leased rows, those whose undo a cancel by a client has started, if this is their first execution since; `step` is where the
-- cancel met them. The record of that transition has no worker. Called only for rows at undo steps.
select e.instance_id as id, e.step from unnest(:ids::bigint[], :step_seqs::bigint[], :numbers::int[]) as leased (id, step_seq, number)
  join gen_durable.executions e
    on e.instance_id = leased.id and e.step_seq = leased.step_seq and e.status = 'DONE' and e.execution = leased.number - 1
 where e.outcome = 'undo' and e.lease_owner is null

-- name: inboxes
-- The unread signals of leased rows, oldest first. Called only for rows with has_signals. Payloads of awaited signals are
-- included; other payloads only if those of an instance have at most :budget bytes together. Larger ones are not read. timed_out
-- is read again: a signal that was delivered after the pick may have reset it in the same transaction.
select unread.target_id, unread.id, unread.name, unread.inserted_at, unread.traceparent, unread.size, unread.timed_out,
       case when unread.is_awaited or unread.others <= :budget::bigint then unread.payload::text end as payload
  from (select s.*, g.timed_out, awaited.is_so as is_awaited,
               sum(s.size) filter (where not awaited.is_so) over (partition by s.target_id) as others
          from gen_durable.signals s
          join gen_durable.gen_durable g on g.id = s.target_id
         cross join lateral (select coalesce(s.name = any (g.awaits), false) as is_so) awaited
         where s.target_id = any (:ids::bigint[]) and s.consumed_seq is null) unread
 order by unread.target_id, unread.id

-- name: signal_content
-- Payloads of unread signals of one instance, when a step asks for them.
select s.id, s.payload::text as payload from gen_durable.signals s
 where s.target_id = :id::bigint and s.id = any (:ids::bigint[]) and s.consumed_seq is null

-- name: children
-- The children of the last spawn of leased rows, in the order of their specs. Called only for rows released by a barrier. States
-- and results are included if those of one parent have at most :budget bytes together. First their stored size is summed, so
-- large ones are not read; then their size as text, because stored values may be compressed.
with children as materialized (
  select c.parent_id, c.id, c.fsm, c.fsm_version, c.status::text as status, c.last_error, c.state, c.result, stored.size,
         sum(stored.size + coalesce(octet_length(c.last_error), 0)) over (partition by c.parent_id) as total
    from unnest(:ids::bigint[], :rounds::bigint[]) as parent (id, round)
    join gen_durable.gen_durable c on c.parent_id = parent.id and c.parent_round = parent.round
   cross join lateral (select pg_column_size(c.state) + coalesce(pg_column_size(c.result), 0) as size) stored
), within_budget as materialized (
  select children.parent_id, children.id, children.fsm, children.fsm_version, children.status, children.last_error, children.size,
         case when children.total <= :budget::bigint then children.state::text end as state,
         case when children.total <= :budget::bigint then children.result::text end as result
    from children
), measured as (
  select within_budget.*,
         sum(octet_length(within_budget.state) + coalesce(octet_length(within_budget.result), 0))
           over (partition by within_budget.parent_id) <= :budget::bigint as fits
    from within_budget
)
select measured.parent_id, measured.id, measured.fsm, measured.fsm_version, measured.status, measured.size,
       case when measured.fits then measured.state end as state, case when measured.fits then measured.result end as result,
       case when measured.fits then measured.last_error else left(measured.last_error, 1000) end as last_error
  from measured order by measured.parent_id, measured.id

-- name: child_content
-- States and results of children of one instance, with their current status, when a step asks for them.
select c.id, c.status::text as status, c.state::text as state, c.result::text as result
  from gen_durable.gen_durable c
 where c.id = any (:ids::bigint[]) and c.parent_id = :id::bigint
