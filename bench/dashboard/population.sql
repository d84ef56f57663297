-- One million instances of the shop (docs/screenshots/shop.py), over the last 14 days, more of them in the last hours.
--
--   n % 100   machine            what most of them are
--   0 … 39    shop.checkout      done after six steps; 48,000 due, 48,000 that wait, 26,000 failed
--   40 … 69   shop.shipment      children of the checkout with the number n - 40; done after three steps
--   70 … 84   crm.sync_contact   jobs with a concurrency key, of which 100 are taken, and a rate limit
--   85 … 92   billing.invoice    jobs with a unique key
--   93 … 95   catalog.import     jobs of a schedule, in a paused queue
--   96 … 99   media.resize       40,000 due jobs whose queue no worker serves
--
-- The instance 1,000,001 is large: 10,000 children, 3,000 executions, 300 signals, 1,000 audit events, 500 events, 500 items.

-- step: instances
insert into gen_durable.gen_durable
       (id, fsm, step, rest_step, status, state, result, queue, priority, eligible_at, step_seq, execution, attempt, awaits,
        await_deadline, has_signals, lease_token, lease_expires_at, leased_at, started_at, locked_by, progress, concurrency_key, gated,
        rate_limit, parent_id, parent_round, spawn_round, children_pending, correlation_key, correlation_scope, unique_key,
        unique_scope, schedule, last_error, error, undo_steps, compensation, cancel_reason, cancelled_by, deleted_at, delete_reason,
        inserted_at, updated_at, finished_at)
