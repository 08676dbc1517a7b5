// The handlers that check.py asks for, by the Node package.
import assert from 'node:assert';
import { appendFileSync, existsSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';

import { Client, Detach, Permanent, Retry, Snooze, Worker } from '@longshore/client';

const worker = new Worker({ heartbeat: Number(process.env.HEARTBEAT ?? 6) });
const snoozed = new Set();
const note = (word) => appendFileSync(process.env.NOTES, `${word}\n`);
const language = (_payload, ctx) => {
  note(`node ${ctx.runId}`);
  return 'node';
};
/** What the process would do to which the work was handed. */
async function endsLate({ runId, token, attempt }) {
  const client = await Client.connect();
  const call = (method, said) => client.request(`runs.${method}`, { run_id: runId, token, ...said });
  if (attempt === 1) {
    await call('fail', { error: 'not yet', retry_after_ms: 200 });
  } else {
    await call('progress', { progress: { percent: 40 } });
    await call('complete', { result: { late: true } });
  }
  await client.close();
}
/** Sends bytes in both ways; returns the runs. */
async function sendsBytes() {
  const client = await Client.connect();
  const job = await client.submit('t.echo', Uint8Array.of(255), { headers: { 'content-type': 'image/png' } });
  const runs = [await client.publish('t.echo', Uint8Array.of(255)), job.run_id];
  await client.close();
  return runs;
}

worker
  .handler('t.echo', { slots: 2 }, (payload) => payload)
  .handler('t.permanent', () => {
    throw new Permanent('no suché\nat all');
  })
  .handler('t.raises', (kind) => {
    throw { stop: undefined, exit: Object.create(null), text: 'no text: \ud800' }[kind];
  })
  .handler('t.exits', async () => {
    throw Object.create(null);
  })
  .handler('t.no-json', (payload, ctx) => (payload === 'step' ? ctx.step('count', () => 1n) : { count: 1n }))
  .handler('t.large', async (payload, ctx) => {
    await ctx.step('large', () => 'x'.repeat(payload));
  })
  .handler('t.bytes', sendsBytes)
  .handler('t.retry', (_payload, ctx) => {
    if (ctx.attempt === 1) throw new Retry(0.2, 'not yet');
    return ctx.attempt;
  })
  .handler('t.snooze', (_payload, ctx) => {
    if (snoozed.has(ctx.runId)) return;
    snoozed.add(ctx.runId);
    throw new Snooze(0.2);
  })
  .handler('t.late', (_payload, ctx) => {
    endsLate(ctx);
    throw new Detach('1h');
  })
  .handler('t.progress', (_payload, ctx) => {
    ctx.progress(40);
    ctx.log('half');
  })
  .handler('t.log', (_payload, ctx) => {
    ctx.log('a\ud800');
    ctx.log('x'.repeat(2 ** 21));
  })
  .handler('t.steps', async (_payload, ctx) => {
    const result = await ctx.step('charge', () => {
      assert.strictEqual(ctx.stepKey('charge'), `${ctx.runId}/charge#1`);
      note('charged');
      return { n: 1 };
    });
    if (ctx.attempt === 1) throw new Retry(0.2);
    return result;
  })
  .handler('t.long', async () => {
    note('long');
    await sleep(7000);
  })
  .handler('t.wait', async (_payload, ctx) => {
    note('waits');
    try {
      await sleep(60_000, undefined, { signal: ctx.signal });
    } catch (error) {
      note('stopped');
      throw error;
    }
  })
  .handler('t.node', { slots: 4 }, language)
  .handler('t.shared', { slots: 4 }, language)
  .handler('t.node.away', { slots: 4 }, async ({ go }) => {
    note('away');
    while (!existsSync(go)) await sleep(20);
    note('ended');
    return 'x'.repeat(700_000);
  })
  .before((ctx) => ctx.type === 't.echo' && note('before'))
  .after(async (ctx) => ctx.type === 't.echo' && note('after'))
  .onError(() => note('on_error'));

await worker.run();
