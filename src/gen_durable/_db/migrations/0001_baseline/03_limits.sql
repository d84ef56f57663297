-- Limits: executions at once per concurrency key, and starts per time per bucket. Every pick reads them, so a change applies from
-- the next pick on. A key or bucket "name:partition" has the limit of its name.

create table gen_durable.limits (
  name       text not null check (octet_length(name) between 1 and 255 and strpos(name, ':') = 0),
  kind       text not null check (kind in ('concurrency', 'rate')),
  slots      int check (slots between 1 and 32767),       -- concurrent executions per key
  allowed    int check (allowed > 0),                     -- tokens per period and bucket
  period     interval check (period >= '1 ms' and period <= '3650 days'),
  burst      int check (burst > 0),                       -- tokens of a full bucket
  updated_at timestamptz not null default statement_timestamp(),
  primary key (kind, name),
  constraint columns_match_kind check (
    case kind when 'concurrency' then slots is not null and allowed is null and period is null and burst is null
              else slots is null and allowed is not null and period is not null and burst is not null end),
  -- Keeps refill times within the range of timestamptz.
  constraint fills_within_a_century check (burst::numeric * extract(epoch from period) <= allowed::numeric * 3153600000)
);

-- Token buckets. The fill level is stored as the time at which the bucket is full again. A bucket without a row is full, so the
-- collector deletes full ones. A transaction that reads a bucket to change it locks it first.
create table gen_durable.buckets (
  key     text primary key,
  full_at timestamptz not null default '-infinity'
) with (fillfactor = 50);

-- Groups of rows that no live worker can start, because their queue is paused or no worker knows their machine. The reaper writes
-- it (mark_unserved). A row with served_at explains gated rows of a key that are next again, see stuck_keys.
create table gen_durable.unserved (
  fsm         text not null,
  fsm_version int not null,
  queue       text not null,
  since       timestamptz not null default statement_timestamp(),
  served_at   timestamptz,                                -- when the mark ended
  primary key (fsm, fsm_version, queue)
);

-- The groups whose rows are passed over in the order of their concurrency keys, so that they do not block their keys forever. The
-- minute covers restarts of workers.
create view gen_durable.passed_over as
select u.fsm, u.fsm_version, u.queue from gen_durable.unserved u
 where u.served_at is null and u.since <= statement_timestamp() - interval '1 minute';

-- Raise if a weight exceeds the burst or, with must_exist, if a limit does not exist. Outcomes may name a limit that does not
-- exist yet: their rows stall until it is created, see defer_throttled.
create function gen_durable.check_limits(keys text[], weights int[], must_exist boolean) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  bad record;
begin
  select given.ord, given.key, given.weight, split_part(given.key, ':', 1) as name, l.burst into bad
    from unnest(keys, weights) with ordinality as given (key, weight, ord)
    left join gen_durable.limits l on l.kind = 'rate' and l.name = split_part(given.key, ':', 1)
   where given.key is not null and (must_exist and l.name is null or coalesce(given.weight, 1) > l.burst)
   order by given.ord limit 1;
  if found then
    raise exception '%', case when bad.burst is null then format('there is no rate limit %L', bad.name)
                              else format('a weight of %s is more than the burst of rate limit %L, %s',
                                          bad.weight, bad.name, bad.burst) end
      using errcode = '22GD5',
            detail = json_build_object('ord', bad.ord, 'name', bad.name, 'weight', coalesce(bad.weight, 1), 'burst', bad.burst)::text,
            hint = case when bad.burst is null then 'set it first: select gen_durable.set_rate_limit(...)'
                        else 'give less weight, or raise the burst' end;
  end if;
end $$;

-- The time in which this number of tokens arrives, rounded up to the microsecond so that no token comes too early, and capped
-- at about three centuries to stay within the range of timestamptz.
create function gen_durable.refill(tokens numeric, allowed int, period interval) returns interval
language sql immutable
return make_interval(secs => least(ceil(tokens * extract(epoch from period) * 1000000 / allowed) / 1000000, 10000000000)::float8);

