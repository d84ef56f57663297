-- Everything that controls instances from outside. What is older is everybody's again, and runs with the rights of its caller.
drop function gen_durable.revoke_producer(name);
drop function gen_durable.grant_producer(name, text[]);
drop function gen_durable.producer_rights();
alter function gen_durable.insert_from_start security invoker;
alter function gen_durable.insert_from_any_step security invoker;
alter function gen_durable.signal(bigint, text, jsonb, text, text) security invoker;
alter function gen_durable.signal(text, text, jsonb, text, text) security invoker;
grant execute on function
  gen_durable.insert_rows, gen_durable.insert_letters, gen_durable.leave_letters, gen_durable.job_word, gen_durable.max_payload,
  gen_durable.max_inbox,
  gen_durable.checked_payload, gen_durable.insert_specs, gen_durable.insert_from_start, gen_durable.insert_from_any_step,
  gen_durable.insert_all, gen_durable.insert, gen_durable.deliver,
  gen_durable.signal(bigint, text, jsonb, text, text), gen_durable.signal(text, text, jsonb, text, text) to public;
drop function gen_durable.retry(text, jsonb, text, text);
drop function gen_durable.retry(bigint, jsonb, text, text);
drop function gen_durable.restore(text, text);
drop function gen_durable.restore(bigint, text);
drop function gen_durable.soft_delete(text, text, text);
drop function gen_durable.soft_delete(bigint, text, text);
drop function gen_durable.cancel(text, text, text, boolean);
drop function gen_durable.cancel(bigint, text, text, boolean);
drop function gen_durable.resolve(bigint, text);
drop function gen_durable.job_status(text);
drop function gen_durable.job_status(bigint);
drop function gen_durable.retry_rows(bigint[], text, text, text);
drop function gen_durable.restore_rows(bigint[], text);
drop function gen_durable.refuse_key(bigint[], text, gen_durable.durable_status);
drop trigger on_deleted on gen_durable.gen_durable;
drop function gen_durable.on_deleted();
drop index gen_durable.gen_durable_deleted_live;
drop function gen_durable.end_deleted(int, text);
drop function gen_durable.delete_rows(bigint[], text, text);
drop function gen_durable.cancel_rows(bigint[], text, text, boolean);
drop function gen_durable.join_parents(bigint[]);
drop function gen_durable.checked_actor(text);
drop function gen_durable.short_reason(text);
drop table gen_durable.audit_events;
