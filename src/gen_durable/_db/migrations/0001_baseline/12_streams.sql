-- Streams: items that steps publish while they run. An item belongs to the execution that published it, not to its outcome.
--
-- Positions are dense from 1 per stream: append assigns them under the row lock of the instance. So items become visible in the
-- order of their positions, and a reader that asks for positions above the last one that it has read misses nothing.
create table gen_durable.stream_items (
  instance_id  bigint not null,
  stream       text not null,
  position     bigint not null,
  step         text not null,
  step_seq     bigint not null,                           -- the transition that its execution worked on
  execution    int not null,                              -- the number of the execution that published it
  attempt      int not null,
  number       int not null,                              -- the n-th item of that execution in this stream: an append that is
                                                          -- sent again skips the items that are stored
  value        jsonb,                                     -- null: the stream is closed here, once transition step_seq is committed
  created_at   timestamptz not null default statement_timestamp(),
  primary key (instance_id, stream, position)
);
