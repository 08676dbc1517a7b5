// Runs jobs: a NATS micro service whose endpoints are the handlers.

import { Context, asJson, isPast } from './context.js';
import { Cancelled, Detach, Permanent, Retry, Snooze, headersOf } from './errors.js';
import { connect, headersFrom, plainHeaders } from './nats.js';
import { Service } from './service.js';

/** Lets so many in at once; the others wait in order. */
class Slots {
  #waiting = [];

  constructor(free) {
    this.free = free;
  }

  /** Whether it had to wait. */
  take() {
    if (this.free > 0) {
      this.free -= 1;
      return Promise.resolve(false);
    }
    return new Promise((go) => this.#waiting.push(() => go(true)));
  }

  giveBack() {
    const next = this.#waiting.shift();
    if (next) next();
    else this.free += 1;
  }
}

const ANSWER_WITHIN = 5000; // milliseconds
const TYPE = /^[^\s.]+(\.[^\s.]+)*$/;

export class Worker {
  #options;
  #handlers = [];
  #before = [];
  #after = [];
  #onError = [];
  #tasks = new Set();
  /** By context: the way to its node. */
  #atWork = new Map();
  /** Replies that the server may not have yet, by the way to their node. */
  #sent = new Map();
  #settling;
  #ends = false;
  #end;
  /** What a message may have, by the server; while the connection is away the client does not know it. */
  #maxPayload = 2 ** 20;

  constructor({ servers, name = 'longshore-node', tenant = '*', namespace = 'longshore', heartbeat = 30, log = console, ...options } = {}) {
    Object.assign(this, { servers, name, tenant, namespace, heartbeat, log });
    this.#options = { maxReconnectAttempts: -1, ...options };
  }

