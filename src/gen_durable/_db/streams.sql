-- Streams: append items of running executions, and read them.

-- name: append_items
-- Append the items of executions, in the order given. A chunk has the items of one execution for one stream. Guard: id,
-- lease_token, step_seq, under the lock of the row. Returns the chunks that were not appended: their lease is lost, or their row
-- is locked by another transaction.
-- If the reply to an append is lost, it is sent again. Items that are stored already are skipped by their number within the
-- execution. If the first append commits while the second one runs, that does not see the items, and the primary key refuses them.
-- Locks: ids descending, SKIP LOCKED: a caller's transaction that holds one row must not delay the items of others.
with held as materialized (
  select chunk.place, chunk.stream, g.id, g.step, g.step_seq, g.execution, g.attempt, g.has_items
    from unnest(:ids::bigint[], :lease_tokens::bigint[], :step_seqs::bigint[], :streams::text[]) with ordinality
           as chunk (id, lease_token, step_seq, stream, place)
    join gen_durable.gen_durable g
      on g.id = chunk.id and g.lease_token = chunk.lease_token and g.step_seq = chunk.step_seq
   order by g.id desc for no key update of g skip locked
), flagged as (
  update gen_durable.gen_durable g set has_items = true
    from (select distinct held.id from held where not held.has_items) first where g.id = first.id
), tails as materialized (
  select held.*, coalesce(tail.position, 0) as position,
         case when tail.execution = held.execution then tail.number else 0 end as stored
    from held left join lateral (
      select i.position, i.execution, i.number from gen_durable.stream_items i
       where i.instance_id = held.id and i.stream = held.stream
       order by i.position desc limit 1) tail on true
), appended as (
  insert into gen_durable.stream_items (instance_id, stream, position, step, step_seq, execution, attempt, number, value)
  select tails.id, tails.stream, tails.position + item.number - tails.stored, tails.step, tails.step_seq + 1, tails.execution,
         tails.attempt, item.number, item.value::jsonb
    from unnest(:places::int[], :numbers::int[], :values::text[]) with ordinality as item (place, number, value, ord)
    join tails on tails.place = item.place
   where item.number > tails.stored
   order by item.ord
)
select chunk.place,
       exists (select from gen_durable.gen_durable g
                where g.id = chunk.id and g.lease_token = chunk.lease_token and g.step_seq = chunk.step_seq) as is_locked
  from unnest(:ids::bigint[], :lease_tokens::bigint[], :step_seqs::bigint[]) with ordinality
         as chunk (id, lease_token, step_seq, place)
 where not exists (select from held where held.place = chunk.place)

-- name: read_items
-- Read the next items of any number of streams, at most :most items of each, and at most :budget bytes of each unless its next item
-- is larger. First their stored size is summed, so that items of later pages are not read; then their size as text, because stored
-- values may be compressed. A stream without news has no row: news are items, the end or the absence of its instance, and the
-- commit of the transition :closings that closes it.
select followed.place, g.id is null as is_missing, g.finished_at is not null as has_ended, g.step_seq as committed_seq,
       item.position, item.step, item.step_seq, item.execution, item.attempt, item.text as value, item.created_at
  from unnest(:ids::bigint[], :streams::text[], :afters::bigint[], :closings::bigint[]) with ordinality
         as followed (id, stream, after, closing, place)
  left join gen_durable.gen_durable g on g.id = followed.id
  left join lateral (
    select * from (
      select texts.*, coalesce(sum(octet_length(texts.text)) over (order by texts.position), 0) as bytes
        from (select stored.*, stored.value::text as text from (
                select next.*, row_number() over (order by next.position) as n,
                       coalesce(sum(pg_column_size(next.value)) over (order by next.position), 0) as stored_bytes
                  from (select * from gen_durable.stream_items i
                         where i.instance_id = followed.id and i.stream = followed.stream and i.position > followed.after
                         order by i.position limit :most::int) next) stored
               where stored.n = 1 or stored.stored_bytes <= :budget::bigint offset 0) texts) measured
     where measured.n = 1 or measured.bytes <= :budget::bigint) item on true
 where item.position is not null or g.id is null or g.finished_at is not null or g.step_seq >= followed.closing
 order by followed.place, item.position

-- name: delete_items
-- Delete the items of deleted instances.
delete from gen_durable.stream_items i where i.instance_id = any (:ids::bigint[])
