-- Rows that a test puts in place.

-- name: add_version
-- Register a version, as its workers did. What it declares is known only of the machine that upgrades it.
insert into gen_durable.machines (fsm, fsm_version, initial_step, queue)
values (:fsm::text, :version::int, :step::text, :queue::text)
    on conflict (fsm, fsm_version) do nothing

-- name: load
-- Insert an instance as the code of an older version has left it: due, or parked on signals.
insert into gen_durable.gen_durable (fsm, fsm_version, step, rest_step, status, state, queue, awaits, await_deadline, step_seq,
                                     correlation_key, correlation_scope, checkpoint)
values (:fsm::text, :version::int, :step::text, case when :awaits::text[] is null then '' else :step::text end,
        case when :awaits::text[] is null then 'runnable' else 'awaiting_signal' end::gen_durable.durable_status,
        :state::text::jsonb, :queue::text, :awaits::text[],
        statement_timestamp() + :timeout::interval, 1, :correlation_key::text,
        case when :correlation_key::text is not null
             then '{runnable,executing,awaiting_signal,awaiting_children}'::gen_durable.durable_status[] end,
        :checkpoint::text::jsonb)
returning id
