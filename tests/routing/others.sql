-- 50,000 instances beside the million, of the same types, queues and versions: 3 priorities, two fifths due at times to come, one
-- fifth ended. Neighbours are never of one type, nor due one after the other.
insert into gen_durable.gen_durable (id, fsm, fsm_version, step, status, queue, priority, eligible_at, finished_at)
overriding system value
select 2000000 + n, (array['billing.', 'billing_', 'media.', 'email.'])[1 + k % 4] || 'job' || k / 4 % 97 || '.v1',
       1 + (k % 13 = 0)::int, 'run', case when k % 5 > 0 then 'runnable' else 'done' end::gen_durable.durable_status, 'q' || k % 3,
       k % 7 % 3 * 10, now() + case when k % 11 < 5 then interval '1 day' + k * interval '1 s' else k * interval '-1 ms' end,
       case when k % 5 = 0 then now() end
  from generate_series(1, 50000) as n, lateral (select n * 7919 % 50000 as k) as row
