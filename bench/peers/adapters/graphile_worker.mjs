// graphile-worker, with the options of its page on performance: worker.graphile.org/docs/performance

import { LIMIT, isFailing, load, option, progress, serve, started } from "./adapter.mjs";

const { Logger, makeWorkerUtils, run, version } = load("graphile-worker");
const BATCH = 1000;
const silent = new Logger(() => () => {});
let utils;

const tasks = {
  noop: async () => void (progress.done += 1),
  suspend: async () => {
    await new Promise(setImmediate);
    progress.done += 1;
  },
  flaky: async ({ value }, { job }) => {
    if (job.attempts === 1 && isFailing(value)) throw new Error("the first attempt fails");
    progress.done += 1;
  },
  limited: async () => void (progress.done += 1),
  probe: async ({ value }) => started(value),
};

// A named queue runs its jobs one at a time, so LIMIT queues run LIMIT at once.
const queueName = (task, index) => (task === "limited" ? `limited${index % LIMIT}` : undefined);

serve({
  version,
  settings: "concurrentJobs=24, maxPoolSize=25, localQueue.size=500, completeJobBatchDelay=0, failJobBatchDelay=0",
  tasks: Object.keys(tasks),
  has_batches: true,
  // Rows of `fill` have negative ids.
  pending: "select exists (select from graphile_worker._private_jobs where id > 0)",
  fill: `insert into graphile_worker._private_jobs (id, task_id, run_at) overriding system value
         select -number, task.id, now() + interval '1 year'
           from generate_series(1, :rows) as number, graphile_worker._private_tasks as task
          where task.identifier = 'noop'`,

  async install() {
    await this.open();
    await utils.migrate();
    await utils.addJob("noop", {});
    await utils.withPgClient((client) => client.query("delete from graphile_worker._private_jobs"));
  },
  async open() {
    utils = await makeWorkerUtils({ connectionString: option("--dsn"), logger: silent });
  },
  async insert(task, values) {
    for (let first = 0; first < values.length; first += BATCH) {
      const specs = values.slice(first, first + BATCH).map((value, index) => ({
        identifier: task,
        payload: { value },
        queueName: queueName(task, index),
      }));
      await utils.addJobs(specs);
    }
  },
  async insertOne(task, value) {
    await utils.addJob(task, { value }, { queueName: queueName(task, value) });
  },
  async work(task) {
    const runner = await run({
      preset: {
        worker: {
          connectionString: option("--dsn"),
          concurrentJobs: 24,
          maxPoolSize: 25,
          // With a local queue, each named queue would run one job per poll.
          ...(task === "limited" ? {} : { localQueue: { size: 500 } }),
          completeJobBatchDelay: 0,
          failJobBatchDelay: 0,
          logger: silent,
        },
      },
      logger: silent,
      noHandleSignals: true,
      taskList: tasks,
    });
    await runner.promise;
  },
});
