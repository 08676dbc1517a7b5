// BullMQ for `longshore-bench suite`: bullmq.mjs enqueue|drain JOBS URL
// `begin` and `end` say when the clock starts and stops; `end` is followed by the version. The suite ends the process,
// once it has read what it used.
import { createRequire } from "node:module";
const require = createRequire(process.env.PEERS + "/");
const { Queue, Worker } = require("bullmq");
const version = JSON.parse(require("fs").readFileSync(process.env.PEERS + "/node_modules/bullmq/package.json")).version;

const [what, jobs, url] = [process.argv[2], Number(process.argv[3]), new URL(process.argv[4])];
const connection = { host: url.hostname, port: Number(url.port), maxRetriesPerRequest: null };
const queue = new Queue("bench", { connection });
await queue.waitUntilReady();
const done = () => console.log(`end BullMQ ${version}`);

if (what === "enqueue") {
  const one = { name: "noop", data: { pad: "x".repeat(246) } };
  console.log("begin");
  for (let sent = 0; sent < jobs; sent += 1000) {
    await queue.addBulk(Array(Math.min(1000, jobs - sent)).fill(one));
  }
  done();
  await new Promise((resolve) => setTimeout(resolve, 60_000));
}

let started = 0;
const work = async () => {
  if (started++ === 0) console.log("begin");
};
// Completed jobs are kept, as is its default.
const worker = new Worker("bench", work, { connection, concurrency: 64 });
let completed = 0;
worker.on("completed", async () => {
  if (++completed < jobs) return;
  for (;;) {
    const counts = await queue.getJobCounts("wait", "active", "completed");
    if (counts.wait + counts.active === 0 && counts.completed === jobs) return done();
  }
});
