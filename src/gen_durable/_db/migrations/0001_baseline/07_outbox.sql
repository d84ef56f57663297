-- Outbox: events that were committed with an outcome, until they are published.
--
-- A stream is the events of one instance for one sink. Its events are published in the order of their ids. Only commits insert
-- events, under the row lock of the instance, so ids grow along a stream. A transaction writes the instance before its events, so
-- its xid is older than their ids: readers of the tail rely on that (newest_event in outbox.sql).

create table gen_durable.outbox (
  id           bigint generated always as identity primary key,
  instance_id  bigint not null,
  step_seq     bigint not null,                           -- the transition that emitted it
  n            int not null,                              -- its number within that transition
  sink         text not null,
  type         text not null,
  subject      text not null,
  data         jsonb not null,
  created_at   timestamptz not null default statement_timestamp(),
  next_at      timestamptz not null default statement_timestamp(),  -- due time; of a leased event: end of the lease
  lease_token  bigint,                                    -- random per lease; the guard of every mark
  attempts     int not null default 0,
  last_error   text,
  published_at timestamptz,
  dead_at      timestamptz                                -- when it became a dead letter: the sink rejected it
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

create index outbox_due on gen_durable.outbox (sink, next_at, id) where published_at is null and dead_at is null;
create index outbox_order on gen_durable.outbox (instance_id, sink, id) where published_at is null;
create index outbox_instance on gen_durable.outbox (instance_id, id) where published_at is not null;
create index outbox_dead on gen_durable.outbox (id) where dead_at is not null;
create index outbox_published on gen_durable.outbox (published_at) where published_at is not null;

-- Publish these events again if they are published or dead, under the same ids and in the order of their streams; return their ids.
-- `more` is added to the data of their audit events. Locks: the events, as the caller has given them.
create function gen_durable.replay_rows(ids bigint[], reason text, actor text, more jsonb) returns setof bigint
language sql set search_path = pg_catalog, pg_temp
begin atomic
  with replayed as (
    update gen_durable.outbox o
       set published_at = null, dead_at = null, attempts = 0, last_error = null, lease_token = null, next_at = statement_timestamp()
     where o.id = any (ids) and (o.published_at is not null or o.dead_at is not null)
    returning o.id, o.instance_id, o.sink
  ), audited as (
    insert into gen_durable.audit_events (instance_id, event, actor, reason, data)
    select r.instance_id, 'replayed', gen_durable.checked_actor(actor), gen_durable.short_reason(reason),
           jsonb_build_object('number', r.id, 'sink', r.sink) || more
      from replayed r where (select s.audit from gen_durable.settings s) >= 'failures'
  )
  select r.id from replayed r;
end;
revoke execute on function gen_durable.replay_rows from public;

-- Messages received from other systems (gen_durable.inbound), so that a message id counts once over all targets, even after its
-- target has ended. Inserted by the transaction that delivers the signal; deleted by the collector.
create table gen_durable.received_messages (
  message_id      text primary key,                       -- the sender's id, prefixed by a mark of the signing secret
  correlation_key text not null,
  signal          text not null,
  received_at     timestamptz not null default statement_timestamp()
);
