-- Machines as their workers have registered them: for the database, and for tools that do not have the code.

-- name: machines
-- All registered machines, with the live workers that run them.
select m.fsm, m.fsm_version, m.queue, m.steps::text as steps, m.signals::text as signals, m.streams::text as streams, m.updated_at,
       array(select w.name from gen_durable.workers w
              where w.expires_at > statement_timestamp() and not w.is_draining
                and (m.fsm, m.fsm_version) in (select * from unnest(w.fsms, w.fsm_versions))
              order by w.name) as workers
  from gen_durable.machines m order by m.fsm, m.fsm_version

-- name: reacting
-- Whether one of these machines has an on_cancel or undo step in any version.
select exists (
  select from gen_durable.machines m
   where m.fsm = any (:fsms::text[])
     and (m.on_cancel is not null or jsonb_path_exists(m.graph, '$.edges[*] ? (@.kind == "undo")'))) as reacts

-- name: registered
-- The steps of one version of a machine, and the JSON Schema of its state, signals and streams; nulls if its worker did not store them.
-- computed: the keys that it computes from the state.
select m.steps::text as steps, m.former_steps::text as former_steps, m.state_schema::text as state_schema, m.signals::text as signals,
       m.streams::text as streams, (m.defaults -> 'computed')::text as computed
  from gen_durable.machines m where m.fsm = :fsm::text and m.fsm_version = :version::int

-- name: names
-- The names of registered machines, with their steps, queues and signals; at most :most versions.
select m.fsm, m.queue, m.steps::text as steps, m.signals::text as signals
  from gen_durable.machines m order by m.fsm, m.fsm_version desc limit :most::int

-- name: graphs
-- The graph of every version of every machine, as its worker read it from the code, with the live workers that run it.
select m.fsm, m.fsm_version, m.queue, m.graph::text as graph, m.updated_at,
       (select count(*) from gen_durable.workers w
         where w.expires_at > statement_timestamp() and not w.is_draining
           and (m.fsm, m.fsm_version) in (select * from unnest(w.fsms, w.fsm_versions))) as workers
  from gen_durable.machines m where :fsm::text is null or m.fsm = :fsm::text order by m.fsm, m.fsm_version

-- name: lock_registered
-- Lock the registrations of machines, in the order of the primary key.
select from gen_durable.machines m
 where (m.fsm, m.fsm_version) in (select * from unnest(:fsms::text[], :versions::int[]))
 order by m.fsm, m.fsm_version for no key update

-- name: register
-- Register the machines of a worker. Writes only changes. `is_upgraded`: the rows of an older version, which the machine upgrades; if
-- that version is registered, what applies to its live rows becomes that of the machine that runs them now.
-- A registration stays while a live worker has it and runs all steps of the given one and more: then that is older code, whose worker
-- was restarted during a rolling deploy. With :renews it stays while any live worker has it.
-- Locks: the rows that change, in the order of the primary key.
with given as materialized (
  select * from unnest(:fsms::text[], :versions::int[], :digests::text[], :are_upgraded::boolean[], :initial_steps::text[],
                       :queues::text[], :dead_letters::text[], :steps::text[]::jsonb[], :former_steps::text[]::jsonb[],
                       :graphs::text[]::jsonb[], :state_schemas::text[]::jsonb[], :signals::text[]::jsonb[],
                       :streams::text[]::jsonb[], :on_cancels::text[]::jsonb[], :on_failures::text[]::jsonb[],
                       :max_attempts::text[]::jsonb[], :defaults::text[]::jsonb[], :retentions::text[]::jsonb[],
                       :histories::boolean[])
       as given (fsm, fsm_version, digest, is_upgraded, initial_step, queue, dead_letter, steps, former_steps, graph, state_schema,
                 signals, streams, on_cancel, on_failure, max_attempts, defaults, retention, keeps_history)
), changed as materialized (
  select given.* from given join gen_durable.machines m on m.fsm = given.fsm and m.fsm_version = given.fsm_version
   where m.digest is distinct from given.digest
     and not exists (
       select from gen_durable.workers w
        where w.expires_at > statement_timestamp() and not w.is_draining
          and (m.fsm, m.fsm_version, m.digest) in (select * from unnest(w.fsms, w.fsm_versions, w.fsm_digests))
          and (:renews::boolean or (m.steps || m.former_steps) @> (given.steps || given.former_steps)
                                   and not (given.steps || given.former_steps) @> (m.steps || m.former_steps)))
   order by m.fsm, m.fsm_version for no key update of m
), updated as (
  update gen_durable.machines m
     set initial_step = case when changed.is_upgraded then m.initial_step else changed.initial_step end,
         queue = case when changed.is_upgraded then m.queue else changed.queue end,
         graph = case when changed.is_upgraded then m.graph else changed.graph end,
         state_schema = case when changed.is_upgraded then m.state_schema else changed.state_schema end,
         defaults = case when changed.is_upgraded then m.defaults else changed.defaults end,
         dead_letter = changed.dead_letter, steps = changed.steps, former_steps = changed.former_steps, signals = changed.signals,
         streams = changed.streams, on_cancel = changed.on_cancel, on_failure = changed.on_failure,
         max_attempts = changed.max_attempts, retention = changed.retention, keeps_history = changed.keeps_history,
         digest = changed.digest, updated_at = statement_timestamp()
    from changed where m.fsm = changed.fsm and m.fsm_version = changed.fsm_version
)
insert into gen_durable.machines (fsm, fsm_version, digest, initial_step, queue, dead_letter, steps, former_steps, graph, state_schema,
                                  signals, streams, on_cancel, on_failure, max_attempts, defaults, retention, keeps_history)
select fsm, fsm_version, digest, initial_step, queue, dead_letter, steps, former_steps, graph, state_schema, signals, streams,
       on_cancel, on_failure, max_attempts, defaults, retention, keeps_history
  from given
 where not is_upgraded
   and not exists (select from gen_durable.machines m where m.fsm = given.fsm and m.fsm_version = given.fsm_version)
 order by fsm, fsm_version
    on conflict (fsm, fsm_version) do nothing
