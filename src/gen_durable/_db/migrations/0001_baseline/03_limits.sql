-- Limits: how many executions of a concurrency key at once, and how many starts per time. They are rows, read by every pick, so
-- that a change counts from the next pick on. A key "name:partition" has the limit of its name.

create table gen_durable.limits (
  name       text not null check (octet_length(name) between 1 and 255 and strpos(name, ':') = 0),
  kind       text not null check (kind in ('concurrency', 'rate')),
  slots      int check (slots between 1 and 32767),       -- executions at once, of each key
  allowed    int check (allowed > 0),                     -- tokens per period, of each bucket ...
  period     interval check (period >= '1 ms' and period <= '3650 days'),
  burst      int check (burst > 0),                       -- ... and as many at most at one moment
  updated_at timestamptz not null default statement_timestamp(),
  primary key (kind, name),
  constraint one_kind check (case kind when 'concurrency' then slots is not null and allowed is null and period is null and burst is null
                                       else slots is null and allowed is not null and period is not null and burst is not null end),
  -- A bucket that takes longer than a century to fill would lead out of the calendar.
  constraint fills_within_a_century check (burst::numeric * extract(epoch from period) <= allowed::numeric * 3153600000)
);

-- What is left in a bucket, as one moment: when it will have been full again. A bucket without a row is full,
-- so the collector takes those that are. Whoever reads one to write it has it locked.
create table gen_durable.buckets (
  key     text primary key,
  full_at timestamptz not null default '-infinity'
) with (fillfactor = 50);

-- Refuse a start that weighs more than a full bucket and, for producers, a limit that does not exist. An outcome may name a limit
-- that is yet to come (must_exist false): its row waits for it, see defer_throttled.
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
                              else format('a weight of %s is more than the burst of rate limit %L, %s', bad.weight, bad.name, bad.burst) end
      using errcode = '22GD5',
            detail = json_build_object('ord', bad.ord, 'name', bad.name, 'weight', coalesce(bad.weight, 1), 'burst', bad.burst)::text,
            hint = case when bad.burst is null then 'set it first: select gen_durable.set_rate_limit(...)'
                        else 'give less weight, or raise the burst' end;
  end if;
end $$;

-- How long it takes until so many tokens have come. Rounded up to the microsecond: never one too many. Three centuries are as good
-- as never, and still in the calendar.
create function gen_durable.refill(tokens numeric, allowed int, period interval) returns interval
language sql immutable
return make_interval(secs => least(ceil(tokens * extract(epoch from period) * 1000000 / allowed) / 1000000, 10000000000)::float8);

-- May these rows start now? In their order, a prefix of each bucket's; granted_at null: no. Called by the pick, in its transaction.
-- Buckets are locked in the order of their names, so picks that need the same ones wait for each other and never in a ring.
-- A row that has no turn yet starts only if nobody who has one waits: late comers do not overtake. One that weighs more than
-- a burst which was lowered after it came counts as a full bucket.
create function gen_durable.take_tokens(keys text[], weights int[], rate_turns timestamptz[])
returns table (ord bigint, granted_at timestamptz, is_known boolean)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  moment timestamptz;
begin
  -- Made or locked in one go: the collector cannot take it in between. The update writes nothing, and locks all the same.
  insert into gen_durable.buckets as b (key)
  select distinct given.key from unnest(keys) as given (key)
   where exists (select from gen_durable.limits l where l.kind = 'rate' and l.name = split_part(given.key, ':', 1))
   order by given.key
      on conflict (key) do update set full_at = b.full_at where false;
  moment := clock_timestamp();                            -- under the locks: no later moment is in the bucket
  return query
    with bucket as materialized (
      select b.key, greatest(b.full_at, moment) as full_at, l.allowed, l.period, l.burst,
             moment + gen_durable.refill(l.burst, l.allowed, l.period) as limit_at,
             exists (select from gen_durable.gen_durable g
                      where g.status = 'runnable' and g.rate_turn_at is not null and g.rate_limit = b.key) as has_plan
        from gen_durable.buckets b join gen_durable.limits l on l.kind = 'rate' and l.name = split_part(b.key, ':', 1)
       where b.key = any (keys)
    ), bill as materialized (
      select given.ord, bucket.key, bucket.full_at, bucket.limit_at, bucket.allowed, bucket.period,
             sum(least(coalesce(given.weight, 1), bucket.burst)) over (partition by bucket.key order by given.ord) as tokens
        from unnest(keys, weights, rate_turns) with ordinality as given (key, weight, rate_turn_at, ord)
        join bucket on bucket.key = given.key
       where given.rate_turn_at is not null or not bucket.has_plan
    ), granted as materialized (
      select bill.ord, bill.key, bill.full_at + gen_durable.refill(bill.tokens, bill.allowed, bill.period) as full_at
        from bill where bill.full_at + gen_durable.refill(bill.tokens, bill.allowed, bill.period) <= bill.limit_at
    ), taken as (
      update gen_durable.buckets b set full_at = last.full_at
        from (select granted.key, max(granted.full_at) as full_at from granted group by granted.key) last
       where b.key = last.key
    )
    select given.ord, case when granted.ord is not null then moment end,
           exists (select from gen_durable.limits l where l.kind = 'rate' and l.name = split_part(given.key, ':', 1))
      from unnest(keys) with ordinality as given (key, ord) left join granted on granted.ord = given.ord;
