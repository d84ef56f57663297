-- Leasing: which rows run next, what they need to run, and how the rows of a busy key get out of the way.

-- name: pick
-- Lease up to :demand due rows of one queue: the lowest priority first, then the longest due. One statement, and an empty
-- queue costs only its first index probe. Nothing waits: rows that somebody holds are skipped. A paused queue is empty.
--   * Priorities are walked by a skip scan, so a million future rows on an urgent priority cost one probe.
--   * Literal limits inside and :demand outside: a bare parameter is planned as a tenth of the table. Rows are pulled, and
--     so locked, one by one; no more than :demand of them.
--   * `nullif(…) is not null` lets the planner think that nearly every row is of our machines, and so that the first 1000 in the
--     order of the index are enough. Said plainly it is a join, by which they are taken for rare where there are many types, and
--     then everything that is due is read and sorted.
--   * A row with a deleted_at is never leased, even if it is runnable because nothing has ended it yet (end_deleted).
--   * A keyed row is admitted only if nobody holds the key and no due row of the key stands before it, gated or locked by
--     another picker or not. Two pickers can still choose two rows of one key when a more urgent row was committed
--     between their snapshots; the unique index on the slot refuses the second, and its pick is run again.
-- The time that a row is due since comes back as a number: a timestamp may lie where no driver can follow.
-- A denied row comes back without lease_token: once per key, so that its key can be gated; once per bucket, so that its rows
-- can be put off; and once if a row needs a free slot before it can have its tokens. An empty row says that others' machines
-- crowd the head of the queue: then pick_by_machine is cheaper.
{priorities}
), candidate as materialized (
  select * from (
    select due.* from priority cross join lateral (
      select g.id, g.fsm, g.step, g.priority, g.eligible_at, g.concurrency_key, g.rate_limit, g.weight, g.rate_turn_at, g.queue
        from gen_durable.gen_durable g
       where g.status = 'runnable' and not g.gated and g.queue = :queue and g.priority = priority.value
         and g.eligible_at <= (select now from moment) and g.deleted_at is null
         and nullif((g.fsm, g.fsm_version) in (select * from unnest(:fsms::text[], :versions::int[])), false) is not null
       order by g.eligible_at, g.id limit 1000
         for no key update skip locked) due
     limit 1000) first
  limit :demand::int
{crowd}
{leasing}
{crowded}

-- name: pick_by_machine
-- The same rows in the same order, when the queue is crowded by machines that are not registered here: they are not even looked
-- at. It costs more than `pick` in an orderly queue, and grows with the number of machines; it says when the crowd is gone.
{priorities}
), line as (
  select machine.fsm, :queue as queue, machine.version, first.priority, first.eligible_at, first.id
    from unnest(:fsms::text[], :versions::int[]) as machine (fsm, version) cross join lateral (
      select g.priority, g.eligible_at, g.id from gen_durable.gen_durable g
       where g.status = 'runnable' and not g.gated
         and g.fsm collate "C" = machine.fsm and g.queue = :queue and g.fsm_version = machine.version
       order by g.priority, g.eligible_at, g.id limit 1) first
   where exists (select from priority)                    -- a paused queue is empty
  union all
  select line.fsm, line.queue, line.version, next.priority, next.eligible_at, next.id from line cross join lateral (
    select g.priority, g.eligible_at, g.id from gen_durable.gen_durable g
     where g.status = 'runnable' and not g.gated
       and g.fsm collate "C" = line.fsm and g.queue = line.queue and g.fsm_version = line.version and g.priority > line.priority
     order by g.priority, g.eligible_at, g.id limit 1) next
{merging}
{crowd}
{leasing}
{crowded}

-- name: pick_by_prefix
-- The same for every machine whose name lies in [:low, :high), whatever its queue: the lowest priority first, then the longest
-- due, over all types together. What it costs grows with the number of types and with :reach, not with the number of rows.
-- Null :fsms: known here or not, the namespace is ours. The lines of paused queues lead nowhere.
with recursive moment as materialized (
  select statement_timestamp() as now
), walk as (
  (select g.fsm, g.queue, g.fsm_version as version, g.priority, g.eligible_at, g.id from gen_durable.gen_durable g
    where g.status = 'runnable' and not g.gated and g.fsm collate "C" >= :low::text and g.fsm collate "C" < :high::text
    order by g.fsm collate "C", g.queue, g.fsm_version, g.priority, g.eligible_at, g.id limit 1)
  union all
  select next.* from walk cross join lateral (
    select g.fsm, g.queue, g.fsm_version, g.priority, g.eligible_at, g.id from gen_durable.gen_durable g
     where g.status = 'runnable' and not g.gated and g.fsm collate "C" < :high::text
       and (g.fsm collate "C", g.queue, g.fsm_version, g.priority) > (walk.fsm collate "C", walk.queue, walk.version, walk.priority)
     order by g.fsm collate "C", g.queue, g.fsm_version, g.priority, g.eligible_at, g.id limit 1) next
), line as (
  select * from walk
   where (:fsms::text[] is null or (walk.fsm, walk.version) in (select * from unnest(:fsms::text[], :versions::int[])))
     and walk.queue <> all (array(select q.name from gen_durable.queues q where q.is_paused))
{merging}
{leasing}

-- part: priorities
-- The priorities of the queue, and the first row of each: a skip scan. The look at the head of the queue begins at that row, so
-- that it does not pass by what has left the head and is in the index until that is vacuumed. The candidates do: with a second
-- bound they are planned as few, and read whole and sorted.
with recursive moment as materialized (
  select statement_timestamp() as now
), priority as (
  (select g.priority as value, g.eligible_at as since, g.id as first from gen_durable.gen_durable g
    where g.status = 'runnable' and not g.gated and g.queue = :queue
      and not exists (select from gen_durable.queues q where q.name = :queue and q.is_paused)
    order by g.priority, g.eligible_at, g.id limit 1)
  union all
  select next.* from priority cross join lateral (
    select g.priority, g.eligible_at, g.id from gen_durable.gen_durable g
     where g.status = 'runnable' and not g.gated and g.queue = :queue and g.priority > priority.value
     order by g.priority, g.eligible_at, g.id limit 1) next

-- part: merging
-- The first rows of many lines. A line is the due rows of one machine, version, queue and priority, in the order of their time.
--   line     those that there are, with the first row of each: a skip scan.
--   head     the lines that matter: of the first :reach rows, none is in a line that begins behind the :reach-th of these.
--   sample   some rows of each, of every priority twice :reach in all; where they put the :reach-th, everything behind it is
--            out of the question (bound). Without that, a hundred types would be read :reach deep each.
--   chosen   the first :reach rows. They are locked one by one in this order, no more of them than :demand; :reach is larger,
--            because some may be locked by others.
), head as materialized (
  select first.*, count(*) over (partition by first.priority) as lines from (
    select line.fsm, line.queue, line.version, line.priority from line where line.eligible_at <= (select now from moment)
     order by line.priority, line.eligible_at, line.id limit :reach::int) first
), sample as (
  select due.* from head cross join lateral (
    select * from (
      select g.priority, g.eligible_at, g.id from gen_durable.gen_durable g
       where g.status = 'runnable' and not g.gated
         and g.fsm collate "C" = head.fsm and g.queue = head.queue and g.fsm_version = head.version
         and g.priority = head.priority and g.eligible_at <= (select now from moment)
       order by g.eligible_at, g.id limit 1000) first
    limit 2 * :reach::int / head.lines + 1) due
   where head.lines > 1
), bound as materialized (
  select sample.priority, sample.eligible_at from sample
   order by sample.priority, sample.eligible_at, sample.id offset :reach::int - 1 limit 1
), chosen as materialized (
  select due.* from head cross join lateral (
    select * from (
      select g.id, g.priority, g.eligible_at from gen_durable.gen_durable g
       where g.status = 'runnable' and not g.gated
         and g.fsm collate "C" = head.fsm and g.queue = head.queue and g.fsm_version = head.version
         and g.priority = head.priority
         and g.eligible_at <= coalesce((select case when bound.priority = head.priority then bound.eligible_at end from bound),
                                       (select now from moment))
       order by g.eligible_at, g.id limit 1000) first
    limit :reach::int) due
   where not exists (select from bound where head.priority > bound.priority)
   order by due.priority, due.eligible_at, due.id limit :reach::int
), candidate as materialized (
  select * from (
    select free.* from chosen cross join lateral (
      select g.id, g.fsm, g.step, g.priority, g.eligible_at, g.concurrency_key, g.rate_limit, g.weight, g.rate_turn_at, g.queue
        from gen_durable.gen_durable g
       where g.id = chosen.id and g.status = 'runnable' and not g.gated and g.eligible_at <= (select now from moment)
         and g.deleted_at is null
         for no key update skip locked) free
    limit 1000) first
  limit :demand::int

-- part: crowd
-- Whether rows of machines that are not registered here stand at the head of the queue, and in number.
), crowd as (
  select from (
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

-- part: crowded
union all
select null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null,
       null, null, null, null, null, null
  from crowd

-- part: leasing
-- What both picks do with their candidates. Of those with a concurrency key:
--   room      their keys: how many slots are free, and the last of its rows here. A limit that was lowered lets the surplus
--             of executions end: they count, whatever their slots.
--   standing  the first rows of each line, as many as there is room, up to that last one; gated or held by others or not.
--   vacant    the free slots of each: of as many as are held and wanted together, enough are free.
--   placed    the n-th of the rows has the n-th of the slots.
-- Of those with a rate limit, when there are any: take_tokens() takes the tokens of a prefix of each bucket's rows, if they are there,
-- under the lock of the bucket; an execution is leased at the moment of that. Tokens are for starts, so nobody who needs some
-- is leased ahead of a slot: where the first of these is behind :room others, the pick ends before it (held_back).
), room as materialized (
  select last.*, least(greatest(slots.count - held.count, 0), 32767) as free, held.count as held
    from (select distinct on (candidate.concurrency_key) candidate.concurrency_key as key, candidate.priority,
                 candidate.eligible_at, candidate.id
            from candidate where candidate.concurrency_key is not null
           order by candidate.concurrency_key, candidate.priority desc, candidate.eligible_at desc, candidate.id desc) last
   cross join lateral (
     select coalesce((select l.slots from gen_durable.limits l
                       where l.kind = 'concurrency' and l.name = split_part(last.key, ':', 1)), 1) as count) slots
   cross join lateral (
     select count(*)::int as count from gen_durable.gen_durable holder
      where holder.concurrency_key = last.key and holder.concurrency_slot is not null) held
), standing as materialized (
  select room.key, room.held, line.id,
         row_number() over (partition by room.key order by line.priority, line.eligible_at, line.id) as place
    from room cross join lateral (
      select * from (
        select g.id, g.priority, g.eligible_at from gen_durable.gen_durable g
         where g.status = 'runnable' and g.concurrency_key = room.key and g.eligible_at <= (select now from moment)
           and (g.priority, g.eligible_at, g.id) <= (room.priority, room.eligible_at, room.id)
         order by g.priority, g.eligible_at, g.id limit 32767) first
      limit room.free) line
), vacant as materialized (
  select wanted.key, array(
           select series.number from generate_series(0, wanted.count - 1) as series (number)
            where (select true from gen_durable.gen_durable holder
                    where holder.concurrency_key = wanted.key and holder.concurrency_slot = series.number limit 1) is null
            order by series.number) as numbers
    from (select standing.key, max(standing.held) + count(*)::int as count from standing group by standing.key) wanted
), placed as materialized (
  select standing.id, vacant.numbers[standing.place] as number from standing join vacant on vacant.key = standing.key
), fit as materialized (
  select candidate.*, placed.number as slot, candidate.concurrency_key is null or placed.id is not null as is_fit
    from candidate left join placed on placed.id = candidate.id
), held_back as materialized (
  select first.priority, first.eligible_at, first.id from (
    select fit.*, row_number() over (order by fit.priority, fit.eligible_at, fit.id) as place
      from fit where fit.is_fit and :demand::int > :room::int) first
   where first.rate_limit is not null and first.place > :room::int
   order by first.place limit 1
), admitted as materialized (
  select fit.*, fit.is_fit and coalesce(
           (fit.priority, fit.eligible_at, fit.id) < (select first.priority, first.eligible_at, first.id from held_back first), true)
         as is_admitted
    from fit
), spent as materialized (
  select bill.ids[answer.ord] as id, answer.granted_at, answer.is_known
    from (select array_agg(admitted.id order by admitted.priority, admitted.eligible_at, admitted.id) as ids,
                 array_agg(admitted.rate_limit order by admitted.priority, admitted.eligible_at, admitted.id) as keys,
                 array_agg(admitted.weight order by admitted.priority, admitted.eligible_at, admitted.id) as weights,
                 array_agg(admitted.rate_turn_at order by admitted.priority, admitted.eligible_at, admitted.id) as rate_turns
            from admitted where admitted.is_admitted and admitted.rate_limit is not null having count(*) > 0) bill
   cross join lateral gen_durable.take_tokens(bill.keys, bill.weights, bill.rate_turns) as answer
), leased as (
  update gen_durable.gen_durable g
     set status = 'executing', lease_token = :lease_token::bigint, locked_by = :worker::text,
         lease_expires_at = (select now from moment) + coalesce(
           (select own.lease from unnest(:own_fsms::text[], :own_versions::int[], :own_steps::text[], :own_leases::interval[])
                   as own (fsm, version, step, lease)
             where own.fsm = g.fsm and own.version = g.fsm_version and own.step = g.step), :lease::interval),
         leased_at = coalesce(admitted.granted_at, (select now from moment)), rate_turn_at = null,
         concurrency_slot = admitted.slot,
         execution = least(g.execution, 2147483646) + 1, updated_at = (select now from moment)
    from (select admitted.*, spent.granted_at from admitted left join spent on spent.id = admitted.id) admitted
   where g.id = admitted.id and admitted.is_admitted and (admitted.rate_limit is null or admitted.granted_at is not null)
  returning g.id, g.lease_token, g.fsm, g.fsm_version, g.step, g.step_seq, g.attempt, g.state::text as state,
            g.awaits, g.timed_out, g.has_signals, coalesce(g.spawn_round = g.step_seq, false) as has_children,
            g.parent_id, g.concurrency_key, g.correlation_key, g.queue, g.priority,
            extract(epoch from g.eligible_at)::float8 as due, g.leased_at, g.max_attempts, g.fire_time, g.execution, g.traceparent,
            g.inserted_at, g.rate_limit, null::int as wanted, null::int as granted
), noted as (
  insert into gen_durable.audit_events (instance_id, event, data)
  select leased.id, 'leased', jsonb_build_object(
           'step', leased.step, 'step_seq', leased.step_seq + 1, 'execution', leased.execution, 'attempt', leased.attempt,
           'worker', :worker::text)
    from leased
   where (select s.audit from gen_durable.settings s) = 'all'
)
select * from leased
union all
select * from (
  select distinct on (admitted.concurrency_key) admitted.id, null::bigint, admitted.fsm, null::int, null, null::bigint,
         null::int, null, null::text[], null::boolean, null::boolean, null::boolean, null::bigint,
         admitted.concurrency_key, null, null, admitted.priority, null::float8, null::timestamptz, null::int,
         null::timestamptz, null::int, null, null::timestamptz, null, null::int, null::int
    from admitted where not admitted.is_fit
   order by admitted.concurrency_key, admitted.priority, admitted.eligible_at, admitted.id) denied
union all
select min(admitted.id), null, min(admitted.fsm), null, min(admitted.step), null, null, null, null, null,
       null, null, null, null, null, admitted.queue, null, null, null, null, null, null, null, null, admitted.rate_limit,
       count(*)::int, case when bool_and(spent.is_known) then count(spent.granted_at)::int end
  from spent join admitted on admitted.id = spent.id
 group by admitted.rate_limit, admitted.queue having count(*) > count(spent.granted_at)
union all
select held_back.id, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null,
       null, null, null, null, null, null, null
  from held_back

-- name: inboxes
-- The unread signals of leased rows, oldest first. Only for rows that ever had one. Payloads of awaited signals come along, and
-- those of all others of an instance if they have at most :budget bytes together; no other payload is read. With whether the last
-- await has timed out: a signal that was delivered after the pick, and is seen here, may have changed that in its transaction.
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
-- Payloads of unread signals of one instance, on demand.
select s.id, s.payload::text as payload from gen_durable.signals s
 where s.target_id = :id::bigint and s.id = any (:ids::bigint[]) and s.consumed_seq is null

-- name: children
-- The children of the last spawn of leased rows, in the order of their specs. Only for rows that a barrier released. States and
-- results come along if those of one parent have at most :budget bytes together. They are added up as they are stored first, so
-- that large ones are not even read; then as text, because small ones may be compressed.
with child as materialized (
  select c.parent_id, c.id, c.fsm, c.fsm_version, c.status::text as status, c.last_error, c.state, c.result, stored.size,
         sum(stored.size + coalesce(octet_length(c.last_error), 0)) over (partition by c.parent_id) as total
    from unnest(:ids::bigint[], :rounds::bigint[]) as parent (id, round)
    join gen_durable.gen_durable c on c.parent_id = parent.id and c.parent_round = parent.round
   cross join lateral (select pg_column_size(c.state) + coalesce(pg_column_size(c.result), 0) as size) stored
), shown as materialized (
  select child.parent_id, child.id, child.fsm, child.fsm_version, child.status, child.last_error, child.size,
         case when child.total <= :budget::bigint then child.state::text end as state,
         case when child.total <= :budget::bigint then child.result::text end as result
    from child
), measured as (
  select shown.*, sum(octet_length(shown.state) + coalesce(octet_length(shown.result), 0)) over (partition by shown.parent_id)
                  <= :budget::bigint as fits
    from shown
)
select measured.parent_id, measured.id, measured.fsm, measured.fsm_version, measured.status, measured.size,
       case when measured.fits then measured.state end as state, case when measured.fits then measured.result end as result,
       case when measured.fits then measured.last_error else left(measured.last_error, 1000) end as last_error
  from measured order by measured.parent_id, measured.id

-- name: child_content
-- States and results of children of one instance, on demand, with the status that they have now.
select c.id, c.status::text as status, c.state::text as state, c.result::text as result
  from gen_durable.gen_durable c
 where c.id = any (:ids::bigint[]) and c.parent_id = :id::bigint
