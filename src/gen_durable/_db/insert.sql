-- Inserting: the work is done by the function insert_rows, which producers of every language share.

-- name: insert
-- Any number of instances in one statement; an answer per input, numbered by its place.
select ord, id, inserted, queue, holder_fsm, holder_key, holder_status
  from gen_durable.insert_rows(
         :fsms::text[], :versions::int[], :steps::text[], :states::text[], :queues::text[], :priorities::int[],
         :eligible_ats::timestamptz[], :delays::interval[], :concurrency_keys::text[],
         :correlation_keys::text[], :correlation_scopes::text[], :unique_keys::bytea[], :unique_scopes::text[],
         :max_attempts::int[], :parent_ids::bigint[], :parent_rounds::bigint[], :traceparents::text[],
         :rate_limits::text[], :weights::int[])

-- name: insert_dead_letters
-- What failed instances leave to machines of which only the names are known.
select gen_durable.insert_dead_letters(:receivers::text[], :contents::text[], :traceparents::text[]) as queue

-- name: dead_letter_failed
-- The same for instances whose worker could not say so.
select gen_durable.dead_letter_failed(:ids::bigint[], :attempts::int[]) as queue

-- name: register
-- What a worker runs, so that producers in SQL need not know where a machine begins. Written only when it changed.
insert into gen_durable.machines (fsm, fsm_version, initial_step, queue, dead_letter)
select fsm, fsm_version, initial_step, queue, dead_letter
  from unnest(:fsms::text[], :versions::int[], :initial_steps::text[], :queues::text[], :dead_letters::text[])
       as given (fsm, fsm_version, initial_step, queue, dead_letter)
 order by fsm, fsm_version
    on conflict (fsm, fsm_version) do update
   set initial_step = excluded.initial_step, queue = excluded.queue, dead_letter = excluded.dead_letter,
       updated_at = statement_timestamp()
 where (machines.initial_step, machines.queue, machines.dead_letter)
       is distinct from (excluded.initial_step, excluded.queue, excluded.dead_letter)
