-- Signals: delivering them, and clearing the inbox of the ended.

-- name: deliver
-- One signal to one live instance, by id or by correlation key. No row: there is no such instance.
-- The payload goes as text: a caller's connection may have a jsonb codec of its own.
select id, signal_id, woken, queue
  from gen_durable.deliver(:target_id::bigint, :target_key::text, :name::text, :payload::text::jsonb, :dedup_key::text,
         :traceparent::text, :max_inbox::bigint)

-- name: claim_message
-- Remember a message from outside, in the transaction that delivers it. No row: its id is known. A transaction that claims the
-- same id at this moment is waited for.
insert into gen_durable.received_messages (message_id, correlation_key, signal)
values (:message_id::text, :correlation_key::text, :signal::text)
on conflict do nothing
returning true as is_new

-- name: claimed_message
-- Whether a known message was for this very target. A statement of its own: it sees what claim_message has waited for.
select m.correlation_key = :correlation_key::text and m.signal = :signal::text as is_same
  from gen_durable.received_messages m where m.message_id = :message_id::text

-- name: sweep
-- The inbox of the ended: nothing will read it any more, and deliver adds nothing to it. In a statement of its own, which sees
-- what was delivered while the first one waited for the row.
-- Two conditions that together are always true: each is that of an index.
delete from gen_durable.signals s
 where s.target_id = any (:ids::bigint[]) and s.consumed_seq is null
    or s.target_id = any (:ids::bigint[]) and s.dedup_key is not null
