// Runs the jobs of produce.py, one HTML file per job: node render.mjs [folder]
//
// Any number of these may run at once; each job goes to one of them. Needs Node.js 20 or later, and
// npm install @nats-io/transport-node @nats-io/services
import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import process from "node:process";

import { Svcm } from "@nats-io/services";
import { connect } from "@nats-io/transport-node";

const folder = process.argv[2] ?? "reports";
const slots = 4; // jobs at once: Longshore sends this process no more

const escaped = (text) =>
  text.replace(/[&<>"']/g, (sign) => `&#${sign.charCodeAt(0)};`);

async function render({ number, title }) {
  if (!Number.isInteger(number) || typeof title !== "string") {
    throw new TypeError("a report has a number and a title");
  }
  const page = `<!doctype html>\n<title>Report</title>\n<h1>${escaped(title)}</h1>\n`;
  const file = join(folder, `${number}.html`);
  await writeFile(file, page);
  return { file, bytes: page.length };
}

async function handle(job) {
  try {
    job.respond(JSON.stringify(await render(job.json()))); // a plain reply is success
  } catch (error) {
    // 4xx: no other attempt would help. Else it is tried again later; without an answer only after the time limit.
    const permanent = error instanceof TypeError || error instanceof SyntaxError;
    job.respondError(permanent ? 422 : 500, String(error));
  }
}

await mkdir(folder, { recursive: true });
const servers = process.env.NATS_URL || "nats://127.0.0.1:4222";
const client = await connect({ servers, maxReconnectAttempts: -1 }); // by default it gives up after ten attempts
const running = new Set();
const service = await new Svcm(client).add({
  name: "render",
  version: "1.0.0",
  metadata: { "longshore.slots": String(slots) },
});
service.addEndpoint("render", {
  subject: "longshore.work.*.report.render",
  handler: (error, job) => {
    if (error) return console.error(error);
    // Not awaited, so that the next job does not wait for this one.
    const work = handle(job).finally(() => running.delete(work));
    running.add(work);
  },
});
console.log(`rendering into ${folder}/; Ctrl-C ends`);
for (const signal of ["SIGINT", "SIGTERM"]) {
  process.once(signal, async () => {
    await service.stop(); // takes no more jobs
    await Promise.all(running);
    await client.close();
  });
}
await client.closed();
