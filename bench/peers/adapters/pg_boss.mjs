// pg-boss, with batches, bursts and LISTEN/NOTIFY, and a partition of its own for the queue.

import { LIMIT, isFailing, load, option, progress, serve, started } from "./adapter.mjs";

const { PgBoss, version } = load("pg-boss");
const BATCH = 1000;
const QUEUE = { partition: true, notify: true, retryLimit: 2, retryDelay: 0 };
let boss;

const handlers = {
  noop: async () => {},
  suspend: () => new Promise(setImmediate),
  limited: async () => {},
  probe: async ({ data }) => started(data.value),
  fan: async ({ data }) => {
    const leaves = Array.from({ length: data.value }, (_, index) => `leaf${index}`);
    const children = leaves.map((ref) => ({ ref, name: "bench", data: { task: "leaf" } }));
    await boss.flow([...children, { ref: "join", name: "bench", data: { task: "join" }, dependsOn: leaves }]);
  },
  leaf: async () => {},
  join: async () => {},
};
const uncounted = new Set(["probe", "fan", "leaf"]);

async function handle(jobs) {
  await Promise.all(jobs.map((job) => handlers[job.data.task](job)));
  progress.done += jobs.filter(({ data }) => !uncounted.has(data.task)).length;
}

// Each job of a batch has a result of its own; the first attempt of some fails.
const failed = new Set();
async function handleFlaky(jobs) {
  return jobs.map(({ id, data }) => {
    if (isFailing(data.value) && !failed.has(id)) {
      failed.add(id);
      return { id, status: "failed" };
    }
    progress.done += 1;
    return { id, status: "completed" };
  });
}

async function start() {
  boss = new PgBoss({
    connectionString: option("--dsn"),
    schedule: false,
    useListenNotify: true,
    flowIntervalSeconds: 1,
    max: 10,
  });
  boss.on("error", (error) => console.error(error));
  await boss.start();
}

serve({
  version,
  settings:
    "batchSize=500 (one call of the handler per batch), localConcurrency=2, burstWhenBatchFull, notify, partition, "
    + "flowIntervalSeconds=1",
  tasks: ["noop", "suspend", "flaky", "limited", "fan", "probe"],
  has_batches: true,
  // Rows of `fill` have the smallest ids; others are random. No index has unfinished jobs only.
  pending: `select exists (select from pgboss.job where name = 'bench' and state < 'completed'
                                                    and id > '00000001-0000-0000-0000-000000000000')`,
  fill: `insert into pgboss.job (name, id, data, state, completed_on, keep_until)
         select 'bench', lpad(to_hex(number), 32, '0')::uuid, '{"task": "noop"}', 'completed', now(), now() + interval '1 year'
           from generate_series(1, :rows) as number`,

  async install() {
    await start();
    await boss.createQueue("bench", QUEUE);
    await boss.stop({ graceful: false });
  },
  async open() {
    if (!boss) await start();
  },
  async insert(task, values) {
    const options = (value) => (task === "limited" ? { group: { id: "limited" } } : {});
    for (let first = 0; first < values.length; first += BATCH) {
      const jobs = values.slice(first, first + BATCH).map((value) => ({ data: { task, value }, ...options(value) }));
      await boss.insert("bench", jobs);
    }
  },
  async insertOne(task, value) {
    await boss.send("bench", { task, value });
  },
  async work(task) {
    if (!boss) await start();
    const polling = { pollingIntervalSeconds: 0.5, burstWhenBatchFull: true, localConcurrency: 2 };
    if (task === "flaky") await boss.work("bench", { ...polling, batchSize: 500, perJobResults: true }, handleFlaky);
    else if (task === "limited")
      await boss.work("bench", { ...polling, batchSize: LIMIT, groupConcurrency: LIMIT }, handle);
    else await boss.work("bench", { ...polling, batchSize: 500 }, handle);
  },
});
