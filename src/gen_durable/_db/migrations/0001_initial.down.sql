-- Everything that the initial version made, and all instances with it.
drop function gen_durable.signal(text, text, jsonb, text, text);
drop function gen_durable.signal(bigint, text, jsonb, text, text);
drop function gen_durable.deliver(bigint, text, text, jsonb, text, text, bigint);
drop function gen_durable.insert(text, jsonb, text, text, int, int, timestamptz, interval, text, text[], text, text[], text, int,
  text, text, text, int);
drop function gen_durable.insert_all(jsonb);
drop function gen_durable.insert_from_any_step(jsonb);
drop function gen_durable.insert_from_start(jsonb);
drop function gen_durable.insert_specs(jsonb, boolean);
drop function gen_durable.checked_payload(jsonb, text);
drop function gen_durable.max_inbox();
drop function gen_durable.max_payload();
drop function gen_durable.job_word(text);
drop function gen_durable.leave_letters(bigint[], int[]);
drop function gen_durable.insert_letters(text[], text[], text[]);
drop function gen_durable.insert_rows(text[], int[], text[], text[], text[], int[], timestamptz[], interval[], text[],
  text[], text[], bytea[], text[], int[], bigint[], bigint[], text[], text[], int[]);
drop view gen_durable.snapshots;
drop table gen_durable.machines, gen_durable.signals, gen_durable.gen_durable;
drop type gen_durable.durable_status;
