-- Compatibility: live instances that some code cannot run. Every statement reads indexes only, in groups or by ids.

-- name: parked
-- Parked instances by machine, queue, version, status and step; at most :most are counted per group, all if it is null. The groups
-- are those of search.sql: one probe per group, those of ended instances included.
{search.groups}
select groups.fsm, groups.queue, groups.fsm_version, groups.status::text as status, groups.rest_step as step, counted.count
  from groups cross join lateral (
    select count(*) as count from (
      select from gen_durable.gen_durable g
       where g.fsm collate "C" = groups.fsm and g.queue = groups.queue and g.fsm_version = groups.fsm_version
         and g.status = groups.status and g.rest_step = groups.rest_step
         and g.status not in ('runnable', 'executing') and g.deleted_at is null
       limit :most::int) row) counted
 where groups.status in ('awaiting_signal', 'awaiting_children')
 order by groups.fsm, groups.fsm_version, groups.rest_step, groups.queue, groups.status

-- name: waiting
-- Runnable and executing instances by machine, queue, version and step. No index has the step of these rows. At most :most are
-- read per machine, queue and version, those that are due first; at most :most of the gated ones and of the executing ones. :most
-- null: all.
with recursive {search.runnable_groups}, live as (
  select groups.fsm, groups.queue, groups.fsm_version, due.step, due.id from runnable_groups groups cross join lateral (
    select g.step, g.id from gen_durable.gen_durable g
     where g.status = 'runnable' and not g.gated
       and g.fsm collate "C" = groups.fsm and g.queue = groups.queue and g.fsm_version = groups.fsm_version
     order by g.priority, g.eligible_at, g.id limit :most::int) due
  union all
  (select g.fsm, g.queue, g.fsm_version, g.step, g.id from gen_durable.gen_durable g
    where g.status = 'runnable' and g.gated limit :most::int)
  union all
  (select g.fsm, g.queue, g.fsm_version, g.step, g.id from gen_durable.gen_durable g where g.status = 'executing' limit :most::int)
)
select live.fsm, live.queue, live.fsm_version, live.step, count(*) as count, array_agg(live.id) as ids
  from live group by live.fsm, live.queue, live.fsm_version, live.step
 order by live.fsm, live.fsm_version, live.step, live.queue

-- name: parked_ids
-- The newest instances of groups of `parked`; :most null: all.
select found.id from unnest(:fsms::text[], :queues::text[], :versions::int[], :statuses::text[], :steps::text[])
                     as wanted (fsm, queue, version, status, step)
 cross join lateral (
   select g.id from gen_durable.gen_durable g
    where g.fsm collate "C" = wanted.fsm and g.queue = wanted.queue and g.fsm_version = wanted.version
      and g.status = wanted.status::gen_durable.durable_status and g.rest_step = wanted.step
      and g.status not in ('runnable', 'executing') and g.deleted_at is null
    order by g.id desc limit :most::int) found

-- name: states
-- What code has to read of these instances, as long as they are live.
select g.id, g.fsm, g.fsm_version, g.step, g.status::text as status, g.state::text as state, g.has_signals,
       g.undo_steps::text as undo_steps, g.checkpoint::text as checkpoint,
       case when g.status = 'awaiting_signal' then g.awaits end as awaits
  from gen_durable.gen_durable g where g.id = any (:ids::bigint[]) and g.finished_at is null and g.deleted_at is null

-- name: payloads
-- Unread signals of these instances, at most :most each; null: all.
select wanted.id as target_id, unread.name, unread.payload from unnest(:ids::bigint[]) as wanted (id)
 cross join lateral (
   select s.name, s.payload::text as payload from gen_durable.signals s
    where s.target_id = wanted.id and s.consumed_seq is null order by s.name limit :most::int) unread

-- name: children
-- Live children that these instances wait for, by machine, version and step.
select child.fsm, child.fsm_version, child.step, parent.fsm as parent, count(*) as count
  from gen_durable.gen_durable parent
  join gen_durable.gen_durable child on child.parent_id = parent.id and child.parent_round = parent.spawn_round
 where parent.id = any (:ids::bigint[]) and parent.status = 'awaiting_children' and child.finished_at is null
 group by child.fsm, child.fsm_version, child.step, parent.fsm order by parent.fsm, child.fsm, child.fsm_version, child.step

-- name: live_machines
-- The machines of live workers, and the steps at which they run rows.
select w.name, known.fsm, known.version as fsm_version,
       array(select step.name from jsonb_array_elements_text(coalesce(w.fsm_steps -> (known.number - 1)::int, '[]')) as step (name))
         as steps
  from gen_durable.workers w cross join lateral unnest(w.fsms, w.fsm_versions) with ordinality as known (fsm, version, number)
 where w.expires_at > statement_timestamp()
 order by w.name, known.fsm, known.version
