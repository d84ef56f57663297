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

-- name: register
-- Register the machines of a worker: initial steps, queues and defaults for SQL producers; steps, graph and schema for
-- tools and explain; on_cancel steps for cancels, on_failure steps for the reaper, retention for ends, keeps_history for transitions that are
-- not outcomes. Writes only changes.
insert into gen_durable.machines (fsm, fsm_version, initial_step, queue, dead_letter, steps, graph, state_schema, on_cancel,
                                  on_failure, defaults, retention, keeps_history, signals,
                                  max_attempts, streams)
select fsm, fsm_version, initial_step, queue, dead_letter, steps::jsonb, graph::jsonb, state_schema::jsonb, on_cancel::jsonb,
       on_failure::jsonb, defaults::jsonb, retention::jsonb, keeps_history,
       signals::jsonb, max_attempts::jsonb, streams::jsonb
  from unnest(:fsms::text[], :versions::int[], :initial_steps::text[], :queues::text[], :dead_letters::text[],
              :steps::text[], :graphs::text[], :state_schemas::text[], :on_cancels::text[], :on_failures::text[],
              :defaults::text[], :retentions::text[], :histories::boolean[], :signals::text[],
              :max_attempts::text[], :streams::text[])
       as given (fsm, fsm_version, initial_step, queue, dead_letter, steps, graph, state_schema, on_cancel, on_failure,
                 defaults, retention, keeps_history, signals, max_attempts, streams)
 order by fsm, fsm_version
    on conflict (fsm, fsm_version) do update
   set initial_step = excluded.initial_step, queue = excluded.queue, dead_letter = excluded.dead_letter,
       steps = excluded.steps, graph = excluded.graph, state_schema = excluded.state_schema,
       on_cancel = excluded.on_cancel, on_failure = excluded.on_failure, defaults = excluded.defaults,
       retention = excluded.retention, keeps_history = excluded.keeps_history, signals = excluded.signals,
       max_attempts = excluded.max_attempts, streams = excluded.streams, updated_at = statement_timestamp()
 where (machines.initial_step, machines.queue, machines.dead_letter, machines.steps, machines.graph, machines.state_schema,
        machines.on_cancel, machines.on_failure, machines.defaults, machines.retention,
        machines.keeps_history, machines.signals, machines.max_attempts, machines.streams)
       is distinct from (excluded.initial_step, excluded.queue, excluded.dead_letter, excluded.steps, excluded.graph,
                         excluded.state_schema, excluded.on_cancel, excluded.on_failure, excluded.defaults, excluded.retention,
                         excluded.keeps_history, excluded.signals, excluded.max_attempts, excluded.streams)
