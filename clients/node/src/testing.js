// Calls a handler without a server.

import { forPayload } from './client.js';
import { Context } from './context.js';
import { read, written } from './worker.js';

export async function run(handler, payload = null, { headers = {}, steps = new Map() } = {}) {
  const report = { result: undefined, progress: [], log: [], steps };
  const channel = {
    signal(word, body) {
      if (word === 'progress') report.progress.push(JSON.parse(body));
      else if (word === 'log') report.log.push(body.toString());
    },
    async ask(word, body) {
      const { name, n, result } = JSON.parse(body);
      const key = `${name}#${n}`;
      if (word === 'step-put') steps.set(key, result);
      return { headers: {}, body: word === 'step-get' && steps.has(key) ? JSON.stringify({ result: steps.get(key) }) : '{}' };
    },
  };
  const context = new Context({ 'Longshore-Run-Id': 'test', 'Longshore-Type': 'test', ...forPayload(headers, payload) }, channel);
  // A worker gets no Buffer, even if one was sent.
  const sent = new Uint8Array(payload instanceof Uint8Array ? payload : Buffer.from(JSON.stringify(payload)));
  const [said, body] = written(await handler(read(context, sent), context));
  report.result = 'Content-Type' in said ? body : JSON.parse(body.toString() || 'null');
  return report;
}
