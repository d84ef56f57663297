-- Execution records go, and with them the two views.
drop function gen_durable.lock_for_effect(bigint, bigint, bigint);
drop view gen_durable.gen_durable_job_state;
drop view gen_durable.gen_durable_executions;
drop table gen_durable.executions;
alter table gen_durable.gen_durable drop column leased_at, drop column started_at;
