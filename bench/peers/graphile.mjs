// Graphile Worker for `longshore-bench suite`: graphile.mjs enqueue|drain JOBS URL
// With a local queue and completion in batches, its fastest settings. `begin` and `end` as in bullmq.mjs.
import { createRequire } from "node:module";
const require = createRequire(process.env.PEERS + "/");
const { Logger, makeWorkerUtils, run } = require("graphile-worker");
const { Pool } = require("pg");
const { version } = require("graphile-worker/package.json");

const [what, jobs, connectionString] = [process.argv[2], Number(process.argv[3]), process.argv[4]];
const pgPool = new Pool({ connectionString, max: 20 });
pgPool.on("error", () => {});
pgPool.on("connect", (client) => client.on("error", () => {}));
const done = () => console.log(`end Graphile Worker ${version}`);

if (what === "enqueue") {
  const utils = await makeWorkerUtils({ pgPool });
  await utils.migrate();
  const one = { identifier: "noop", payload: { pad: "x".repeat(246) } };
  console.log("begin");
  for (let sent = 0; sent < jobs; sent += 1000) {
    await utils.addJobs(Array(Math.min(1000, jobs - sent)).fill(one));
  }
  done();
  await new Promise((resolve) => setTimeout(resolve, 60_000));
}

let started = 0;
const noop = async () => {
  if (started++ === 0) console.log("begin");
  if (started === jobs) ended();
};
async function ended() {
  for (;;) {
    // A job that has completed is deleted.
    const { rows } = await pgPool.query("select count(*)::int as left from graphile_worker._private_jobs");
    if (rows[0].left === 0) return done();
    await new Promise((resolve) => setTimeout(resolve, 2));
  }
}
await run({
  pgPool,
  taskList: { noop },
  noHandleSignals: true,
  logger: new Logger(() => () => {}),
  preset: {
    worker: {
      concurrentJobs: 64,
      localQueue: { size: 500 },
      completeJobBatchDelay: 0,
      failJobBatchDelay: 0,
    },
  },
});
