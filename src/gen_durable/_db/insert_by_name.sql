-- Inserting by the name of a machine, for who has no class of it: the function for producers in any language does the work.

-- name: insert
-- One instance of a machine of which only the name is known, with the defaults that its workers registered.
select id, inserted
  from gen_durable.insert(
         :fsm::text, :state::text::jsonb, step => :step::text, queue => :queue::text, priority => :priority::int,
         version => :version::int, eligible_at => :eligible_at::timestamptz, schedule_in => :delay::interval,
         correlation_key => :correlation_key::text, unique_key => :unique_key::text,
         idempotency_key => :idempotency_key::text, concurrency_key => :concurrency_key::text,
         rate_limit => :rate_limit::text, weight => :weight::int, max_attempts => :max_attempts::int)

-- name: machines
-- What workers have registered.
select fsm, fsm_version from gen_durable.machines order by fsm, fsm_version
