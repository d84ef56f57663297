-- A million instances that are urgent and have time, for picks by prefix and by queue: 4 namespaces of 97 types, each in 3 queues,
-- a thirteenth of version 2. The namespaces look alike: `billing.` and `billing_`.
--
-- They come in the order of gen_durable_pick, and in three runs of the order of gen_durable_machine: that sorts quickly.
with type as materialized (
  select fsm, row_number() over (order by fsm collate "C") - 1 as number
    from unnest(array['billing.', 'billing_', 'media.', 'email.']) as namespace, generate_series(0, 96) as job,
         lateral (select namespace || 'job' || job || '.v1' as fsm) as named
)
insert into gen_durable.gen_durable (id, fsm, fsm_version, step, queue, priority, eligible_at) overriding system value
select n, fsm, 1 + (n > first + 793)::int, 'run', 'q' || queue, -100, now() + interval '1 day' + n * interval '1 s'
  from generate_series(0, 2) as queue,
       lateral (select fsm, (388 * queue + number) * 860 + 1 as first from type order by number) as its,
       lateral generate_series(first, first + 859) as n