-- Take the tokens of these rows, called by a pick in its transaction. Grants a prefix of the rows of each bucket; granted_at
-- null: not granted. A row without a turn is granted only if no row of the bucket has one: new rows do not overtake deferred
-- ones. A row that weighs more than a burst which was lowered later counts as a full bucket.
-- Locks: the buckets, ordered by key, so picks that need the same buckets do not deadlock.
create function gen_durable.take_tokens(keys text[], weights int[], rate_turns timestamptz[])
returns table (ord bigint, granted_at timestamptz, is_known boolean)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  moment timestamptz;
begin
  -- Insert or lock in one statement, so that the collector cannot delete the bucket in between. "where false": lock, do not
  -- write.
  insert into gen_durable.buckets as b (key)
  select distinct given.key from unnest(keys) as given (key)
   where exists (select from gen_durable.limits l where l.kind = 'rate' and l.name = split_part(given.key, ':', 1))
   order by given.key
      on conflict (key) do update set full_at = b.full_at where false;
  moment := clock_timestamp();                            -- read under the locks: no bucket was charged later
  return query
    with bucket as materialized (
      select b.key, greatest(b.full_at, moment) as full_at, l.allowed, l.period, l.burst,
             moment + gen_durable.refill(l.burst, l.allowed, l.period) as limit_at,
             exists (select from gen_durable.gen_durable g
                      where g.status = 'runnable' and g.rate_turn_at is not null and g.rate_limit = b.key) as has_deferred
        from gen_durable.buckets b join gen_durable.limits l on l.kind = 'rate' and l.name = split_part(b.key, ':', 1)
       where b.key = any (keys)
    ), charges as materialized (
      select given.ord, bucket.key, bucket.full_at, bucket.limit_at, bucket.allowed, bucket.period,
             sum(least(coalesce(given.weight, 1), bucket.burst)) over (partition by bucket.key order by given.ord) as tokens
        from unnest(keys, weights, rate_turns) with ordinality as given (key, weight, rate_turn_at, ord)
        join bucket on bucket.key = given.key
       where given.rate_turn_at is not null or not bucket.has_deferred
    ), granted as materialized (
      select c.ord, c.key, c.full_at + gen_durable.refill(c.tokens, c.allowed, c.period) as full_at
        from charges c where c.full_at + gen_durable.refill(c.tokens, c.allowed, c.period) <= c.limit_at
    ), charged as (
      update gen_durable.buckets b set full_at = last.full_at
        from (select granted.key, max(granted.full_at) as full_at from granted group by granted.key) last
       where b.key = last.key
    )
    select given.ord, case when granted.ord is not null then moment end,
           exists (select from gen_durable.limits l where l.kind = 'rate' and l.name = split_part(given.key, ':', 1))
      from unnest(keys) with ordinality as given (key, ord) left join granted on granted.ord = given.ord;
end $$;

-- Give back the tokens of executions whose step does not start. Called by their commit, in its transaction, before it locks rows.
-- In the time since the pick, the bucket may have been full, and would then have lost the tokens that arrived. They are not given
-- back, so the bucket never grants more than burst and rate allow. Nothing is given back if the limit has changed since the pick.
-- Guard: lease token and step_seq: an execution gives back its tokens once, and not those of a later execution.
-- Locks: the buckets, ordered by key.
create function gen_durable.return_tokens(ids bigint[], lease_tokens bigint[], step_seqs bigint[]) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  keys text[] := array(select g.rate_limit from unnest(ids, lease_tokens, step_seqs) as held (id, lease_token, step_seq)
                         join gen_durable.gen_durable g
                           on g.id = held.id and g.lease_token = held.lease_token and g.step_seq = held.step_seq);
begin
  perform from gen_durable.buckets b where b.key = any (keys) order by b.key for no key update;
  update gen_durable.buckets b set full_at = b.full_at - given.time
    from (select g.rate_limit as key,
                 gen_durable.refill(sum(least(coalesce(g.weight, 1), l.burst)), l.allowed, l.period)
                 - (clock_timestamp() - min(g.leased_at)) as time
            from unnest(ids, lease_tokens, step_seqs) as held (id, lease_token, step_seq)
            join gen_durable.gen_durable g
              on g.id = held.id and g.lease_token = held.lease_token and g.step_seq = held.step_seq
            join gen_durable.limits l
              on l.kind = 'rate' and l.name = split_part(g.rate_limit, ':', 1) and l.updated_at <= g.leased_at
           where g.rate_limit = any (keys)
           group by g.rate_limit, l.allowed, l.period) given
   where b.key = given.key and given.time > interval '0';
end $$;