overriding system value
select one.n, kind.fsm, mix.step, case when mix.status in ('runnable', 'executing') then '' else mix.step end,
       mix.status::gen_durable.durable_status,
       case kind.fsm
         when 'shop.checkout' then jsonb_build_object(
           'number', one.n, 'email', 'customer' || one.n || '@example.org', 'card', 'visa', 'risk', (one.hash % 100) / 100.0,
           'items', jsonb_build_array(jsonb_build_object('sku', 'SKU-' || one.n % 9000, 'cents', one.n % 20000, 'quantity', 1 + one.n % 3)),
           'authorization', 'auth_' || to_hex(one.n), 'parcels', '[]'::jsonb)
         when 'shop.shipment' then jsonb_build_object('order', one.n - 40, 'number', 1, 'grams', one.n % 9000, 'label', 'LB' || one.n)
         when 'crm.sync_contact' then to_jsonb(one.n % 2000)
         when 'billing.invoice' then to_jsonb(one.n)
         else to_jsonb('source-' || one.n % 50) end,
       case when mix.status = 'done' then case kind.fsm when 'shop.checkout' then jsonb_build_object('order', one.n, 'cents', one.n % 20000)
                                                        else to_jsonb('result-' || one.n) end end,
       kind.queue, case when one.n % 50 = 0 then 10 else 0 end,
       case mix.due when 'later' then now() + (one.n % 86400 + 60) * interval '1 second'
                    when 'retry' then now() + (one.n % 600 + 5) * interval '1 second' else times.inserted_at end,
       mix.step_seq, mix.step_seq + case when mix.due = 'retry' or one.n % 10 = 1 then 1 else 0 end,
       case when mix.due = 'retry' then 1 + one.n % 3 else 0 end,
       case when mix.status = 'awaiting_signal' then array[mix.awaits] end,
       case when mix.status = 'awaiting_signal' then now() + (one.n % 100000 + 60) * interval '1 second' end,
       mix.status = 'awaiting_signal' and one.n % 20 = 0,
       case when mix.status = 'executing' then one.n end, case when mix.status = 'executing' then now() + interval '1 hour' end,
       case when mix.status = 'executing' then now() - (one.n % 40) * interval '1 second' end,
       case when mix.status = 'executing' then now() - (one.n % 40) * interval '1 second' end,
       case when mix.status = 'executing' then 'worker-' || one.n % 6 end,
       case when mix.status = 'executing' and one.n % 2 = 0 then
         jsonb_build_object('done', one.n % 100, 'total', 100, 'message', 'page ' || one.n % 100, 'at', now()) end,
       case when kind.fsm = 'crm.sync_contact' then 'tenant:' || case when mix.due = 'gated' then one.n % 100 else 100 + one.n % 2000 end end,
       coalesce(mix.due = 'gated', false), case when kind.fsm = 'crm.sync_contact' then 'crm' end,
       case when kind.fsm = 'shop.shipment' and one.n > 40 then one.n - 40 end, case when kind.fsm = 'shop.shipment' and one.n > 40 then 4 end,
       case when mix.step_seq >= 4 and kind.fsm = 'shop.checkout' then 4 end,
       case when mix.status = 'awaiting_children' then 1 else 0 end,
       case when kind.fsm = 'shop.checkout' then 'order:' || one.n end,
       case when kind.fsm = 'shop.checkout' then '{runnable,executing,awaiting_signal,awaiting_children}'::gen_durable.durable_status[] end,
       case when kind.fsm = 'billing.invoice' then convert_to('invoice:' || one.n, 'UTF8') end,
       case when kind.fsm = 'billing.invoice' then '{runnable,executing,awaiting_signal,awaiting_children}'::gen_durable.durable_status[] end,
       case when kind.fsm = 'catalog.import' then case when one.n % 2 = 0 then 'catalog-refresh' else 'nightly-invoices' end end,
       failed.message, case when failed.message is not null then jsonb_build_object('error', failed.message) end,
       case when mix.due = 'undo' then '[["reserve", "release"]]'::jsonb end,
       case when mix.due = 'undo' then jsonb_build_object('undone', '[]'::jsonb, 'end', jsonb_build_object(
         'status', 'failed', 'step', 'capture', 'error', 'card declined for ' || one.n, 'at', now())) end,
       case when mix.status = 'cancelled' then 'customer ' || one.n || ' has cancelled' end,
       case when mix.status = 'cancelled' then 'ann' end,
       case when one.n % 500 = 3 and mix.status in ('done', 'failed', 'cancelled') then times.ended_at + interval '1 minute' end,
       case when one.n % 500 = 3 and mix.status in ('done', 'failed', 'cancelled') then 'requested by the customer' end,
       times.inserted_at, times.ended_at, case when mix.status in ('done', 'failed', 'cancelled') then times.ended_at end
  from (select n, (n * 2654435761) % 1000 as hash from generate_series(1::bigint, 1000000) as n) one
  join (values (0, 39, 'shop.checkout', 'checkout'), (40, 69, 'shop.shipment', 'shipping'), (70, 84, 'crm.sync_contact', 'crm'),
               (85, 92, 'billing.invoice', 'billing'), (93, 95, 'catalog.import', 'imports'), (96, 99, 'media.resize', 'gpu'))
       as kind (low, high, fsm, queue) on one.n % 100 between kind.low and kind.high
  join (values ('shop.checkout', 0, 669, 'done', 'close', 6, null, null), ('shop.checkout', 670, 699, 'failed', 'authorize', 2, null, null),
               ('shop.checkout', 700, 719, 'failed', 'reserve', 1, null, null), ('shop.checkout', 720, 734, 'failed', 'release', 3, null, null),
               ('shop.checkout', 735, 749, 'cancelled', 'assess', 2, null, null),
               ('shop.checkout', 750, 814, 'awaiting_signal', 'assess', 2, null, 'payment_confirmed'),
               ('shop.checkout', 815, 829, 'awaiting_signal', 'swap_card', 2, null, 'new_card'),
               ('shop.checkout', 830, 839, 'awaiting_signal', 'decide', 3, null, 'review_done'),
               ('shop.checkout', 840, 869, 'awaiting_children', 'capture', 4, null, null),
               ('shop.checkout', 870, 959, 'runnable', 'reserve', 0, null, null), ('shop.checkout', 960, 989, 'runnable', 'capture', 4, null, null),
               ('shop.checkout', 990, 996, 'runnable', 'authorize', 1, 'retry', null),
               ('shop.checkout', 997, 998, 'runnable', 'release', 4, 'undo', null),
               ('shop.checkout', 999, 999, 'executing', 'authorize', 1, null, null),
               ('shop.shipment', 0, 899, 'done', 'hand_over', 3, null, null), ('shop.shipment', 900, 919, 'failed', 'book_carrier', 2, null, null),
               ('shop.shipment', 920, 969, 'awaiting_signal', 'hand_over', 2, null, 'scanned'),
               ('shop.shipment', 970, 989, 'runnable', 'pack', 0, null, null), ('shop.shipment', 990, 998, 'runnable', 'book_carrier', 1, 'retry', null),
               ('shop.shipment', 999, 999, 'executing', 'book_carrier', 1, null, null),
               ('crm.sync_contact', 0, 749, 'done', 'run', 1, null, null), ('crm.sync_contact', 750, 799, 'failed', 'run', 1, null, null),
               ('crm.sync_contact', 800, 859, 'runnable', 'run', 0, null, null), ('crm.sync_contact', 860, 929, 'runnable', 'run', 0, 'gated', null),
               ('crm.sync_contact', 930, 999, 'runnable', 'run', 0, 'later', null),
               ('billing.invoice', 0, 959, 'done', 'run', 1, null, null), ('billing.invoice', 960, 969, 'failed', 'run', 1, null, null),
               ('billing.invoice', 970, 998, 'runnable', 'run', 0, null, null), ('billing.invoice', 999, 999, 'executing', 'run', 0, null, null),
               ('catalog.import', 0, 799, 'done', 'run', 1, null, null), ('catalog.import', 800, 899, 'failed', 'run', 1, null, null),
               ('catalog.import', 900, 999, 'runnable', 'run', 0, null, null), ('media.resize', 0, 999, 'runnable', 'run', 0, null, null))
       as mix (fsm, low, high, status, step, step_seq, due, awaits) on mix.fsm = kind.fsm and one.hash between mix.low and mix.high
 cross join lateral (
   select now() - interval '14 days' * (1 - one.n / 1000010.0) ^ 2 as inserted_at,
          now() - interval '14 days' * (1 - one.n / 1000010.0) ^ 2 + (one.n % 900) * interval '10 milliseconds' as ended_at) times
 cross join lateral (
   select case when mix.status = 'failed' or mix.due = 'retry' then case mix.step
            when 'authorize' then 'GatewayTimeoutError: POST https://psp.example/v2/charges/' || one.n || ': no answer in 3 s'
            when 'reserve' then 'SKU-' || 1000 + one.n % 97 || ' is out of stock'
            when 'release' then 'not paid in time'
            when 'book_carrier' then (array['CarrierError: postcode ' || 10000 + one.n % 89999 || ' refused by dhl',
              'CarrierError: parcel "LB' || one.n || '" is too heavy: ' || one.n % 9000 || ' g',
              'ConnectError: [Errno 111] Connection refused', 'ReadTimeout: no answer from 10.0.' || one.n % 255 || '.7:443'])[1 + one.n / 100 % 4]
            else case kind.fsm when 'crm.sync_contact' then 'PermissionError: tenant ' || one.n % 2000 || ': the API key was revoked'
                               when 'catalog.import' then 'ValueError: source-' || one.n % 50 || ': row ' || one.n % 900 || ' has no price'
                               else 'TemplateError: invoice ' || one.n || ' has no address' end end end as message) failed;

