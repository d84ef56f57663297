-- Batches: start, lease, run a page, stop and list. Every page is guarded by the lease token and the number of committed pages.

-- part: batch
b.id, b.verb, b.options::text as options, b.actor, b.reason, b.expected, b.total, b.outcomes::text as outcomes,
case when b.stopped_at is not null then 'stopped' when b.finished_at is not null then 'finished'
     when b.lease_expires_at > statement_timestamp() then 'running' else 'pending' end as status,
b.runner, b.created_at, b.started_at, b.updated_at, b.finished_at, b.stopped_at, b.stopped_by, b.last_error,
(b.selection -> 'filter')::text as filter, b.selection ->> 'where' as where

-- name: start_batch
-- Store a batch; nothing is changed until a process runs it.
select gen_durable.start_batch(:verb::text, :selection::text::jsonb, :options::text::jsonb, :reason::text, :actor::text, :expected::bigint,
                               :total::bigint, :newest::bigint) as id

-- name: get_batch
-- One batch.
select {batch} from gen_durable.batches b where b.id = :id::bigint

-- name: list_batches
-- The newest batches.
select {batch} from gen_durable.batches b order by b.id desc limit :demand::int

-- name: selection
-- Which instances a batch visits. Not in the lists: it may be 10,000 ids.
select b.selection::text as selection from gen_durable.batches b where b.id = :id::bigint

-- name: lease_batch
-- Lease a batch that no process runs. No row: another process has the lease, or the batch has ended.
update gen_durable.batches b
   set lease_token = b.lease_token + 1, runner = :runner::text, started_at = coalesce(b.started_at, statement_timestamp()),
       lease_expires_at = statement_timestamp() + :alive_for::interval, updated_at = statement_timestamp()
 where b.id = :id::bigint and b.finished_at is null and (b.lease_expires_at > statement_timestamp()) is not true
returning b.lease_token

-- name: progress_of_batch
-- Where a batch is.
select b.lease_token, b.pages, b.newest, b.after_id, b.pending, b.levels::text as levels, b.finished_at is not null as is_over
  from gen_durable.batches b where b.id = :id::bigint

-- name: batch_page
-- Change the next instances; no row if another call did, or the lease is lost.
select queues from gen_durable.batch_page(:id::bigint, :token::bigint, :page::bigint, :ids::bigint[], :visited::bigint,
                                          :is_exhausted::boolean, :skipped::text, :problem::text, :alive_for::interval)

-- name: release_batch
-- Give up the lease after an error: the next process need not wait until it expires.
update gen_durable.batches b
   set lease_expires_at = null, runner = null, last_error = coalesce(:problem::text, b.last_error), updated_at = statement_timestamp()
 where b.id = :id::bigint and b.lease_token = :token::bigint and b.finished_at is null

-- name: record_continue
-- Audit that a caller continues a batch that has not ended.
select gen_durable.audit_action('batch:' || b.id, 'resumed', :reason::text, :actor::text, jsonb_build_object('verb', b.verb))
  from gen_durable.batches b where b.id = :id::bigint and b.finished_at is null

-- name: stop_batch
-- Stop a batch before its next page.
select gen_durable.stop_batch(:id::bigint, :reason::text, :actor::text) as is_stopped

-- name: children_of_level
-- The next children of these parents, ascending, without done ones: a failed or cancelled child may have live descendants.
select child.id from gen_durable.gen_durable child
 where child.parent_id = any (:parents::bigint[]) and child.status <> 'done' and child.id > :after::bigint
 order by child.id limit :demand::int

-- name: abandoned_batches
-- Unfinished batches that no process has run for :idle, oldest first.
select b.id, b.verb, b.total, b.updated_at as since, b.last_error
  from gen_durable.batches b
 where b.finished_at is null and (b.lease_expires_at > statement_timestamp()) is not true
   and b.updated_at < statement_timestamp() - :idle::interval
 order by b.id limit :demand::int

-- name: unfinished_batches
-- Unfinished batches, first those whose process has died: a batch that no process has run, or that ended with an error, has no lease.
select b.id, coalesce(b.lease_expires_at < statement_timestamp(), false) as is_expired
  from gen_durable.batches b where b.finished_at is null order by is_expired desc, b.id limit :demand::int
