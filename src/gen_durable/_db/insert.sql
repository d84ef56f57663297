-- Inserting: the work is done by the function insert_rows, which producers of every language share.

-- name: insert
-- Any number of instances in one statement; an answer per input, numbered by its place.
select ord, id, inserted, queue, holder_fsm, holder_key, holder_status
  from gen_durable.insert_rows(
         :fsms::text[], :versions::int[], :steps::text[], :states::text[], :queues::text[], :priorities::int[],
         :eligible_ats::timestamptz[], :delays::interval[], :concurrency_keys::text[],
         :correlation_keys::text[], :correlation_scopes::text[], :unique_keys::bytea[], :unique_scopes::text[],
         :max_attempts::int[], :parent_ids::bigint[], :parent_rounds::bigint[], :strict::boolean, :traceparents::text[])

-- name: insert_letters
-- Instances of machines of which only the names are known: where they begin and wait is what their workers have registered,
-- the newest version of it; and if none has yet, what a plain job would be.
select letter.queue
  from (select array_agg(given.fsm order by given.ord) as fsms, array_agg(given.state order by given.ord) as states,
               array_agg(coalesce(machine.fsm_version, 1) order by given.ord) as versions,
               array_agg(coalesce(machine.initial_step, 'run') order by given.ord) as steps,
               array_agg(coalesce(machine.queue, 'default') order by given.ord) as queues,
               array_agg(0) as priorities, array_agg(given.traceparent order by given.ord) as traceparents
          from unnest(:fsms::text[], :states::text[], :traceparents::text[])
               with ordinality as given (fsm, state, traceparent, ord)
          left join lateral (
            select m.* from gen_durable.machines m where m.fsm = given.fsm order by m.fsm_version desc limit 1) machine on true
       ) as filled
 cross join lateral gen_durable.insert_rows(
         filled.fsms, filled.versions, filled.steps, filled.states, filled.queues, filled.priorities,
         null, null, null, null, null, null, null, null, null, null, false, filled.traceparents) as letter

-- name: register
-- What a worker runs, so that producers in SQL need not know where a machine begins. Written only when it changed.
insert into gen_durable.machines (fsm, fsm_version, initial_step, queue)
select fsm, fsm_version, initial_step, queue
  from unnest(:fsms::text[], :versions::int[], :initial_steps::text[], :queues::text[])
       as given (fsm, fsm_version, initial_step, queue)
 order by fsm, fsm_version
    on conflict (fsm, fsm_version) do update
   set initial_step = excluded.initial_step, queue = excluded.queue, updated_at = statement_timestamp()
 where (machines.initial_step, machines.queue) is distinct from (excluded.initial_step, excluded.queue)
