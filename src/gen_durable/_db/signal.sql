-- Signals, from the sender's side.

-- name: deliver
-- One signal to one live instance, by id or by correlation key. No row: there is no such instance.
-- The payload goes as text: a caller's connection may have a jsonb codec of its own.
select id, signal_id, woken, queue
  from gen_durable.deliver(:target_id::bigint, :target_key::text, :name::text, :payload::text::jsonb, :dedup_key::text)
