-- Changes with an Idempotency-Key and their answers. The transaction of the change runs all three statements.

-- name: claim
-- Store the key of a request; no row if it is stored already. Waits while another transaction stores it.
insert into gen_durable.answered_requests (actor, key, digest) values (:actor::text, :key::text, :digest::bytea)
on conflict (actor, key) do nothing
returning true as is_new

-- name: answered
-- The answer of the request that has this key.
select r.answer, r.digest = :digest::bytea as is_same, r.answered_at
  from gen_durable.answered_requests r where r.actor = :actor::text and r.key = :key::text

-- name: store
-- Store the answer of a claimed request.
update gen_durable.answered_requests r set answer = :answer::text where r.actor = :actor::text and r.key = :key::text
