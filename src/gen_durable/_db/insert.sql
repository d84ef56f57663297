-- Insert instances by functions of the schema. insert_rows() also serves producers in other languages.

-- name: insert
-- Insert any number of instances in one statement; one row per input, numbered by position.
select ord, id, inserted, queue, holder_fsm, holder_key, holder_status
  from gen_durable.insert_rows(
         :fsms::text[], :versions::int[], :steps::text[], :states::text[], :queues::text[], :priorities::int[],
         :eligible_ats::timestamptz[], :delays::interval[], :concurrency_keys::text[],
         :correlation_keys::text[], :correlation_scopes::text[], :unique_keys::bytea[], :unique_scopes::text[],
         :max_attempts::int[], :parent_ids::bigint[], :parent_rounds::bigint[], :traceparents::text[],
         :rate_limits::text[], :weights::int[])

-- name: insert_plain
-- Insert instances without keys that differ only in their states and in the arrays; the ids in the order of the states.
select gen_durable.insert_plain_rows(
         :fsm::text, :version::int, :step::text, :states::text, :queue::text, :priority::int, :eligible_at::timestamptz,
         :delay::interval, :max_attempts::int, :concurrency_keys::text[], :traceparents::text[], :parent_ids::bigint[],
         :parent_rounds::bigint[]) as ids

-- name: insert_dead_letters
-- Insert the dead letters of failed instances, addressed by machine name.
select gen_durable.insert_dead_letters(:receivers::text[], :contents::text[], :traceparents::text[]) as queue

-- name: dead_letter_failed
-- Insert the dead letters of instances that failed without an outcome of their worker.
select gen_durable.dead_letter_failed(:ids::bigint[], :attempts::int[]) as queue
