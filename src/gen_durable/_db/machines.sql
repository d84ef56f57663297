-- Machines as their workers have registered them, for tools that do not have the code.

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
select m.steps::text as steps, m.state_schema::text as state_schema, m.signals::text as signals,
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
