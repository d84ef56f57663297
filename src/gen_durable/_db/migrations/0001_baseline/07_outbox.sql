-- The outbox: events that were committed with an outcome, until they are published.
--
-- A line is the events of one instance for one sink, in the order of their ids; they are published in that order. Rows are
-- written by commits only, which hold the lock of their instance, so ids grow along a line.

create table gen_durable.outbox (
  id           bigint generated always as identity primary key,
  instance_id  bigint not null,
  step_seq     bigint not null,                           -- the transition that emitted it
  n            int not null,                              -- its place among the events of that transition
  sink         text not null,
  type         text not null,
  subject      text not null,
  data         jsonb not null,
  created_at   timestamptz not null default statement_timestamp(),
  next_at      timestamptz not null default statement_timestamp(),  -- due from then on; of a leased row the end of the lease
  lease_token  bigint,                                    -- random per lease; every mark names it
  attempts     int not null default 0,
  last_error   text,
  published_at timestamptz,
  dead_at      timestamptz                                -- the sink rejected it for good
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

create index outbox_due on gen_durable.outbox (sink, next_at, id) where published_at is null and dead_at is null;
create index outbox_order on gen_durable.outbox (instance_id, sink, id) where published_at is null;
create index outbox_dead on gen_durable.outbox (id) where dead_at is not null;
create index outbox_published on gen_durable.outbox (published_at) where published_at is not null;

-- Messages that came in from other systems (gen_durable.inbound), so that one id counts once over all targets, also after its
-- target has ended. A row is written by the transaction that delivers the signal; the collector removes it.
create table gen_durable.received_messages (
  message_id      text primary key,                       -- the sender's id, behind a mark of the secret that signed it
  correlation_key text not null,
  signal          text not null,
  received_at     timestamptz not null default statement_timestamp()
);
