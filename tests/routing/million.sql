-- A million instances for picks by prefix: 4 namespaces of 97 types, 3 priorities, two fifths of them due at times to come, one
-- fifth ended. Neighbours are never of one type, and the namespaces look alike: `billing.` and `billing_`.
--   $1, $2   the first and the last number
insert into gen_durable.gen_durable (id, fsm, fsm_version, step, status, queue, priority, eligible_at, finished_at)
overriding system value
select n, (array['billing.', 'billing_', 'media.', 'email.'])[1 + n % 4] || 'job' || n / 4 % 97 || '.v1', 1 + (n % 13 = 0)::int,
       'run', case n % 5 when 0 then 'done' else 'runnable' end::gen_durable.durable_status, 'q' || n % 3, n % 7 % 3 * 10,
       now() + case when n % 11 < 5 then interval '1 day' + n * interval '1 s' else n * interval '-1 ms' end,
       case n % 5 when 0 then now() end
  from generate_series($1::int, $2::int) as n