-- step: the large instance
insert into gen_durable.gen_durable
       (id, fsm, step, rest_step, status, state, queue, step_seq, execution, spawn_round, children_pending, correlation_key, correlation_scope,
        has_signals, inbox_count, inbox_bytes, has_items)
overriding system value
values (1000001, 'shop.checkout', 'capture', 'capture', 'awaiting_children',
        (select jsonb_build_object('number', 1, 'email', 'large@example.org', 'parcels', '[]'::jsonb, 'items', jsonb_agg(
                  jsonb_build_object('sku', 'SKU-' || n, 'cents', n, 'quantity', 1))) from generate_series(1, 100) as n),
        'checkout', 3000, 3000, 3000, 5000, 'order:large', '{runnable,executing,awaiting_signal,awaiting_children}', true, 300, 3000, true);
insert into gen_durable.gen_durable
       (id, fsm, step, rest_step, status, state, queue, step_seq, execution, parent_id, parent_round, finished_at)
overriding system value
select n, 'shop.shipment', 'hand_over', case when n % 2 = 0 then 'hand_over' else '' end,
       case when n % 2 = 0 then 'done' else 'runnable' end::gen_durable.durable_status,
       jsonb_build_object('order', 1, 'number', n, 'grams', 100), 'shipping', 3, 3, 1000001, 3000, case when n % 2 = 0 then now() end
  from generate_series(1000002, 1010001) as n;
-- The holders of the concurrency keys of gated jobs.
insert into gen_durable.gen_durable
       (id, fsm, step, status, state, queue, execution, lease_token, lease_expires_at, leased_at, started_at, locked_by, concurrency_key,
        concurrency_slot, rate_limit)
overriding system value
select 1010002 + n, 'crm.sync_contact', 'run', 'executing', to_jsonb(n), 'crm', 1, 1, now() + interval '1 hour', now(), now(),
       'worker-' || n % 6, 'tenant:' || n, 0, 'crm'
  from generate_series(0, 99) as n;
