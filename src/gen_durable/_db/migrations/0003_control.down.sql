-- Everything that controls instances from outside.
drop function gen_durable.retry(text, jsonb, text, text);
drop function gen_durable.retry(bigint, jsonb, text, text);
drop function gen_durable.restore(bigint, text);
drop function gen_durable.soft_delete(text, text, text);
drop function gen_durable.soft_delete(bigint, text, text);
drop function gen_durable.cancel(text, text, text, boolean);
drop function gen_durable.cancel(bigint, text, text, boolean);
drop function gen_durable.resolve(bigint, text);
drop function gen_durable.job_status(bigint);
drop function gen_durable.retry_rows(bigint[], text, text, text);
drop function gen_durable.restore_rows(bigint[], text);
drop function gen_durable.delete_rows(bigint[], text, text);
drop function gen_durable.cancel_rows(bigint[], text, text, boolean);
drop function gen_durable.join_parents(bigint[]);
drop function gen_durable.ungate(text[]);
drop table gen_durable.audit_events;
drop index gen_durable.gen_durable_type;
