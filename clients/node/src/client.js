// Submits jobs and follows their runs.

import { connect, headersFrom } from './nats.js';

const ENDED = ['completed', 'dead', 'cancelled', 'expired', 'duplicate', 'discarded'];
/** How long one request waits: the node that has it may die. */
const WAIT = 10_000;
/** How long an endpoint waits before it answers: the field that says it, and the milliseconds without that. */
const WAITS = { 'work.next': ['wait_ms', 30_000], 'runs.wait': ['timeout_ms', 30_000], 'runs.why': ['timeout_ms', 10_000] };
const pause = (milliseconds) => new Promise((go) => setTimeout(go, milliseconds));

/** A job's headers: bytes need a content type, as without one they are read as JSON. */
export function forPayload(headers, payload) {
  const isNamed = Object.keys(headers ?? {}).some((name) => name.toLowerCase() === 'content-type');
  return payload instanceof Uint8Array && !isNamed ? { 'Content-Type': 'application/octet-stream', ...headers } : headers;
}

export class ApiError extends Error {
  constructor(code, error, message) {
    super(`${code} ${error}: ${message}`);
    Object.assign(this, { name: 'ApiError', code, error, reason: message });
  }
}

export class Client {
  constructor(connection, { tenant = 'default', namespace = 'longshore' } = {}) {
    Object.assign(this, { connection, tenant, namespace });
  }

  static async connect({ servers, tenant, namespace, ...options } = {}) {
    return new Client(await connect(servers, options), { tenant, namespace });
  }

  async close() {
    await this.connection.drain();
  }

  submit(type, payload = null, options = {}) {
    if (payload instanceof Uint8Array) {
      const headers = forPayload(options.headers, payload);
      return this.request('submit', { type, payload_base64: Buffer.from(payload).toString('base64'), ...options, headers });
    }
    return this.request('submit', 'payload_base64' in options ? { type, ...options } : { type, payload, ...options });
  }

  async publish(type, payload = null, { queue = 'main', priority = 5, headers = {} } = {}) {
    const subject = `${this.namespace}.jobs.${this.tenant}.${queue}.p${priority}.${type}`;
    const body = payload instanceof Uint8Array ? payload : JSON.stringify(payload);
    const sent = headersFrom(forPayload(headers, payload));
    const answer = (await this.connection.request(subject, body, { timeout: 10_000, headers: sent })).json();
    if (answer.error) throw new ApiError(answer.error.code, 'not_stored', answer.error.description);
    const own = Object.entries(headers).find(([name]) => name.toLowerCase() === 'longshore-run-id');
    return own?.[1] ?? `${queue}-p${priority}-${answer.seq}`;
  }

  get(runId) {
    return this.request('runs.get', { run_id: runId });
  }

  async wait(runId, timeout = 60) {
    const until = performance.now() + timeout * 1000;
    for (;;) {
      const left = until - performance.now();
      if (left <= 0) throw new Error(`run ${runId} has not ended within ${timeout} s`);
      try {
        const record = await this.request('runs.wait', { run_id: runId, timeout_ms: Math.max(1, Math.min(WAIT, Math.floor(left))) });
        if (ENDED.includes(record.state)) return record;
      } catch (error) {
        const refused = error instanceof ApiError && ![429, 503].includes(error.code) && error.error !== 'not_found';
        if (refused || this.connection.isClosed()) throw error;
        // No node answers for a moment, or it has as many waits as it takes; or the run was published just now under an id of its own, and is known once it starts.
        await pause(Math.min(200, left));
      }
    }
  }

  cancel(runId) {
    return this.request('runs.cancel', { run_id: runId });
  }

  events(runId = '*') {
    const subscription = this.connection.subscribe(`${this.namespace}.events.${this.tenant}.*.*.${runId}.>`);
    return (async function* events() {
      try {
        for await (const message of subscription) yield message.json();
      } finally {
        subscription.unsubscribe();
      }
    })();
  }

  async request(endpoint, body) {
    const [name, usual] = WAITS[endpoint] ?? ['', 10_000]; // queues.pause takes up to 12 s
    const timeout = 5_000 + (body[name] ?? usual);
    const answer = await this.connection.request(`${this.namespace}.api.${this.tenant}.${endpoint}`, JSON.stringify(body), { timeout });
    const content = answer.json();
    if (answer.headers?.has('Nats-Service-Error-Code')) throw new ApiError(content.code, content.error, content.message);
    return content;
  }
}
