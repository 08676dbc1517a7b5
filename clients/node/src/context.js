// What a handler knows of its attempt, and says while it works.

import { Cancelled, Permanent } from './errors.js';

const STEP_ANSWER = 5_000;
const STEP_TRIES = 5;
const STEP_BYTES = 512 * 1024;
const LINE_MAX = 4096; // What a node reads of a line.

/** Whether a time as nodes write it is over; not if it is none. */
export const isPast = (moment) => Date.parse(moment) <= Date.now();

/** The result of a handler or step as JSON; where it has none, no other attempt would help. */
export function asJson(result) {
  try {
    return JSON.stringify(result);
  } catch (error) {
    throw new Permanent(`a result that is no JSON: ${error.message}`);
  }
}

/** `channel` is the way to the node that holds the job: `signal(word, body)`, and `ask(word, body, milliseconds)`, which is answered with headers in lower case and a body. */
export class Context {
  #channel;
  #stop = new AbortController();
  #uses = new Map();
  #open = new Set();

  constructor(headers, channel) {
    const own = Object.fromEntries(Object.entries(headers).map(([name, text]) => [name.toLowerCase(), text]));
    const count = (name) => Number(own[name] || 1);
    this.headers = { ...headers };
    this.runId = own['longshore-run-id'] ?? '';
    this.tenant = own['longshore-tenant'] ?? 'default';
    this.type = own['longshore-type'] ?? '';
    this.queue = own['longshore-queue'] ?? '';
    this.round = count('longshore-round');
    this.attempt = count('longshore-attempt');
    this.maxAttempts = count('longshore-max-attempts');
    this.deadline = own['longshore-attempt-deadline'] ?? '';
    this.token = own['longshore-attempt-token'] ?? '';
    this.contentType = own['content-type'] ?? 'application/json';
    this.#channel = channel;
  }

  get signal() {
    return this.#stop.signal;
  }

  get cancelled() {
    return this.signal.aborted;
  }

  progress(value) {
    const body = Buffer.from(JSON.stringify(typeof value === 'number' ? { percent: value } : value));
    if (body.length > 4096) throw new RangeError(`progress has ${body.length} bytes, more than 4,096`);
    this.#channel.signal('progress', body);
  }

  log(line) {
    this.#channel.signal('log', Buffer.from(String(line).slice(0, LINE_MAX)));
  }

  stepKey(name) {
    const uses = this.#uses.get(name) ?? 0;
    return `${this.runId}/${name}#${this.#open.has(name) ? uses : uses + 1}`;
  }

  async step(name, work) {
    if (!/^[A-Za-z0-9_-]{1,64}$/.test(name)) throw new RangeError(`a step's name has 1 to 64 of A-Z a-z 0-9 _ -, not ${JSON.stringify(name)}`);
    if (this.#open.has(name)) throw new Error(`step ${name} is at work already: steps at the same time need names of their own`);
    const n = (this.#uses.get(name) ?? 0) + 1;
    this.#uses.set(name, n);
    this.#open.add(name);
    try {
      const stored = await this.#ask('step-get', { name, n });
      if ('result' in stored) return stored.result;
      // What JSON cannot say is null, now as in a later attempt.
      const text = asJson((await work()) ?? null) ?? 'null';
      const bytes = Buffer.byteLength(text);
      if (bytes > STEP_BYTES) throw new Permanent(`the result of step ${name} has ${bytes} bytes, more than ${STEP_BYTES}`);
      const result = JSON.parse(text);
      await this.#ask('step-put', { name, n, result });
      return result;
    } finally {
      this.#open.delete(name);
    }
  }

  async #ask(word, request) {
    let problem = 'no node answers';
    for (let nth = 0; nth < STEP_TRIES || !isPast(this.deadline); nth += 1) { // The clock may be wrong.
      if (this.cancelled) throw new Cancelled('the attempt was asked to stop');
      const answer = await this.#channel.ask(word, Buffer.from(JSON.stringify(request)), STEP_ANSWER).catch((error) => {
        problem = `no node answers: ${error.message}`;
      });
      if (answer) {
        if (answer.headers['longshore-cancel'] === 'true') {
          this.cancel();
          throw new Cancelled('the attempt was asked to stop, or has lost its lease');
        }
        const code = answer.headers['nats-service-error-code'];
        if (code === undefined) return JSON.parse(answer.body || '{}');
        problem = answer.headers['nats-service-error'] ?? code;
        if (code !== '503') break;
        if (nth === 1) this.log(`step ${request.name} is asked about again: ${problem}`);
      }
      await new Promise((go) => setTimeout(go, 200 * 2 ** Math.min(nth, 4)));
    }
    throw new Error(`${word} of ${request.name}: ${problem}`);
  }

  /** Has the handler stopped: its `signal` is aborted. */
  cancel() {
    if (!this.cancelled) this.#stop.abort(new Cancelled('cancelled'));
  }
}