end $$;

-- Let the next gated rows of each key back into the pick index, as many as there are free slots without a row for them; the queues
-- that have work now. A later statement of every transaction that frees a slot. A row that counts as waiting for a slot is
-- locked, so that it cannot leave the line unseen; one that somebody holds does not count. A gated one is waited for:
-- skipping it could leave a free key with all of its rows gated for ever.
create function gen_durable.ungate(keys text[]) returns setof text
language sql set search_path = pg_catalog, pg_temp as $$
  with freed as materialized (
    select freed.key, least(slots.count - held.count, 32767) as free
      from (select distinct key from unnest(keys) as given (key)
             where (select true from gen_durable.gen_durable g
                     where g.status = 'runnable' and g.gated and g.concurrency_key = given.key limit 1)) freed
     cross join lateral (
       select coalesce((select l.slots from gen_durable.limits l
                         where l.kind = 'concurrency' and l.name = split_part(freed.key, ':', 1)), 1) as count) slots
     cross join lateral (
       select count(*) as count from gen_durable.gen_durable holder
        where holder.concurrency_key = freed.key and holder.concurrency_slot is not null) held
     where slots.count > held.count
     order by freed.key
  ), first as materialized (
    select row.id from freed cross join lateral (
      select * from (
        select g.id, g.gated from gen_durable.gen_durable g
         where g.status = 'runnable' and g.concurrency_key = freed.key and g.eligible_at <= statement_timestamp()
         order by g.priority, g.eligible_at, g.id limit 32767) due
      limit freed.free) row
     where not row.gated
  ), waiting as materialized (
    select g.id, g.concurrency_key as key from first join gen_durable.gen_durable g on g.id = first.id
     where g.status = 'runnable' and not g.gated
     order by g.id desc for no key update of g skip locked
  ), next as materialized (
    select row.id from freed cross join lateral (
      select * from (
        select g.id from gen_durable.gen_durable g
         where g.status = 'runnable' and g.gated and g.concurrency_key = freed.key
         order by g.priority, g.eligible_at, g.id limit 32767
           for no key update) gated
      limit freed.free - (select count(*) from waiting where waiting.key = freed.key)) row
  )
  update gen_durable.gen_durable g set gated = false
    from next where g.id = next.id
  returning g.queue
$$;

-- Give the due rows of empty buckets the times at which it will be their turn, up to 1000 of each; how many they were. They leave
-- the head of their queue, and a pick finds each when its tokens are there. Those who had a turn and missed it keep their
-- places; the others queue up behind.
-- Rows whose limit does not exist stall. apply_limit makes them due when it sets the limit: it either waits for the lock taken here
-- and sees them, or has the table already, and then they are due again in a second. Beside that one row of a chunk is due every
-- half minute, for telemetry, and the others once a day: a million stalled rows cost a pick nothing.
--   keys, queues     the buckets, and where their rows wait
--   fsms, versions   only rows of these machines; null: of all
create function gen_durable.defer_throttled(keys text[], queues text[], fsms text[], versions int[])
returns table (key text, count int)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  one     record;
  bucket  record;
  freed   text[];
  last    record;
  stalled interval := '1 second';
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
    -- Read under the lock of the bucket, which a change of the limit takes as well: it was before, or it sees the turns.
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
    ), planned as (
      -- Everybody of the queue who has a turn no later than the last of these: those before one of them count.
      select g.id, sum(least(coalesce(g.weight, 1), bucket.burst)) over (order by g.rate_turn_at, g.id) as tokens
        from gen_durable.gen_durable g
       where g.status = 'runnable' and g.rate_turn_at is not null and g.rate_limit = one.key and g.queue = one.queue
         and g.rate_turn_at <= (select max(due.rate_turn_at) from due)
    ), fresh as (
      select due.id, sum(due.weight) over (order by due.priority, due.eligible_at, due.id) as tokens,
             row_number() over (order by due.priority, due.eligible_at, due.id) as place
        from due where due.rate_turn_at is null
    ), found as (
      select due.id, due.rate_turn_at, null::bigint as place, bucket.full_at
             + gen_durable.refill(planned.tokens, bucket.allowed, bucket.period)
             - gen_durable.refill(bucket.burst, bucket.allowed, bucket.period) as start_at
        from due join planned on planned.id = due.id
      union all
      select fresh.id, null, fresh.place, greatest(
               last.eligible_at + gen_durable.refill(fresh.tokens, bucket.allowed, bucket.period),
               bucket.full_at
               + gen_durable.refill(fresh.tokens + coalesce((select max(planned.tokens) from planned), 0), bucket.allowed,
                                    bucket.period)
               - gen_durable.refill(bucket.burst, bucket.allowed, bucket.period))
        from fresh
    ), written as (
      update gen_durable.gen_durable g
         set eligible_at = coalesce(greatest(found.start_at, bucket.moment), statement_timestamp() + least(
                             stalled, case when g.id = (select due.id from due limit 1) then interval '30 seconds' end)),
             rate_turn_at = coalesce(found.rate_turn_at, greatest(found.start_at, bucket.moment, last.rate_turn_at + found.place * interval '1 microsecond'),
                             statement_timestamp())
        from found where g.id = found.id
      returning g.id, g.concurrency_key
    )
    select count(*)::int, array_agg(distinct written.concurrency_key) filter (where written.concurrency_key is not null)
      into count, freed from written;
    -- Who is not due does not stand in the line of its key.
    if freed is not null then
      perform gen_durable.ungate(freed);
    end if;
    key := one.key;
    return next;
  end loop;