select setval('gen_durable.gen_durable_id_seq', 1020000);

-- step: executions
-- One record per committed transition. The last one of a failed instance has its error.
insert into gen_durable.executions
       (instance_id, step_seq, execution, attempt, status, outcome, step, to_step, cause, lease_owner, leased_at, started_at, finished_at,
        error, state, state_version)
select g.id, path.seq, path.seq, 0, 'DONE', case when ends_here then 'stop' else path.outcome end, path.step,
       case when not ends_here then path.to_step end, case when ends_here then 'error' end, 'worker-' || g.id % 6,
       ended.at - interval '80 milliseconds', ended.at - interval '78 milliseconds', ended.at, case when ends_here then g.last_error end,
       case when path.fsm = 'shop.checkout' and g.id % 20 = 0 then g.state end, case when path.fsm = 'shop.checkout' and g.id % 20 = 0 then 1 end
  from gen_durable.gen_durable g
  join (values ('shop.checkout', 1, 'reserve', 'next', 'authorize'), ('shop.checkout', 2, 'authorize', 'await', 'assess'),
               ('shop.checkout', 3, 'assess', 'next', 'pack'), ('shop.checkout', 4, 'pack', 'schedule_children', 'capture'),
               ('shop.checkout', 5, 'capture', 'next', 'close'), ('shop.checkout', 6, 'close', 'done', null),
               ('shop.shipment', 1, 'pack', 'next', 'book_carrier'), ('shop.shipment', 2, 'book_carrier', 'await', 'hand_over'),
               ('shop.shipment', 3, 'hand_over', 'done', null), ('crm.sync_contact', 1, 'run', 'done', null),
               ('billing.invoice', 1, 'run', 'done', null), ('catalog.import', 1, 'run', 'done', null))
       as path (fsm, seq, step, outcome, to_step) on path.fsm = g.fsm and path.seq <= g.step_seq
 cross join lateral (select g.status = 'failed' and path.seq = g.step_seq as ends_here) which
 cross join lateral (select g.inserted_at + path.seq * interval '90 milliseconds' as at) ended
 where g.id <= 1000000;
-- An attempt of every tenth instance was tried again, and of those that retry now.
insert into gen_durable.executions
       (instance_id, step_seq, execution, attempt, status, outcome, step, cause, lease_owner, leased_at, started_at, finished_at, error)
select g.id, greatest(g.step_seq, 1), g.execution, 0, 'ABORTED', case when g.id % 400 = 1 then 'lease' else 'retry' end, g.step,
       case when g.id % 400 = 1 then 'crash' else 'error' end, 'worker-' || g.id % 6, g.inserted_at, g.inserted_at,
       g.inserted_at + interval '200 milliseconds',
       case when g.id % 400 <> 1 then coalesce(g.last_error, 'ReadTimeout: no answer from 10.0.' || g.id % 255 || '.9:443') end
  from gen_durable.gen_durable g where g.id <= 1000000 and g.step_seq > 0 and (g.id % 10 = 1 or g.attempt > 0);
insert into gen_durable.executions
       (instance_id, step_seq, execution, attempt, status, outcome, step, to_step, lease_owner, leased_at, started_at, finished_at, state, state_version)
select g.id, n, n, 0, 'DONE', case when n = 3000 then 'schedule_children' else 'next' end, 'authorize', 'authorize', 'worker-1',
       moment.at, moment.at, moment.at + interval '20 milliseconds', g.state || jsonb_build_object('risk', n), 1
  from gen_durable.gen_durable g cross join generate_series(1, 3000) as n
 cross join lateral (select now() - (3001 - n) * interval '1 second' as at) moment
 where g.id = 1000001;

-- step: signals, audit, outbox, items
insert into gen_durable.signals (target_id, name, payload)
select g.id, 'note', to_jsonb('note for ' || g.id) from gen_durable.gen_durable g where g.has_signals and g.id <= 1000000
union all select 1000001, 'note', jsonb_build_object('n', n) from generate_series(1, 300) as n;

