-- Schedules go; what they have inserted stays.
drop function gen_durable.trigger_schedule(text, timestamptz);
drop function gen_durable.fire_schedule(text, bigint, timestamptz[], timestamptz, timestamptz, text);
drop function gen_durable.insert_scheduled(gen_durable.schedules, timestamptz[]);
drop index gen_durable.gen_durable_schedule;
drop table gen_durable.schedules;
