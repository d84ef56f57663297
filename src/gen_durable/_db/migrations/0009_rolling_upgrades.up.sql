-- oldest code: 8
-- Which code the workers run, so that an increment that does not work with it is not applied while they live.

alter table gen_durable.workers
  add column schema_version int;                          -- the schema version that its code was written for; null: 8