insert into gen_durable.audit_events (instance_id, event, actor, data, created_at)
select g.id, case g.status when 'failed' then 'failed' when 'cancelled' then 'cancelled' else 'retried' end,
       case when g.status = 'cancelled' then 'ann' end,
       jsonb_build_object('step', g.step, 'error', g.last_error, 'worker', 'worker-1', 'attempt', 0, 'step_seq', g.step_seq), g.updated_at
  from gen_durable.gen_durable g
 where g.id <= 1000000 and (g.status in ('failed', 'cancelled') or g.id % 10 = 1) order by g.id;
insert into gen_durable.audit_events (instance_id, event, actor, reason, data)
select 1000001, 'signalled', 'ann', 'call ' || n, jsonb_build_object('name', 'note', 'n', n) from generate_series(1, 1000) as n;
insert into gen_durable.audit_events (subject, event, actor, reason)
select 'queue:imports', case when n % 2 = 0 then 'resumed' else 'paused' end, 'ann', 'supplier sends wrong prices' from generate_series(1, 400) as n;

insert into gen_durable.outbox (instance_id, step_seq, n, sink, type, subject, data, created_at, next_at, attempts, last_error, published_at, dead_at)
select g.id, 6, 1, case when g.id % 4 = 0 then 'kafka' else 'webhooks' end, 'order.closed.v1', g.correlation_key,
       jsonb_build_object('order', g.id), g.finished_at, g.finished_at, case when kind <> 'published' then 3 else 0 end,
       case when kind <> 'published' then '503: https://hooks.partner.example/orders' end,
       case when kind = 'published' then g.finished_at + (g.id % 300) * interval '1 millisecond' end,
       case when kind = 'dead' then g.finished_at + interval '1 minute' end
  from gen_durable.gen_durable g
 cross join lateral (select case when g.id / 100 % 90 = 7 then 'dead' when g.id / 100 % 60 = 8 then 'pending' else 'published' end as kind) labelled
 where g.fsm = 'shop.checkout' and g.status = 'done' order by g.id;
insert into gen_durable.outbox (instance_id, step_seq, n, sink, type, subject, data, published_at)
select 1000001, n, 1, 'webhooks', 'order.changed.v1', 'order:large', jsonb_build_object('n', n), now() from generate_series(1, 500) as n;

insert into gen_durable.stream_items (instance_id, stream, position, step, step_seq, execution, attempt, number, value)
select 1000001, 'log', n, 'authorize', 1, 1, 0, n, to_jsonb('line ' || n) from generate_series(1, 500) as n;

-- step: workers, batches, rollups
insert into gen_durable.workers
       (name, host, pid, version, schema_version, started_at, seen_at, expires_at, queues, capacities, in_flight, prefixes, leaves_unknown, fsms,
        fsm_versions, fsm_steps)
select 'worker-' || n, 'host-' || n, 100 + n, '1.0', 1, now() - interval '1 day', now(),
       case when n = 5 then now() - interval '1 minute' else now() + interval '1 day' end,
       '{checkout,shipping,crm,billing,imports}', '{100,100,20,10,5}', 60, '{}', false, registered.fsms, registered.versions, registered.steps
  from generate_series(0, 5) as n
 cross join (select array_agg(m.fsm) as fsms, array_agg(m.fsm_version) as versions, jsonb_agg(m.steps) as steps from gen_durable.machines m) registered;
insert into gen_durable.queues (name, is_paused, paused_at, paused_by)
values ('imports', true, now(), 'ann') on conflict (name) do update set is_paused = true, paused_at = now(), paused_by = 'ann';

-- The unfinished batch has a lease, so the dashboard does not run it.
insert into gen_durable.batches
       (verb, selection, options, actor, reason, total, newest, pages, outcomes, lease_token, runner, lease_expires_at, started_at, finished_at)
select (array['cancel', 'retry', 'delete'])[1 + n % 3], '{"version": 1, "filter": {"statuses": ["failed"]}}', '{}', 'ann', 'the provider works again',
       1000, 1000000, 4, '{"retried": 900, "locked": 100}', 1, 'host', case when n = 200 then now() + interval '1 day' end, now(),
       case when n < 200 then now() end
  from generate_series(1, 200) as n;

