-- Schedules: find due ones, fire them, change them. Guard: the revision that the writer has read; every write sets a new one.

-- part: columns
s.name, s.revision, s.cron, s.every, s.tz, s.anchor_at, s.missed, s.overlap, s.spec::text as spec, s.next_at, s.last_fire_time,
       s.last_fired_at, s.last_id, s.fired_count, s.last_error, s.paused_at, s.pause_reason, s.paused_by, s.inserted_at,
       s.updated_at

-- name: due_schedules
-- Schedules whose fire time has come, or comes :within that interval, the longest due first; with the current time. :ahead is
-- zero except for the clock of a test.
select {columns}, statement_timestamp() + :ahead::interval as now
  from gen_durable.schedules s
 where s.paused_at is null and s.next_at <= statement_timestamp() + :ahead::interval + :within::interval
   and s.revision <> all (:except_revisions::bigint[])
 order by s.next_at, s.name limit :limit::int

-- name: fire_schedule
-- Insert the instances of due fire times and set the next fire time, if the revision has not changed.
select is_busy, ids, are_new, queue
  from gen_durable.fire_schedule(:name::text, :revision::bigint, :fire_times::timestamptz[], :passed_at::timestamptz,
                                 :next_at::timestamptz, :problem::text)

-- name: trigger_schedule
-- Insert one instance now, outside of the timetable.
select id, inserted, queue
  from gen_durable.trigger_schedule(:name::text, statement_timestamp() + :ahead::interval, :reason::text, :actor::text)

-- name: list_schedules
-- All schedules, by name.
select {columns} from gen_durable.schedules s order by s.name

-- name: find_schedule
-- One schedule, or nulls; with the current time.
select {columns}, statement_timestamp() + :ahead::interval as now
  from (select) as one left join gen_durable.schedules s on s.name = :name::text

-- name: put_schedule
-- Create a schedule, or replace its definition if the revision has not changed. A paused one stays paused.
insert into gen_durable.schedules (name, cron, every, tz, missed, overlap, spec, anchor_at, next_at)
values (:name::text, :cron::text, :every::interval, :tz::text, :missed::text, :overlap::text, :spec::text::jsonb,
        :anchor_at::timestamptz, :next_at::timestamptz)
    on conflict (name) do update
   set cron = excluded.cron, every = excluded.every, tz = excluded.tz, missed = excluded.missed, overlap = excluded.overlap,
       spec = excluded.spec, anchor_at = excluded.anchor_at, next_at = excluded.next_at,
       revision = default, updated_at = statement_timestamp()
 where schedules.revision = :revision::bigint
returning name, gen_durable.audit_action('schedule:' || name, 'set', :reason::text, :actor::text)

-- name: pause_schedule
-- Pause a schedule. If it is already paused, the first reason stays.
update gen_durable.schedules s
   set paused_at = statement_timestamp(), pause_reason = :reason::text, paused_by = :actor::text,
       revision = default, updated_at = statement_timestamp()
 where s.name = :name::text and s.paused_at is null
returning s.name, gen_durable.audit_action('schedule:' || s.name, 'paused', :reason::text, :actor::text)

-- name: resume_schedule
-- Resume a schedule at the next fire time in the future, if the revision has not changed.
update gen_durable.schedules s
   set paused_at = null, pause_reason = null, paused_by = null, next_at = :next_at::timestamptz,
       revision = default, updated_at = statement_timestamp()
 where s.name = :name::text and s.revision = :revision::bigint
returning s.name, gen_durable.audit_action('schedule:' || s.name, 'resumed', :reason::text, :actor::text)

-- name: delete_schedule
-- Delete a schedule; its instances stay.
delete from gen_durable.schedules s where s.name = :name::text
returning s.name, gen_durable.audit_action('schedule:' || s.name, 'removed', :reason::text, :actor::text)
