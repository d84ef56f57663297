-- 200,000 instances in every status, with signals and execution records. Neighbouring rows are of different kinds, so rows that
-- are read together are on different pages.
--
--   n % 20   what                                                   how many
--   0 … 7    ended; those of 7 had a correlation key                  80,000
--   8 … 11   due, in queues q0 … q3, priorities 0, 10 and 20          40,000
--   12, 13   due in the future, in the same queues                    20,000
--   14 … 16  parked for a signal; half of 14 with a deadline          30,000
--   17       children of 1,000 parents, ten each; one of ten executes 10,000
--   18       keyed: 1,000 keys of ten rows, the first of a key executes, the others are due, half of them gated
--   19       parents (1,000), executing (2,000), and due at times to come (7,000)
insert into gen_durable.gen_durable
       (id, fsm, step, rest_step, status, state, result, queue, priority, eligible_at, step_seq, execution, awaits, await_deadline,
        has_signals, lease_token, lease_expires_at, leased_at, locked_by, concurrency_key, concurrency_slot, gated,
        parent_id, parent_round, spawn_round, children_pending, correlation_key, correlation_scope, unique_key, unique_scope,
        inserted_at, finished_at)
overriding system value
select n, 'Machine' || n % 3, step, step, status, jsonb_build_object('order', n, 'note', repeat('x', 60)),
       case when is_ended then '{"ok": true}'::jsonb end,
       case when kind = 18 then 'keyed' else 'q' || m % 4 end,
       case when kind between 8 and 11 then m % 3 * 10 else 0 end,
       case when kind in (12, 13) or (kind = 19 and m >= 3000) then now() + interval '1 day' + n * interval '1 second'
            else now() - (200001 - n) * interval '1 ms' end,
       case when is_ended then 2 when kind >= 17 then 1 else 0 end, case when is_ended then 3 else 0 end,
       case when kind between 14 and 16 then '{paid,shipped}'::text[] end,
       case when kind = 14 and m % 2 = 0 then case when m < 200 then now() - interval '1 s' else now() + interval '1 h' end end,
       kind in (14, 15),
       case when is_executing then n end, case when is_executing then now() + interval '1 h' end,
       case when is_executing then now() end, case when is_executing then 'worker' end,
       case when kind = 18 then 'key' || m / 10 end, case when kind = 18 and is_executing then 0 end,
       kind = 18 and m % 10 > 5,
       case when kind = 17 then 20 * (m / 10) + 19 end, case when kind = 17 then 1 end,
       case when kind = 19 and m < 1000 then 1 end, case when kind = 19 and m < 1000 then 10 else 0 end,
       case when kind in (7, 14) then 'order:' || n end,
       case when kind in (7, 14) then '{runnable,executing,awaiting_signal,awaiting_children}'::gen_durable.durable_status[] end,
       case when kind = 15 then convert_to('unique:' || n, 'UTF8') end,
       case when kind = 15 then '{runnable,executing,awaiting_signal,awaiting_children}'::gen_durable.durable_status[] end,
       now() - (200001 - n) * interval '1 s', case when is_ended then now() - interval '1 h' - n * interval '1 s' end
  from (select n, n % 20 as kind, (n / 20)::int as m from generate_series(0, 199999) as n) numbered
 cross join lateral (
   select case when kind <= 7 then case m % 10 when 0 then 'failed' else 'done' end
               when kind <= 13 then 'runnable' when kind <= 16 then 'awaiting_signal'
               when kind = 17 then case when m % 10 = 0 then 'executing' when m % 10 < 6 then 'done' else 'runnable' end
               when kind = 18 then case when m % 10 = 0 then 'executing' else 'runnable' end
               when m < 1000 then 'awaiting_children' when m < 3000 then 'executing' else 'runnable' end
          ::gen_durable.durable_status as status) labelled
 cross join lateral (
   select status = 'executing' as is_executing, status in ('done', 'failed') as is_ended,
          case when n % 2000 = 7 then 'rare' else 'step' end as step) more;

select setval('gen_durable.gen_durable_id_seq', 200000);

-- Two unread signals for the parked of kind 14 and 15, and a consumed one that stays for its dedup_key.
insert into gen_durable.signals (target_id, name, dedup_key, consumed_seq)
select g.id, case copy when 1 then 'other' when 2 then 'note' else 'paid' end, case copy when 3 then 'once' end,
       case copy when 3 then 0 end
  from gen_durable.gen_durable g cross join generate_series(1, 3) as copy
 where g.has_signals;

-- Ended instances took two steps, the second one at its second attempt.
insert into gen_durable.executions (instance_id, step_seq, execution, attempt, status, outcome, step, finished_at)
select g.id, made.step_seq, made.execution, made.attempt, made.status, made.outcome, 'step', g.finished_at
  from gen_durable.gen_durable g
 cross join (values (1, 1, 0, 'DONE', 'next'), (2, 2, 0, 'ABORTED', 'retry'), (2, 3, 1, 'DONE', 'done'))
       as made (step_seq, execution, attempt, status, outcome)
 where g.finished_at is not null and g.id % 20 < 8;

-- A worker died between COMMITTED and DONE.
update gen_durable.executions set status = 'COMMITTED' where instance_id < 200 and status = 'DONE' and step_seq = 1;

-- 10,000 events for two sinks: published, 100 of them dead and 100 pending.
insert into gen_durable.outbox (instance_id, step_seq, n, sink, type, subject, data, next_at, published_at, dead_at)
select g.id, 2, 0, 'sink' || g.id / 20 % 2, 'paid', 'order', '{}', now() + interval '1 day',
       case when g.id % 2000 not in (5, 105) then now() end, case when g.id % 2000 = 5 then now() end
  from gen_durable.gen_durable g where g.id % 20 = 5;

-- 20 items in each of two streams of every hundredth instance.
insert into gen_durable.stream_items (instance_id, stream, position, step, step_seq, execution, attempt, number, value)
select instance_id, stream, position, 'ship', 2, 1, 0, position, to_jsonb(position)
  from generate_series(3, 200000, 100) instance_id, unnest('{log,tokens}'::text[]) stream, generate_series(1, 20) position;
update gen_durable.gen_durable set has_items = true where id in (select i.instance_id from gen_durable.stream_items i);
