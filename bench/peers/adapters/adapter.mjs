// The program around an adapter for Node: the same protocol as adapter.py.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

export const LIMIT = 10;
export const progress = { done: 0, latencies: [] };

// CLOCK_MONOTONIC, as time.monotonic() of Python: probes may come from another process.
export const now = () => Number(process.hrtime.bigint()) / 1e9;
export const isFailing = (value) => value % 100 === 0;
export const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));

export function started(sent) {
  progress.latencies.push((now() - sent) * 1000);
  progress.done += 1;
}

export function option(name) {
  return process.argv[process.argv.indexOf(name) + 1];
}

// The packages are in the directory of --modules, not beside this file.
export function load(name) {
  const modules = option("--modules");
  const { version } = JSON.parse(readFileSync(`${modules}/node_modules/${name}/package.json`, "utf8"));
  return { version, ...createRequire(`${modules}/package.json`)(name) };
}

export function serve(adapter) {
  let failure = null;
  const operations = {
    async describe() {
      const { version, settings, tasks, has_batches, pending, fill } = adapter;
      return { version, settings, tasks, has_batches, pending, fill };
    },
    async install() {
      await adapter.install();
      return {};
    },
    async open() {
      await adapter.open();
      return {};
    },
    async insert({ task, count, value }) {
      const begun = now();
      await adapter.insert(task, Array.from({ length: count }, (_, index) => value ?? index));
      return { seconds: now() - begun };
    },
    async insert_one({ task, count }) {
      const begun = now();
      for (let number = 0; number < count; number += 1) await adapter.insertOne(task, number);
      return { seconds: now() - begun };
    },
    async send({ count, pause }) {
      for (let number = 0; number < count; number += 1) {
        await adapter.insertOne("probe", now());
        await sleep(pause);
      }
      return {};
    },
    async load({ rate, seconds }) {
      const tick = 0.05;
      const begun = now();
      let sent = 0;
      for (let passed = 0; passed < seconds; passed = now() - begun) {
        const due = Math.floor((passed + tick) * rate) - sent;
        if (due > 0) {
          await adapter.insert("noop", Array.from({ length: due }, (_, index) => index + 1));
          sent += due;
        }
        await sleep(tick);
      }
      return { sent };
    },
    async work({ task = "noop" }) {
      adapter.work(task).catch((error) => (failure = error));
      return {};
    },
    async progress() {
      if (failure) throw failure;
      return { done: progress.done };
    },
    async latencies() {
      return { latencies: progress.latencies.splice(0) };
    },
  };

  const lines = createInterface({ input: process.stdin });
  let last = Promise.resolve();
  lines.on("line", (line) => {
    const { op, ...request } = JSON.parse(line);
    last = last
      .then(() => operations[op](request))
      .catch((error) => ({ error: String(error?.stack ?? error) }))
      .then((reply) => process.stdout.write(`${JSON.stringify(reply)}\n`));
  });
  lines.on("close", () => process.exit(0));
}
