// Calls a handler without a server.

import { Context } from './context.js';
import { written } from './worker.js';

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
  const context = new Context({ 'Longshore-Run-Id': 'test', 'Longshore-Type': 'test', ...headers }, channel);
  const [said, body] = written(await handler(JSON.parse(JSON.stringify(payload)), context));
  report.result = 'Content-Type' in said ? body : JSON.parse(body.toString() || 'null');
  return report;
}
