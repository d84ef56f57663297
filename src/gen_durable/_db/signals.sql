-- Signals: deliver them, and delete the inboxes of ended instances.

-- name: deliver
-- Deliver one signal to one live instance, by id or by correlation key. No row: no such instance. The payload is sent as text: a
-- caller's connection may have its own jsonb codec.
select id, signal_id, woken, queue
  from gen_durable.deliver(:target_id::bigint, :target_key::text, :name::text, :payload::text::jsonb, :dedup_key::text,
         :traceparent::text, :max_inbox::bigint)

-- name: claim_message
-- Record the id of a received message, in the transaction that delivers it. No row: the id is known. Waits for a transaction that
-- claims the same id.
insert into gen_durable.received_messages (message_id, correlation_key, signal)
values (:message_id::text, :correlation_key::text, :signal::text)
on conflict do nothing
returning true as is_new

-- name: claimed_message
-- Whether a known message had the same target. A separate statement, so that it sees the row that claim_message waited for.
select m.correlation_key = :correlation_key::text and m.signal = :signal::text as is_same
  from gen_durable.received_messages m where m.message_id = :message_id::text

-- name: sweep
-- Delete the inboxes of ended instances: no step reads them, and deliver() does not add to them. A separate statement, so that it
-- sees signals that were delivered while the commit waited for the row. The two conditions together match every signal; each
-- matches an index. SKIP LOCKED: the end of the instances may be committed already. The collector deletes what is left.
with unlocked as materialized (
  select s.ctid from gen_durable.signals s
   where s.target_id = any (:ids::bigint[]) and s.consumed_seq is null
      or s.target_id = any (:ids::bigint[]) and s.dedup_key is not null
     for update skip locked
)
delete from gen_durable.signals s using unlocked where s.ctid = unlocked.ctid