-- Return the next gated rows of these keys to the pick index: as many as slots are free and not already covered by ungated due
-- rows. Rows that no worker can start (passed_over) neither cover a slot nor are next. Returns the queues that have
-- work now. A later statement of every transaction that frees a slot.
-- Locks: ungated rows that cover a slot, ids descending, SKIP LOCKED, so that they cannot leave unseen (a locked row does not
-- cover a slot); then the next gated rows, in the order of the key. Gated rows are waited for: skipping one could leave a key
-- with free slots and only gated rows.
create function gen_durable.ungate(keys text[]) returns setof text
language sql set search_path = pg_catalog, pg_temp as $$
  with free_keys as materialized (
    select free_keys.key, least(slots.count - held.count, 32767) as free
      from (select distinct key from unnest(keys) as given (key)
             where (select true from gen_durable.gen_durable g
                     where g.status = 'runnable' and g.gated and g.concurrency_key = given.key limit 1)) free_keys
     cross join lateral (
       select coalesce((select l.slots from gen_durable.limits l
                         where l.kind = 'concurrency' and l.name = split_part(free_keys.key, ':', 1)), 1) as count) slots
     cross join lateral (
       select count(*) as count from gen_durable.gen_durable holder
        where holder.concurrency_key = free_keys.key and holder.concurrency_slot is not null) held
     where slots.count > held.count
     order by free_keys.key
  ), key_heads as materialized (
    select row.id from free_keys cross join lateral (
      select * from (
        select g.id, g.gated from gen_durable.gen_durable g
         where g.status = 'runnable' and g.concurrency_key = free_keys.key and g.eligible_at <= statement_timestamp()
           and (g.fsm, g.fsm_version, g.queue) not in (select p.fsm, p.fsm_version, p.queue from gen_durable.passed_over p)
         order by g.priority, g.eligible_at, g.id limit 32767) due
      limit free_keys.free) row
     where not row.gated
  ), ungated as materialized (
    select g.id, g.concurrency_key as key from key_heads join gen_durable.gen_durable g on g.id = key_heads.id
     where g.status = 'runnable' and not g.gated
     order by g.id desc for no key update of g skip locked
  ), next_gated as materialized (
    select row.id from free_keys cross join lateral (
      select * from (
        select g.id from gen_durable.gen_durable g
         where g.status = 'runnable' and g.gated and g.concurrency_key = free_keys.key
           and (g.fsm, g.fsm_version, g.queue) not in (select p.fsm, p.fsm_version, p.queue from gen_durable.passed_over p)
         order by g.priority, g.eligible_at, g.id limit 32767
           for no key update) gated
      limit free_keys.free - (select count(*) from ungated where ungated.key = free_keys.key)) row
  )
  update gen_durable.gen_durable g set gated = false
    from next_gated where g.id = next_gated.id
  returning g.queue
$$;

-- Defer the due rows of exhausted buckets to their turns (rate_turn_at), at most 1000 of a bucket and queue, and stop at 1000 in
-- all; returns the number of each. Deferred rows leave the head of their queue, and a pick finds each when its tokens are there.
-- Rows that missed their turn keep their position; rows without a turn are appended.
-- Rows whose limit does not exist stall. apply_limit makes them due when it creates the limit: it either waits for the lock that
-- is taken here and sees the rows, or holds the lock already, and then the rows are due again in a second. In addition, one row
-- of each call is due every 30 s, for telemetry, and the others once a day: a million stalled rows cost a pick nothing.
-- Locks: limits (ROW SHARE, only for stalling, NOWAIT); buckets by key; rows, SKIP LOCKED; then ungate.
--   keys, queues     the buckets, and the queues of their rows
--   fsms, versions   only rows of these machines; null: of all
create function gen_durable.defer_throttled(keys text[], queues text[], fsms text[], versions int[])
returns table (key text, count int)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  one              record;
  bucket           record;
  keys_of_deferred text[];
  last             record;
  stalled          interval := '1 second';
  total            int := 0;
