-- Insert instances by machine name, for clients without the class. Uses the function that SQL producers call.

-- name: insert
-- Insert one instance of a machine by name, with the defaults that its workers registered.
select id, inserted
  from gen_durable.insert(
         :fsm::text, :state::text::jsonb, step => :step::text, queue => :queue::text, priority => :priority::int,
         version => :version::int, eligible_at => :eligible_at::timestamptz, schedule_in => :delay::interval,
         correlation_key => :correlation_key::text, unique_key => :unique_key::text,
         idempotency_key => :idempotency_key::text, concurrency_key => :concurrency_key::text,
         rate_limit => :rate_limit::text, weight => :weight::int, max_attempts => :max_attempts::int)

-- name: machines
-- The machines that workers have registered.
select fsm, fsm_version from gen_durable.machines order by fsm, fsm_version