  handler(type, options, call) {
    const [{ slots = 1, ...unknown }, work] = typeof options === 'function' ? [{}, options] : [options ?? {}, call];
    if (!TYPE.test(type)) throw new TypeError(`${JSON.stringify(type)} is no type of jobs, such as email.send`);
    if (typeof work !== 'function') throw new TypeError(`the handler of ${type} is no function`);
    for (const name of Object.keys(unknown)) throw new TypeError(`${name} is no option of a handler; there is slots`);
    if (!(slots >= 1)) throw new RangeError(`slots of ${type} must be at least 1, not ${slots}`);
    if (this.#handlers.some((one) => one.type === type)) throw new TypeError(`${type} has a handler already`);
    this.#handlers.push({ type, slots, call: work, free: new Slots(slots) });
    return this;
  }

  before(hook) {
    this.#before.push(hook);
    return this;
  }

  after(hook) {
    this.#after.push(hook);
    return this;
  }

  onError(hook) {
    this.#onError.push(hook);
    return this;
  }

  stop() {
    this.#ends = true;
    // Nothing begins any more: the jobs that wait pass on a slot beyond the last one, as they go back.
    for (const { free } of this.#handlers) free.giveBack();
    this.#end?.();
  }

  async run() {
    const connection = await connect(this.servers, this.#options);
    const stop = () => this.stop();
    for (const name of ['SIGTERM', 'SIGINT']) process.on(name, stop);
    connection.closed().then(() => { // No job comes any more, and no reply is sent.
      for (const context of this.#atWork.keys()) context.cancel();
      this.stop();
    });
    this.#follow(connection);
    let refusal; // A worker without its subscriptions would wait for ever.
    const refused = (error) => {
      refusal ??= error;
      this.stop();
    };
    try {
      connection.subscribe(`${this.namespace}.cancel.${this.tenant}.*`, { callback: (error, message) => (error ? refused(error) : this.#cancel(message.subject)) });
      const metadata = this.heartbeat ? { 'longshore.heartbeat': `${Math.round(this.heartbeat * 1000)}ms` } : {};
      const service = new Service(connection, { name: this.name, version: '0.1.0', metadata }, refused);
      for (const handler of this.#handlers) {
        const subject = `${this.namespace}.work.${this.tenant}.${handler.type}`;
        service.add(handler.type.replaceAll('.', '-'), subject, { 'longshore.slots': String(handler.slots) }, (message) => this.#arrived(connection, handler, message));
      }
      await connection.flush();
      if (!refusal) this.log.info(`taking jobs of ${this.#handlers.map(({ type }) => type).join(', ')}`);
      if (!this.#ends) await new Promise((end) => { this.#end = end; });
      await service.stop();
      await Promise.allSettled(this.#tasks);
      if (connection.isClosed()) throw (await connection.closed()) ?? new Error('the connection to NATS is closed');
    } finally {
      await connection.drain().catch(() => connection.close()); // It is away, or closed already.
      for (const name of ['SIGTERM', 'SIGINT']) process.off(name, stop);
    }
    if (refusal) throw refusal;
  }

  async #arrived(connection, handler, message) {
    const headers = plainHeaders(message.headers);
    // No job: another client had the server send something here.
    if (!Object.keys(headers).some((name) => name.toLowerCase() === 'longshore-run-id') || !message.reply) return false;
    return this.#begin(this.#job(connection, handler, headers, message.reply, message.data));
  }

  /** The end of the worker waits for it. */
  #begin(task) {
    this.#tasks.add(task);
    return task.finally(() => this.#tasks.delete(task));
  }

  /** Replies may be lost with an old connection, and nodes may take handlers for gone with it. */
  async #follow(connection) {
    for await (const { type } of connection.status()) {
      if (type !== 'reconnect') continue;
      for (const [channel, send] of this.#sent) {
        this.#sent.delete(channel);
        this.#begin(this.#replyAgain(connection, channel, send).catch(() => {})); // It is closed.
      }
      this.#show(connection, 3);
    }
  }

  /** Signals that the jobs are worked on; a node may look a moment later for the connection that got them. */
  #show(connection, times) {
    if (!times || connection.isClosed() || connection.isDraining()) return;
    for (const channel of this.#atWork.values()) channel.signal('started', ''); // A heartbeat would promise more of them.
    setTimeout(() => this.#show(connection, times - 1), 2000).unref();
  }

  /**
   * Forgets what the server has, with one question for all replies before it. Refused if the connection is lost, with
   * what nats.js had to send: those are looked after once there is another.
   */
  async #settle(connection) {
    while (this.#sent.size) {
      const before = [...this.#sent.keys()];
      await connection.flush();
      for (const channel of before) this.#sent.delete(channel);
    }
  }

  /** Replies until the node says that the attempt is over, or says nothing for too long. */
  async #replyAgain(connection, channel, send) {
    const until = performance.now() + (this.heartbeat || 30) * 1000;
    while (performance.now() < until && !connection.isClosed()) {
      const isOver = await ask({}, channel, 'heartbeat', ANSWER_WITHIN);
      if (isOver) return;
      if (isOver === false) send();
      else await new Promise((go) => setTimeout(go, 500)); // The node may be away, too.
    }
  }

  async #job(connection, handler, headers, subject, body) {
    const channel = {
      signal: (word, said) => connection.publish(subject, said, { headers: headersFrom({ 'Longshore-Signal': word }) }),
      ask: async (word, said, timeout) => {
        const answer = await connection.request(subject, said, { timeout, headers: headersFrom({ 'Longshore-Signal': word }) });
        const lower = Object.entries(plainHeaders(answer.headers)).map(([name, text]) => [name.toLowerCase(), text]);
        return { headers: Object.fromEntries(lower), body: answer.string() };
      },
    };
    const reply = (said, answer = '') => {
      const send = () => connection.publish(subject, answer, { headers: headersFrom(said) });
      send();
      this.#sent.set(channel, send);
      this.#settling ??= this.#settle(connection).catch(() => {}).finally(() => { this.#settling = undefined; });
    };
    const hasWaited = await handler.free.take();
    try {
      if (this.#ends) { // Not begun: another worker is to have it.
        reply({ 'Nats-Service-Error-Code': '429', 'Nats-Service-Error': 'this worker is ending' });
        return false;
      }
      const context = new Context(headers, channel);
      if (hasWaited && await ask(context, channel, 'started', ANSWER_WITHIN)) { // Over before it began.
        reply(headersOf(new Cancelled('cancelled before it began')));
        return false;
      }
      if (!hasWaited) channel.signal('started', '');
      const beats = this.#beat(context, channel);
      this.#atWork.set(context, channel);
      let said;
      let answer;
      try {
        [said, answer] = await this.#work(handler, context, body);
      } finally {
        this.#atWork.delete(context);
        clearTimeout(beats.timer);
        beats.over = true;
      }
      this.#maxPayload = connection.info?.max_payload ?? this.#maxPayload;
      if (answer.length + 4096 > this.#maxPayload) {
        [said, answer] = [headersOf(new Permanent(`the result has ${answer.length} bytes, more than NATS takes`)), ''];
      }
      reply(said, answer);
      return !('Nats-Service-Error-Code' in said);
    } catch (error) { // Such as a thrown value without a text: without a reply the attempt would last to its time limit.
      this.log.error(`a job of ${handler.type}`, error);
      if (!connection.isClosed()) reply({ 'Nats-Service-Error-Code': '500' });
      return false;
    } finally {
      handler.free.giveBack();
    }
  }

  async #work(handler, context, body) {
    try {
      const payload = read(context, body);
      for (const hook of this.#before) await hook(context, payload);
      const result = await handler.call(payload, context);
      for (const hook of this.#after) await hook(context, result);
      return written(result);
    } catch (thrown) {
      const error = context.cancelled && thrown?.name === 'AbortError' ? new Cancelled('cancelled') : thrown;
      for (const hook of this.#onError) {
        try {
          await hook(context, error);
        } catch (problem) {
          this.log.error(`onError of run ${context.runId}`, problem);
        }
      }
      if (![Permanent, Retry, Snooze, Detach, Cancelled].some((known) => error instanceof known)) this.log.warn(`run ${context.runId}, attempt ${context.attempt}`, error);
      return [headersOf(error), ''];
    }
  }

  /** Sends heartbeats until it is over; an answer may say that the attempt is. */
  #beat(context, channel) {
    const state = { over: !this.heartbeat, timer: undefined };
    const longest = (this.heartbeat || 30) * 1000;
    let wasAnswered = false;
    let silentSince;
    const beat = async () => {
      if (state.over) return;
      const askedAt = performance.now();
      let isOver = await ask(context, channel, 'heartbeat', longest / 3);
      if (state.over) return;
      if (isOver !== undefined) {
        [wasAnswered, silentSince] = [true, undefined];
      } else {
        // The connection may be away for a while. A node that has heard a heartbeat takes the job as lost after so
        // long without another; one that may have heard none, only at the deadline.
        silentSince ??= askedAt;
        const isSilent = performance.now() - silentSince >= longest;
        isOver = isSilent && (wasAnswered || isPast(context.deadline));
        if (isOver && !context.cancelled) this.log.warn(`run ${context.runId}: no node answers for ${longest / 1000} s: its handler is to stop`);
      }
      if (isOver) context.cancel();
      state.timer = setTimeout(beat, longest / 3);
    };
    beat();
    return state;
  }

  #cancel(subject) {
    const [tenant, runId] = subject.split('.').slice(-2);
    const mine = [...this.#atWork.keys()].filter((context) => context.tenant === tenant && context.runId === runId);
    mine.sort((one, other) => one.round - other.round || one.attempt - other.attempt);
    // Of two attempts of a run the older one is meant; if it is both, the newer one's heartbeat says so.
    for (const context of mine.length > 1 ? mine.slice(0, -1) : mine) context.cancel();
  }
}

/** Sends a signal, and says whether the attempt is over; `undefined` if no node answers. */
async function ask(context, channel, word, timeout) {
  // Its node may be away for a while, and look for the reply once it is back.
  const answer = await channel.ask(word, '', timeout).catch(() => undefined);
  if (!answer) return undefined;
  context.deadline = answer.headers['longshore-attempt-deadline'] ?? context.deadline;
  return answer.headers['longshore-cancel'] === 'true';
}

/** A job's payload: a JSON value, or bytes where its content type is another. */
export function read(context, body) {
  if (context.contentType.split(';')[0].trim().toLowerCase() !== 'application/json') return body;
  try {
    return body.length ? JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(body)) : null;
  } catch (error) {
    throw new Permanent(`the payload is no JSON: ${error.message}`);
  }
}

/** The reply's headers and body for what a handler returned. */
export function written(result) {
  if (result instanceof Uint8Array) return [{ 'Content-Type': 'application/octet-stream' }, result];
  const text = result === undefined || result === null ? '' : asJson(result);
  return [{}, Buffer.from(text ?? '')];
}
