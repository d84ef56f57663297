-- A million instances that are urgent and have time, and 50,000 others, for picks by prefix and by queue: 4 namespaces of 97
-- types, of the others 3 priorities, two fifths due at times to come, one fifth ended. Neighbours are never of one type, and the
-- namespaces look alike: `billing.` and `billing_`.
--   $1, $2   the first and the last number; one of 21 is one of the others
insert into gen_durable.gen_durable (id, fsm, fsm_version, step, status, queue, priority, eligible_at, finished_at)
overriding system value
select n, (array['billing.', 'billing_', 'media.', 'email.'])[1 + k % 4] || 'job' || k / 4 % 97 || '.v1', 1 + (k % 13 = 0)::int,
       'run', case when is_urgent or k % 5 > 0 then 'runnable' else 'done' end::gen_durable.durable_status, 'q' || k % 3,
       case when is_urgent then -100 else k % 7 % 3 * 10 end,
       now() + case when is_urgent or k % 11 < 5 then interval '1 day' + k * interval '1 s' else k * interval '-1 ms' end,
       case when not is_urgent and k % 5 = 0 then now() end
  from generate_series($1::int, $2::int) as n,
       lateral (select n % 21 > 0 as is_urgent, case n % 21 when 0 then n / 21 else n end as k) as row
