-- Every limit, and what is left in the buckets.
drop function gen_durable.remove_limit(text, text);
drop function gen_durable.set_rate_limit(text, int, interval, int);
drop function gen_durable.set_concurrency_limit(text, int);
drop function gen_durable.apply_limit(text, text, int, int, interval, int, boolean);
drop function gen_durable.limit_changed(text, text);
drop function gen_durable.ungate(text[]);
drop function gen_durable.put_off(text[], text[], text[], int[]);
drop function gen_durable.spend(text[], int[], timestamptz[]);
drop function gen_durable.refill(numeric, int, interval);
drop function gen_durable.check_limits(text[], int[], boolean);
drop table gen_durable.buckets, gen_durable.limits;
