// What `run` of the Node package gives a handler, and says of it, is what a worker would.
import assert from 'node:assert';

import { run } from '@longshore/client/testing';

const takesAStep = async (_payload, ctx) => [await ctx.step('when', () => new Date(0)), undefined];

const first = await run(takesAStep);
assert.deepStrictEqual(first.result, ['1970-01-01T00:00:00.000Z', null]);
assert.deepStrictEqual((await run(takesAStep, null, { steps: first.steps })).result, first.result);
assert.deepStrictEqual((await run(() => Uint8Array.of(255))).result, Uint8Array.of(255));
assert.strictEqual((await run(() => undefined)).result, null);

const seen = (payload, ctx) => [payload.constructor.name, [...payload], ctx.contentType];
const json = { headers: { 'content-type': 'application/json' } };
assert.deepStrictEqual((await run(seen, Buffer.of(255))).result, ['Uint8Array', [255], 'application/octet-stream']);
assert.deepStrictEqual((await run(seen, Buffer.from('[1]'), json)).result, ['Array', [1], 'application/json']);
await assert.rejects(run(seen, Uint8Array.of(34, 255, 34), json), /the payload is no JSON/);
assert.deepStrictEqual((await run(seen, [1])).result, ['Array', [1], 'application/json']);