begin
  if exists (select from unnest(keys) as given (key)
              where not exists (select from gen_durable.limits l
                                 where l.kind = 'rate' and l.name = split_part(given.key, ':', 1))) then
    begin
      lock table gen_durable.limits in row share mode nowait;
      stalled := '1 day';
    exception when lock_not_available then null;
    end;
  end if;
  for one in
    select distinct given.key, given.queue from unnest(keys, queues) as given (key, queue) order by given.key, given.queue
  loop
    insert into gen_durable.buckets as b (key)
    select one.key
     where exists (select from gen_durable.limits l where l.kind = 'rate' and l.name = split_part(one.key, ':', 1))
        on conflict (key) do update set full_at = b.full_at where false;
    -- Read under the lock of the bucket. A change of the limit takes it too: it is either visible here, or it sees the turns.
    select clock_timestamp() as moment, greatest(b.full_at, clock_timestamp()) as full_at, l.allowed, l.period, l.burst into bucket
      from gen_durable.limits l join gen_durable.buckets b on b.key = one.key
     where l.kind = 'rate' and l.name = split_part(one.key, ':', 1);
    select g.rate_turn_at, g.eligible_at into last from gen_durable.gen_durable g
     where bucket.allowed is not null
       and g.status = 'runnable' and g.rate_turn_at is not null and g.rate_limit = one.key and g.queue = one.queue
     order by g.rate_turn_at desc limit 1;
    with due as materialized (
      select g.id, g.priority, g.eligible_at, g.rate_turn_at, least(coalesce(g.weight, 1), bucket.burst) as weight
        from gen_durable.gen_durable g
       where g.status = 'runnable' and not g.gated and g.rate_limit = one.key and g.queue = one.queue
         and g.eligible_at <= statement_timestamp()
         and (fsms is null or (g.fsm, g.fsm_version) in (select * from unnest(fsms, versions)))
       order by g.priority, g.eligible_at, g.id limit 1000
         for no key update skip locked
    ), timetable as (
      -- Rows of the queue with a turn up to the last of the due rows; the tokens of all rows before a row are summed.
      select g.id, sum(least(coalesce(g.weight, 1), bucket.burst)) over (order by g.rate_turn_at, g.id) as tokens
        from gen_durable.gen_durable g
       where g.status = 'runnable' and g.rate_turn_at is not null and g.rate_limit = one.key and g.queue = one.queue
         and g.rate_turn_at <= (select max(due.rate_turn_at) from due)
    ), without_turn as (
      select due.id, sum(due.weight) over (order by due.priority, due.eligible_at, due.id) as tokens,
             row_number() over (order by due.priority, due.eligible_at, due.id) as position
        from due where due.rate_turn_at is null
    ), assigned as (
      select due.id, due.rate_turn_at, null::bigint as position, bucket.full_at
             + gen_durable.refill(timetable.tokens, bucket.allowed, bucket.period)
             - gen_durable.refill(bucket.burst, bucket.allowed, bucket.period) as start_at
        from due join timetable on timetable.id = due.id
      union all
      select without_turn.id, null, without_turn.position, greatest(
               last.eligible_at + gen_durable.refill(without_turn.tokens, bucket.allowed, bucket.period),
               bucket.full_at
               + gen_durable.refill(without_turn.tokens + coalesce((select max(timetable.tokens) from timetable), 0), bucket.allowed,
                                    bucket.period)
               - gen_durable.refill(bucket.burst, bucket.allowed, bucket.period))
        from without_turn
    ), deferred as (
      update gen_durable.gen_durable g
         set eligible_at = coalesce(greatest(assigned.start_at, bucket.moment), statement_timestamp() + least(
                             stalled, case when g.id = (select due.id from due limit 1) then interval '30 seconds' end)),
             rate_turn_at = coalesce(
               assigned.rate_turn_at,
               greatest(assigned.start_at, bucket.moment, last.rate_turn_at + assigned.position * interval '1 microsecond'),
               statement_timestamp())
        from assigned where g.id = assigned.id
      returning g.id, g.concurrency_key
    )
    select count(*)::int, array_agg(distinct deferred.concurrency_key) filter (where deferred.concurrency_key is not null)
      into count, keys_of_deferred from deferred;
    -- A deferred row is not due, so it does not count for its key: the next gated rows may run.
    if keys_of_deferred is not null then
      perform gen_durable.ungate(keys_of_deferred);
    end if;
    key := one.key;
    return next;
    total := total + count;
    exit when total >= 1000;
  end loop;
end $$;

