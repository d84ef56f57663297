-- Signals: the inboxes of instances, and the functions that deliver to them.

create table gen_durable.signals (
  id           bigint generated always as identity primary key,
  target_id    bigint not null,
  name         text not null,
  payload      jsonb not null default 'null',
  size         int generated always as (octet_length(payload::text)) stored,  -- bytes of JSON, without reading the payload
  dedup_key    text,
  consumed_seq bigint,                                    -- step_seq that consumed it; the row is kept for its dedup_key
  traceparent  text,                                      -- W3C trace context of the sender
  inserted_at  timestamptz not null default statement_timestamp()
) with (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
create unique index signals_dedup on gen_durable.signals (target_id, dedup_key) where dedup_key is not null;
create index signals_target on gen_durable.signals (target_id, name) where consumed_seq is null;

-- Insert a signal in the inbox of a live instance, and wake the instance if it awaits that name. No row: no such instance.
-- Guard: the target is locked first, and every later statement has a newer snapshot. An instance that parks concurrently is
-- either parked here, or checks its inbox after this transaction (recheck) and finds the signal.
--   max_inbox   maximum bytes of unread payloads, this one included; null: max_inbox()
create function gen_durable.deliver(
  target_id bigint, target_key text, name text, payload jsonb, dedup_key text, traceparent text default null,
  max_inbox bigint default null)
returns table (id bigint, signal_id bigint, woken boolean, queue text)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
  target      record;
  given_bytes int;
  new_count   bigint;
  new_bytes   bigint;
begin
  if octet_length(coalesce(name, '')) not between 1 and 255 then
    raise exception 'the name of a signal must have 1 to 255 bytes, got %', coalesce(octet_length(name), 0) using errcode = '22023';
  elsif octet_length(dedup_key) not between 1 and 1024 then
    raise exception 'dedup_key must have 1 to 1024 bytes, got %', octet_length(dedup_key) using errcode = '22023';
  elsif traceparent !~ '^[0-9a-f]{2}(-[0-9a-f]{32})(-[0-9a-f]{16})(-[0-9a-f]{2})$' then
    raise exception 'traceparent % is not of the form 00-<32 hex digits>-<16>-<2>', quote_literal(left(traceparent, 80))
      using errcode = '22023';
  end if;
  -- By key twice: while this waited for the lock, the key may have moved to a new instance, which only a new statement sees.
  for look in 1 .. 2 loop
    if target_id is not null then
      select g.id, g.status, g.awaits, g.inbox_count, g.inbox_bytes, g.queue into target from gen_durable.gen_durable g
       where g.id = target_id and g.status not in ('done', 'failed', 'cancelled') and g.deleted_at is null
         for no key update;
    else
      select g.id, g.status, g.awaits, g.inbox_count, g.inbox_bytes, g.queue into target from gen_durable.gen_durable g
       where g.correlation_key = target_key and g.status = any (g.correlation_scope) and (g.deleted_at is null or g.status = 'executing')
         and g.status not in ('done', 'failed', 'cancelled') and g.deleted_at is null
         for no key update;
    end if;
    exit when target.id is not null or target_id is not null;
  end loop;
  if target.id is null then
    return;
  end if;
  max_inbox := coalesce(max_inbox, gen_durable.max_inbox());
  payload := coalesce(payload, 'null');
  given_bytes := octet_length(payload::text);
  new_count := target.inbox_count + 1;
  new_bytes := target.inbox_bytes + given_bytes;
  -- The stored bounds include consumed signals, so a full inbox is recounted. A duplicate adds nothing.
  if (new_count > 10000 or new_bytes > max_inbox)
     and not exists (select from gen_durable.signals s where s.target_id = target.id and s.dedup_key = deliver.dedup_key) then
    select count(*) + 1, coalesce(sum(s.size), 0) + given_bytes into new_count, new_bytes
      from gen_durable.signals s where s.target_id = target.id and s.consumed_seq is null;
    if new_count > 10000 then
      raise exception 'the inbox of instance % is full: 10000 unread signals', target.id
        using errcode = 'GD002', hint = 'await these signals in the machine, or send fewer or smaller ones';
    elsif new_bytes > max_inbox then
      raise exception using message = format(
        'the inbox of instance %s is full: %s unread signals have %s bytes of JSON, '
        'a signal of %s bytes exceeds the limit of %s', target.id, new_count - 1, new_bytes - given_bytes, given_bytes, max_inbox),
        errcode = 'GD002', hint = 'await these signals in the machine, or send fewer or smaller ones';
    end if;
  end if;
  with inserted as (
    insert into gen_durable.signals (target_id, name, payload, dedup_key, traceparent)
         values (target.id, name, payload, dedup_key, traceparent)
    on conflict do nothing
      returning signals.id
  ), audited as (
    insert into gen_durable.audit_events (instance_id, event, data)
    select target.id, 'signalled', jsonb_strip_nulls(jsonb_build_object(
             'signal', name, 'dedup_key', dedup_key,
             'is_awaited', target.status = 'awaiting_signal' and name = any (target.awaits)))
      from inserted
     where (select s.audit from gen_durable.settings s) = 'all'
  )
  select inserted.id into signal_id from inserted;
  -- A duplicate does not wake: a step that collects several signals would run in vain and park again.
  woken := signal_id is not null and target.status = 'awaiting_signal' and name = any (target.awaits);
  if woken then
    update gen_durable.gen_durable g
       set status = 'runnable', eligible_at = statement_timestamp(), has_signals = true, inbox_count = new_count,
           inbox_bytes = new_bytes, updated_at = statement_timestamp()
     where g.id = target.id;
  elsif signal_id is not null then
    -- A signal that arrives after the deadline, but before the step runs, resets timed_out.
    update gen_durable.gen_durable g
       set has_signals = true, inbox_count = new_count, inbox_bytes = new_bytes,
           timed_out = g.timed_out and not coalesce(name = any (g.awaits), false)
     where g.id = target.id;
  end if;
  id := target.id;
  queue := target.queue;
  return next;
end $$;

-- signal(42, 'paid', '{"amount": 100}', 'evt-7') or signal('order:42', ...): deliver for producers in any language. Raises if
-- there is no such live instance, so that a caller who ignores the answer does not lose the signal.
create function gen_durable.signal(
  target bigint, name text, payload jsonb default 'null', dedup_key text default null, traceparent text default null)
returns table (id bigint, delivered boolean)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  return query select d.id, d.signal_id is not null
                 from gen_durable.deliver(target, null, signal.name, gen_durable.checked_payload(
                        signal.payload, format('the payload of signal %L', signal.name)), signal.dedup_key, signal.traceparent) d;
  if not found then
    raise exception 'cannot signal %: there is no live instance %', quote_literal(name), target using errcode = 'GD003';
  end if;
end $$;

create function gen_durable.signal(
  target text, name text, payload jsonb default 'null', dedup_key text default null, traceparent text default null)
returns table (id bigint, delivered boolean)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  return query select d.id, d.signal_id is not null
                 from gen_durable.deliver(null, target, signal.name, gen_durable.checked_payload(
                        signal.payload, format('the payload of signal %L', signal.name)), signal.dedup_key, signal.traceparent) d;
  if not found then
    raise exception 'cannot signal %: no live instance has correlation_key %', quote_literal(name),
      quote_literal(left(target, 1024))
      using errcode = 'GD003';
  end if;
end $$;

revoke execute on function
  gen_durable.deliver, gen_durable.signal(bigint, text, jsonb, text, text),
  gen_durable.signal(text, text, jsonb, text, text)
  from public;
