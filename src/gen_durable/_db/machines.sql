-- Machines as their workers have registered them, for tools that do not have the code.

-- name: registered
-- The steps and the JSON Schema of the state of one version of a machine; nulls if its worker did not store them.
select m.steps::text as steps, m.state_schema::text as state_schema
  from gen_durable.machines m where m.fsm = :fsm::text and m.fsm_version = :version::int
