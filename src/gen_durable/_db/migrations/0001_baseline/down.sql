-- Drop everything, with all instances.
drop function gen_durable.unwind(bigint, gen_durable.durable_status, boolean, text, jsonb, text, text, int, bigint[], text, text, boolean);
drop function gen_durable.cause_of_undo(jsonb);
drop function gen_durable.undo_error(jsonb, text, text);
drop function gen_durable.crash_redirects(jsonb, jsonb, boolean, boolean, boolean);
drop function gen_durable.redirects(jsonb, jsonb, boolean, boolean, gen_durable.durable_status);

drop table gen_durable.answered_requests;

drop function gen_durable.short_histogram(bigint[]);
drop function gen_durable.add_histograms(int[], int[]);
drop table gen_durable.backlog, gen_durable.machine_stats, gen_durable.step_stats;

drop function gen_durable.stop_batch(bigint, text, text);
drop function gen_durable.start_batch(text, jsonb, jsonb, text, text, bigint, bigint, bigint);
drop function gen_durable.batch_page(bigint, bigint, bigint, bigint[], bigint, boolean, text, text, interval);
drop function gen_durable.add_outcomes(jsonb, text[]);
drop table gen_durable.batches;

drop table gen_durable.stream_items;

drop function gen_durable.revoke_producer(name);
drop function gen_durable.grant_producer(name, text[]);
drop function gen_durable.producer_rights();

drop function gen_durable.set_queue(text, int, text, text);
drop function gen_durable.resume_queue(text, text, text);
drop function gen_durable.pause_queue(text, text, text);
drop table gen_durable.queues, gen_durable.workers;

drop function gen_durable.trigger_schedule(text, timestamptz, text, text);
drop function gen_durable.fire_schedule(text, bigint, timestamptz[], timestamptz, timestamptz, text);
drop function gen_durable.insert_scheduled(gen_durable.schedules, timestamptz[]);
drop table gen_durable.schedules;

drop function gen_durable.retry(text, jsonb, text, text);
drop function gen_durable.retry(bigint, jsonb, text, text);
drop function gen_durable.restore(text, text, text);
drop function gen_durable.restore(bigint, text, text);
drop function gen_durable.soft_delete(text, text, text);
drop function gen_durable.soft_delete(bigint, text, text);
drop function gen_durable.cancel(text, text, text, boolean, boolean);
drop function gen_durable.cancel(bigint, text, text, boolean, boolean);
drop function gen_durable.resolve(bigint, text);
drop function gen_durable.job_status(text);
drop function gen_durable.job_status(bigint);
drop function gen_durable.fork_row(bigint, bigint, text, text, int, text, bytea, text, text, jsonb);
drop function gen_durable.edit_row(bigint, text, text, bigint, int, boolean, text, text);
drop function gen_durable.retry_rows(bigint[], text, text, text, text);
drop function gen_durable.restore_rows(bigint[], text, text);
drop function gen_durable.raise_key_conflict(bigint[], text, gen_durable.durable_status);
drop trigger on_deleted on gen_durable.gen_durable;
drop function gen_durable.on_deleted();
drop function gen_durable.end_deleted(int, text);
drop function gen_durable.delete_rows(bigint[], text, text);
drop function gen_durable.cancel_rows(bigint[], text, text, boolean, boolean);

drop function gen_durable.replay_rows(bigint[], text, text, jsonb);
drop table gen_durable.received_messages, gen_durable.outbox;

drop function gen_durable.keeps_history(text, int);
drop function gen_durable.fix_barriers(bigint[]);
drop function gen_durable.join_parents(bigint[], bigint[]);
drop function gen_durable.is_known_return(bigint, bigint);
drop function gen_durable.lock_for_effect(bigint, bigint, bigint);
drop view gen_durable.gen_durable_job_state, gen_durable.gen_durable_executions;
drop table gen_durable.executions;

drop function gen_durable.signal(text, text, jsonb, text, text);
drop function gen_durable.signal(bigint, text, jsonb, text, text);
drop function gen_durable.deliver(bigint, text, text, jsonb, text, text, bigint);
drop table gen_durable.signals;

drop function gen_durable.insert(text, jsonb, text, text, int, int, timestamptz, interval, text, text[], text, text[], text, int,
  text, text, text, int);
drop function gen_durable.insert_all(jsonb);
drop function gen_durable.insert_from_any_step(jsonb);
drop function gen_durable.insert_from_start(jsonb);
drop function gen_durable.insert_specs(jsonb, boolean);
drop function gen_durable.checked_payload(jsonb, text);
drop function gen_durable.max_inbox();
drop function gen_durable.max_payload();
drop function gen_durable.job_status_name(text);
drop function gen_durable.dead_letter_failed(bigint[], int[]);
drop function gen_durable.insert_dead_letters(text[], text[], text[]);
drop function gen_durable.insert_plain_rows(text, int, text, text, text, int, timestamptz, interval, int, text[], text[], bigint[],
  bigint[]);
drop function gen_durable.insert_rows(text[], int[], text[], text[], text[], int[], timestamptz[], interval[], text[],
  text[], text[], bytea[], text[], int[], bigint[], bigint[], text[], text[], int[], boolean);

drop function gen_durable.remove_limit(text, text, text, text);
drop function gen_durable.set_rate_limit(text, int, interval, int, text, text);
drop function gen_durable.set_concurrency_limit(text, int, text, text);
drop function gen_durable.apply_limit(text, text, int, int, interval, int, boolean, text, text);
drop function gen_durable.limit_changed(text, text);
drop function gen_durable.defer_throttled(text[], text[], text[], int[]);
drop function gen_durable.ungate(text[]);
drop function gen_durable.return_tokens(bigint[], bigint[], bigint[]);
drop function gen_durable.take_tokens(text[], int[], timestamptz[]);
drop function gen_durable.refill(numeric, int, interval);
drop function gen_durable.check_limits(text[], int[], boolean);
drop view gen_durable.passed_over;
drop table gen_durable.unserved, gen_durable.buckets, gen_durable.limits;

drop function gen_durable.set_audit(text, text, text);
drop function gen_durable.audit_reason(bigint, text, text, text, jsonb);
drop function gen_durable.audit_action(text, text, text, text, jsonb);
drop function gen_durable.checked_actor(text);
drop function gen_durable.short_reason(text);
drop table gen_durable.audit_events, gen_durable.settings;
drop type gen_durable.audit_level;

drop view gen_durable.snapshots;
drop function gen_durable.retention_of(text, int, gen_durable.durable_status);
drop table gen_durable.machines, gen_durable.gen_durable;
drop type gen_durable.durable_status;