-- After a change of a limit: ungate the rows of its keys, or make the deferred rows of its buckets due, and cap the refill time
-- of the buckets by the new rate.
create function gen_durable.limit_changed(limit_name text, limit_kind text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if limit_kind = 'concurrency' then
    perform gen_durable.ungate(array(
      with recursive gated_keys as (
        (select g.concurrency_key as key from gen_durable.gen_durable g
          where g.status = 'runnable' and g.gated and g.concurrency_key >= limit_name
          order by g.concurrency_key limit 1)
        union all
        select (select g.concurrency_key from gen_durable.gen_durable g
                 where g.status = 'runnable' and g.gated and g.concurrency_key > gated_keys.key
                 order by g.concurrency_key limit 1)
          from gated_keys where gated_keys.key is not null and starts_with(gated_keys.key, limit_name)
      )
      select gated_keys.key from gated_keys where split_part(gated_keys.key, ':', 1) = limit_name));
  else
    -- A bucket is empty at most, by the new limit.
    perform from gen_durable.buckets b where split_part(b.key, ':', 1) = limit_name order by b.key for no key update;
    update gen_durable.buckets b
       set full_at = least(b.full_at, clock_timestamp() + gen_durable.refill(l.burst, l.allowed, l.period))
      from gen_durable.limits l
     where l.kind = 'rate' and l.name = limit_name and split_part(b.key, ':', 1) = limit_name;
    -- Lock order: ids descending, as in cancel_rows.
    perform from gen_durable.gen_durable g
     where g.status = 'runnable' and g.rate_turn_at is not null and split_part(g.rate_limit, ':', 1) = limit_name
     order by g.id desc for no key update;
    update gen_durable.gen_durable g set eligible_at = statement_timestamp(), rate_turn_at = null
     where g.status = 'runnable' and g.rate_turn_at is not null and split_part(g.rate_limit, ':', 1) = limit_name;
  end if;
end $$;

-- Create or change a limit. Transactions that gate or stall rows hold a ROW SHARE lock on the table, so of the two one comes
-- second and sees what the first wrote.
create function gen_durable.apply_limit(
  limit_name text, limit_kind text, new_slots int, new_allowed int, new_period interval, new_burst int, only_if_new boolean,
  reason text, actor text)
returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
  lock table gen_durable.limits in exclusive mode;
  if only_if_new then
    insert into gen_durable.limits (name, kind, slots, allowed, period, burst)
    values (limit_name, limit_kind, new_slots, new_allowed, new_period, new_burst)
        on conflict do nothing;
  else
    insert into gen_durable.limits (name, kind, slots, allowed, period, burst)
    values (limit_name, limit_kind, new_slots, new_allowed, new_period, new_burst)
        on conflict (kind, name) do update
       set slots = excluded.slots, allowed = excluded.allowed, period = excluded.period, burst = excluded.burst,
           updated_at = statement_timestamp();
  end if;
  if not found then
    return false;
  end if;
  perform gen_durable.audit_action(
    'limit:' || limit_name, 'set', reason, actor,
    jsonb_strip_nulls(jsonb_build_object('kind', limit_kind, 'slots', new_slots, 'allowed', new_allowed, 'period', new_period,
                                         'burst', new_burst)));
  perform gen_durable.limit_changed(limit_name, limit_kind);
  return true;
end $$;

-- set_concurrency_limit('tenant', 3): three concurrent executions of each key "tenant" or "tenant:...", over all workers.
create function gen_durable.set_concurrency_limit(
  name text, slots int, reason text default null, actor text default current_user) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
  select from gen_durable.apply_limit(name, 'concurrency', slots, null, null, null, false, reason, actor)
$$;

-- set_rate_limit('crm', 100, '1 minute'): 100 starts per minute of each bucket "crm" or "crm:...". burst: the tokens of a full
-- bucket; default: allowed.
create function gen_durable.set_rate_limit(
  name text, allowed int, period interval, burst int default null, reason text default null, actor text default current_user)
returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
  select from gen_durable.apply_limit(name, 'rate', null, allowed, period, coalesce(burst, allowed), false, reason, actor)
$$;

-- remove_limit('crm') returns whether the limit existed. Its keys have one slot again; rows with a removed rate limit stall until
-- the limit is created again.
create function gen_durable.remove_limit(
  name text, kind text default null, reason text default null, actor text default current_user) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  gone record;
  any_gone boolean := false;
begin
  lock table gen_durable.limits in exclusive mode;
  for gone in
    delete from gen_durable.limits l where l.name = remove_limit.name and l.kind = coalesce(remove_limit.kind, l.kind) returning l.kind
  loop
    any_gone := true;
    perform gen_durable.audit_action(
      'limit:' || remove_limit.name, 'removed', reason, actor, jsonb_build_object('kind', gone.kind));
    perform gen_durable.limit_changed(remove_limit.name, gone.kind);
  end loop;
  return any_gone;
end $$;

revoke execute on function
  gen_durable.check_limits, gen_durable.refill, gen_durable.take_tokens, gen_durable.return_tokens, gen_durable.ungate, gen_durable.defer_throttled,
  gen_durable.limit_changed, gen_durable.apply_limit, gen_durable.set_concurrency_limit, gen_durable.set_rate_limit,
  gen_durable.remove_limit
  from public;