-- Rows of 5 minutes over 14 days, and rows of 10 seconds of four workers over the last 2 hours.
insert into gen_durable.step_stats (fsm, bucket, worker, incarnation, version, step, outcome, cause, to_step, n, started, run, wait)
select path.fsm, interval_.bucket, interval_.worker, interval_.incarnation, 1, path.step, path.outcome, path.cause, path.to_step, counted.n,
       case when path.is_first then counted.n else 0 end, array[0, 0, 0, 0, 0, counted.n / 4, counted.n - counted.n / 4]::int[],
       array[0, 0, counted.n]::int[]
  from (values ('shop.checkout', 'reserve', 'next', '', 'authorize', true, 100), ('shop.checkout', 'reserve', 'stop', 'stop', '', true, 2),
               ('shop.checkout', 'authorize', 'await', '', 'assess', false, 80), ('shop.checkout', 'authorize', 'await', '', 'swap_card', false, 9),
               ('shop.checkout', 'authorize', 'retry', 'error', '', false, 11), ('shop.checkout', 'authorize', 'stop', 'exhausted', '', false, 2),
               ('shop.checkout', 'swap_card', 'next', '', 'authorize', false, 7), ('shop.checkout', 'swap_card', 'next', '', 'release', false, 2),
               ('shop.checkout', 'assess', 'next', '', 'pack', false, 75), ('shop.checkout', 'assess', 'await', '', 'decide', false, 5),
               ('shop.checkout', 'decide', 'next', '', 'pack', false, 4), ('shop.checkout', 'pack', 'schedule_children', '', 'capture', false, 79),
               ('shop.checkout', 'capture', 'next', '', 'close', false, 79), ('shop.checkout', 'close', 'done', '', '', false, 79),
               ('shop.checkout', 'release', 'stop', 'stop', '', false, 5), ('shop.shipment', 'pack', 'next', '', 'book_carrier', true, 150),
               ('shop.shipment', 'book_carrier', 'await', '', 'hand_over', false, 145), ('shop.shipment', 'book_carrier', 'retry', 'error', '', false, 12),
               ('shop.shipment', 'hand_over', 'done', '', '', false, 140), ('crm.sync_contact', 'run', 'done', '', '', true, 100),
               ('crm.sync_contact', 'run', 'retry', 'error', '', true, 8), ('crm.sync_contact', 'run', 'stop', 'exhausted', '', false, 8),
               ('billing.invoice', 'run', 'done', '', '', true, 25), ('catalog.import', 'run', 'done', '', '', true, 3))
       as path (fsm, step, outcome, cause, to_step, is_first, n)
 cross join (
   select date_bin('5 minutes', now(), '2000-01-01') - interval '2 hours' - n * interval '5 minutes' as bucket, '' as worker, 0 as incarnation, 30 as times
     from generate_series(0, 14 * 288) as n
   union all
   select date_bin('10 seconds', now(), '2000-01-01') - n * interval '10 seconds', 'worker-' || w, w, 1
     from generate_series(0, 719) as n cross join generate_series(1, 4) as w) interval_
 cross join lateral (select greatest(path.n * interval_.times / 4, 1) as n) counted;
insert into gen_durable.machine_stats
       (fsm, bucket, worker, incarnation, version, n, started, done, failed, cancelled, retried, raised, stopped, run, wait)
select coalesce(s.fsm, ''), s.bucket, s.worker, s.incarnation, coalesce(s.version, 0), sum(s.n), sum(s.started), coalesce(sum(s.n) filter (where s.outcome = 'done'), 0),
       coalesce(sum(s.n) filter (where s.outcome = 'stop'), 0), 0, coalesce(sum(s.n) filter (where s.outcome = 'retry'), 0),
       coalesce(sum(s.n) filter (where s.cause in ('error', 'exhausted')), 0), coalesce(sum(s.n) filter (where s.cause = 'stop'), 0),
       array[0, 0, 0, 0, 0, sum(s.n)::int / 4, sum(s.n)::int], array[0, 0, sum(s.n)::int]
  from gen_durable.step_stats s
 group by grouping sets ((s.fsm, s.bucket, s.worker, s.incarnation, s.version), (s.bucket, s.worker, s.incarnation));
insert into gen_durable.backlog (fsm, bucket, due, executing, waiting, is_kept)
select machine.fsm, moment.bucket, 4000 + 500 * sin(extract(epoch from moment.bucket) / 900)::int, 60, 3000, moment.is_kept
  from (select m.fsm from gen_durable.machines m union all select '') machine
 cross join (
   select date_bin('5 minutes', now(), '2000-01-01') - interval '2 hours' - n * interval '5 minutes' as bucket, true as is_kept
     from generate_series(1, 14 * 288) as n
   union all
   select date_bin('15 seconds', now(), '2000-01-01') - n * interval '15 seconds', n % 20 = 0 from generate_series(0, 479) as n) moment
on conflict do nothing;
