-- Read what has changed: for clients that wait for instances, and that watch them.

-- name: changed
-- The instances that have news, at most :most, with the place of their reader; nulls for those that do not exist. Two kinds of
-- readers: one with a row version gets any other version of the row; one without gets the end of the instance and, with :parked,
-- a row that waits for a signal or for children. `read_ended` is the number of the last execution that has ended.
-- By primary key. A renewed lease is a new row version too: the client compares what the row contains.
select reader.place as read_place, g.id as read_id, g.xmin::text as read_version,
       g.execution - (g.status = 'executing')::int as read_ended, snapshot.*
  from unnest(:ids::bigint[], :parked::boolean[], :versions::text[]) with ordinality as reader (id, parked, version, place)
  left join gen_durable.gen_durable g on g.id = reader.id
  left join gen_durable.snapshots snapshot on snapshot.id = g.id
 where g.id is null
    or case when reader.version is not null then g.xmin::text <> reader.version
            else g.finished_at is not null or reader.parked and g.status in ('awaiting_signal', 'awaiting_children') end
 limit :most::int

-- name: ended_executions
-- The executions of these instances that ended after those that a reader has seen, up to the one that its snapshot includes; at
-- most :most of each, oldest first. An execution number belongs to one record only.
select reader.place, record.*
  from unnest(:ids::bigint[], :step_seqs::bigint[], :executions::int[], :untils::int[]) with ordinality
         as reader (id, step_seq, execution, until, place)
  cross join lateral (
    select e.instance_id || ':' || e.execution as exec_id, e.instance_id as job_id, e.execution as attempt, e.lease_owner,
           e.lease_expires_at, e.status, e.leased_at, e.started_at, e.finished_at, e.step, e.step_seq,
           e.attempt as step_attempt, e.outcome, e.error, e.retried_at, e.to_step, e.cause
      from (
        (select * from gen_durable.executions c
          where c.instance_id = reader.id and c.status in ('COMMITTED', 'DONE') and c.step_seq > reader.step_seq
            and c.execution > reader.execution and c.execution <= reader.until
          order by c.step_seq limit :most::int)
        union all
        (select * from gen_durable.executions a
          where a.instance_id = reader.id and a.status = 'ABORTED' and a.step_seq > reader.step_seq
            and a.execution > reader.execution and a.execution <= reader.until
          order by a.step_seq, a.execution limit :most::int)) e
     order by e.execution limit :most::int) record
 order by reader.place, record.attempt

-- part: discover
-- For a tail: instances that may have changed, found by indexes only, each source with its own place to continue. changes.py adds
-- the conditions of the filter.
--   inserted   the next new rows; top is the largest id
--   executing  the next rows that execute
--   done …     the next rows that have ended; rows whose machine declares its retention are in another index, and are left out
(select 'top' as source, max(g.id) as id, statement_timestamp() as at from gen_durable.gen_durable g)
union all
(select 'inserted', g.id, null from gen_durable.gen_durable g
  where g.id > :after::bigint {conditions} order by g.id limit :most::int)
union all
(select 'executing', g.id, null from gen_durable.gen_durable g
  where g.status = 'executing' and g.id > :executing_after::bigint {conditions} order by g.id limit :most::int)
{ended}

-- part: ended
union all
(select '{status}', g.id, g.finished_at from gen_durable.gen_durable g
  where g.status = '{status}' and g.finished_at is not null and g.expires_at is null and g.deleted_at is null
    and g.collected_at is null and g.finished_at > :{status}_since::timestamptz {conditions}
  order by g.finished_at, g.id limit :most::int)
