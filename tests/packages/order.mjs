// The job of five steps that tests/steps.rs interrupts between them, by the Node package.
import { randomUUID } from 'node:crypto';
import { appendFileSync, existsSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';

import { Worker } from '@longshore/client';

const worker = new Worker({ heartbeat: 1.5 });
const note = (...words) => appendFileSync(process.env.NOTES, `${words.join(' ')}\n`);

/** Waits where the job is to be interrupted, until that has happened. */
async function comesTo(step, place, job, ctx) {
  if (step !== job.step || place !== job.place || existsSync(job.go)) return;
  note('waits', ctx.runId);
  while (!existsSync(job.go)) await sleep(10);
}

worker.handler('order', { slots: 50 }, async (job, ctx) => {
  note('begins', ctx.runId);
  const results = [];
  for (const step of ['reserve', 'charge', 'invoice', 'ship', 'mail']) {
    const result = await ctx.step(step, async () => {
      const done = randomUUID();
      note('did', ctx.runId, step, done);
      await comesTo(step, 'done', job, ctx);
      return done;
    });
    results.push(result);
    note('stored', ctx.runId, step, result);
    await comesTo(step, 'stored', job, ctx);
  }
  return results;
});

await worker.run();
