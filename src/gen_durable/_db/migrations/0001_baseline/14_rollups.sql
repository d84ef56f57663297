-- Rollups: what workers have executed, counted per interval, and how much was due. For charts; execution does not depend on them.
--
-- A worker writes the rows of its current interval of 10 seconds again and again, with absolute counts: a statement that is sent twice
-- counts once. No other worker writes them. The collector adds rows that are older than 2 hours to rows of 5 minutes without a worker.
-- Histograms count durations: element 1 those below 1 ms, element n those from 2^(n-2) ms to below 2^(n-1) ms, the last one all longer
-- ones. Trailing zeros are left out.

-- Executions by step, outcome and next step.
create table gen_durable.step_stats (
  fsm          text collate "C" not null,
  bucket       timestamptz not null,                      -- when the interval begins
  worker       text not null,                             -- empty: the sum of all workers over 5 minutes
  incarnation  bigint not null,                           -- differs between starts of a worker; 0 if there is no worker
  version      int not null,
  step         text not null,
  outcome      text not null,                             -- as in executions, or stale: the lease was lost before the commit
  cause        text not null,                             -- as in executions; empty: none
  to_step      text not null,                             -- as in executions; empty: none, or an undo step
  n            bigint not null,                           -- executions
  started      bigint not null,                           -- of them, the first executions of an instance
  run          int[] not null,                            -- histogram of the durations of steps
  wait         int[] not null,                            -- histogram of the times from due to started; not of chained steps
  primary key (fsm, bucket, worker, incarnation, version, step, outcome, cause, to_step)
) with (fillfactor = 70);

create index step_stats_unfolded on gen_durable.step_stats (bucket) where worker <> '';
create index step_stats_folded on gen_durable.step_stats (bucket) where worker = '';

-- The same per version of a machine, and with an empty fsm and version 0 of all machines.
create table gen_durable.machine_stats (
  fsm          text collate "C" not null,
  bucket       timestamptz not null,
  worker       text not null,
  incarnation  bigint not null,
  version      int not null default 0,
  n            bigint not null,
  started      bigint not null,
  done         bigint not null,                           -- instances that ended by an execution, by status
  failed       bigint not null,
  cancelled    bigint not null,
  retried      bigint not null,                           -- executions after which the same step runs again, also after a crash
  raised       bigint not null,                           -- executions that failed by an exception, a timeout or a crash ...
  stopped      bigint not null,                           -- ... or because the code said so
  run          int[] not null,
  wait         int[] not null,
  primary key (fsm, bucket, worker, incarnation, version)
) with (fillfactor = 70);

create index machine_stats_unfolded on gen_durable.machine_stats (bucket) where worker <> '';
create index machine_stats_folded on gen_durable.machine_stats (bucket) where worker = '';

-- How much there was to do, every 15 seconds per machine, and with an empty fsm of all machines. 10,000 or more means "at least". The
-- collector keeps one row per 5 minutes of those that are older than 2 hours.
create table gen_durable.backlog (
  fsm          text collate "C" not null,
  bucket       timestamptz not null,
  due          bigint not null,
  executing    bigint not null,
  waiting      bigint not null,                           -- for signals or children
  is_kept      boolean not null,                          -- whether it is the one of its 5 minutes
  primary key (fsm, bucket)
);

create index backlog_thinned on gen_durable.backlog (bucket) where not is_kept;
create index backlog_kept on gen_durable.backlog (bucket) where is_kept;

-- The sum of two histograms.
create function gen_durable.add_histograms(one int[], other int[]) returns int[]
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select coalesce(array_agg(coalesce(pair.a, 0) + coalesce(pair.b, 0) order by pair.place), '{}')
    from unnest(one, other) with ordinality as pair (a, b, place)
$$;

-- A histogram without trailing zeros.
create function gen_durable.short_histogram(counts bigint[]) returns int[]
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select coalesce(array_agg(coalesce(each.n, 0)::int order by each.place) filter (where each.place <= filled.last), '{}')
    from unnest(counts) with ordinality as each (n, place)
   cross join (select max(f.place) as last from unnest(counts) with ordinality as f (n, place) where f.n > 0) filled
$$;

revoke execute on function gen_durable.add_histograms, gen_durable.short_histogram from public;