end $$;

-- What waits because of a limit looks again: gated rows have another number of slots, planned ones another rate.
create function gen_durable.limit_changed(limit_name text, limit_kind text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if limit_kind = 'concurrency' then
    perform gen_durable.ungate(array(
      with recursive line as (
        (select g.concurrency_key as key from gen_durable.gen_durable g
          where g.status = 'runnable' and g.gated and g.concurrency_key >= limit_name
          order by g.concurrency_key limit 1)
        union all
        select (select g.concurrency_key from gen_durable.gen_durable g
                 where g.status = 'runnable' and g.gated and g.concurrency_key > line.key
                 order by g.concurrency_key limit 1)
          from line where line.key is not null and starts_with(line.key, limit_name)
      )
      select line.key from line where split_part(line.key, ':', 1) = limit_name));
  else
    -- At the worst a bucket is empty, by the measure of today.
    perform from gen_durable.buckets b where split_part(b.key, ':', 1) = limit_name order by b.key for no key update;
    update gen_durable.buckets b
       set full_at = least(b.full_at, clock_timestamp() + gen_durable.refill(l.burst, l.allowed, l.period))
      from gen_durable.limits l
     where l.kind = 'rate' and l.name = limit_name and split_part(b.key, ':', 1) = limit_name;
    -- Rows are locked as everywhere, ids descending: others cancel many at once.
    perform from gen_durable.gen_durable g
     where g.status = 'runnable' and g.rate_turn_at is not null and split_part(g.rate_limit, ':', 1) = limit_name
     order by g.id desc for no key update;
    update gen_durable.gen_durable g set eligible_at = statement_timestamp(), rate_turn_at = null
     where g.status = 'runnable' and g.rate_turn_at is not null and split_part(g.rate_limit, ':', 1) = limit_name;
  end if;
end $$;

-- Change a limit. Transactions that gate or stall rows hold a ROW SHARE lock on this table, so one of the two comes second and sees
-- what the other wrote.
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

-- set_concurrency_limit('tenant', 3): three executions at once of each key "tenant" or "tenant:...", over all workers.
create function gen_durable.set_concurrency_limit(
  name text, slots int, reason text default null, actor text default current_user) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
  select from gen_durable.apply_limit(name, 'concurrency', slots, null, null, null, false, reason, actor)
$$;

-- set_rate_limit('crm', 100, '1 minute'): as many starts per minute of each bucket "crm" or "crm:..."; burst at one moment, allowed if left out.
create function gen_durable.set_rate_limit(
  name text, allowed int, period interval, burst int default null, reason text default null, actor text default current_user)
returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
  select from gen_durable.apply_limit(name, 'rate', null, allowed, period, coalesce(burst, allowed), false, reason, actor)
$$;

-- remove_limit('crm') -> whether there was one. Keys go back to one slot; rows with a removed rate limit stall until it is set
-- again.
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
  gen_durable.check_limits, gen_durable.refill, gen_durable.take_tokens, gen_durable.ungate, gen_durable.defer_throttled,
  gen_durable.limit_changed, gen_durable.apply_limit, gen_durable.set_concurrency_limit, gen_durable.set_rate_limit,
  gen_durable.remove_limit
  from public;
