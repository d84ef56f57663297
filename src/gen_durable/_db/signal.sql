-- Signals: delivering them, and clearing the inbox of the ended.

-- name: deliver
-- One signal to one live instance, by id or by correlation key. No row: there is no such instance.
-- The payload goes as text: a caller's connection may have a jsonb codec of its own.
select id, signal_id, woken, queue
  from gen_durable.deliver(:target_id::bigint, :target_key::text, :name::text, :payload::text::jsonb, :dedup_key::text,
         :traceparent::text, :max_inbox::bigint)

-- name: sweep
-- The inbox of the ended: nothing will read it any more, and deliver adds nothing to it. In a statement of its own, which sees
-- what was delivered while the first one waited for the row.
-- Two conditions that together are always true: each is that of an index.
delete from gen_durable.signals s
 where s.target_id = any (:ids::bigint[]) and s.consumed_seq is null
    or s.target_id = any (:ids::bigint[]) and s.dedup_key is not null
