// A NATS micro service, so that nodes find its endpoints (ADR 32 of NATS).

import { randomUUID } from 'node:crypto';

const QUEUE = 'q';

export class Service {
  #connection;
  #identity;
  #refused;
  #endpoints = [];
  #started = new Date().toISOString();
  #subscriptions = [];

  /** `refused` is called with the error if NATS refuses a subscription. */
  constructor(connection, { name, version, metadata }, refused) {
    this.#connection = connection;
    this.#refused = refused;
    this.#identity = { name, id: randomUUID(), version, metadata };
    for (const verb of ['PING', 'INFO', 'STATS']) {
      for (const subject of [`$SRV.${verb}`, `$SRV.${verb}.${name}`, `$SRV.${verb}.${name}.${this.#identity.id}`]) {
        this.#subscriptions.push(connection.subscribe(subject, { callback: (error, message) => (error ? refused(error) : message.respond(JSON.stringify(this.#says(verb)))) }));
      }
    }
  }

  /** Calls `handler` with each message; it returns a promise of whether that went well. */
  add(name, subject, metadata, handler) {
    const endpoint = { name, subject, metadata, requests: 0, errors: 0, nanoseconds: 0 };
    const callback = async (error, message) => {
      if (error) {
        this.#refused(error);
        return;
      }
      const begun = performance.now();
      endpoint.requests += 1;
      if (!(await handler(message))) endpoint.errors += 1;
      endpoint.nanoseconds += Math.round((performance.now() - begun) * 1e6);
    };
    this.#endpoints.push(endpoint);
    this.#subscriptions.push(this.#connection.subscribe(subject, { queue: QUEUE, callback }));
  }

  /** Nothing more arrives; what had arrived is with the handlers. */
  async stop() {
    await Promise.all(this.#subscriptions.filter((one) => !one.isClosed()).map((one) => one.drain()));
  }

  #says(verb) {
    const type = `io.nats.micro.v1.${verb.toLowerCase()}_response`;
    const shown = ({ name, subject, metadata }) => ({ name, subject, queue_group: QUEUE, metadata });
    const counted = ({ name, subject, requests, errors, nanoseconds }) => ({
      name, subject, queue_group: QUEUE, num_requests: requests, num_errors: errors, last_error: '', processing_time: nanoseconds,
      average_processing_time: requests ? Math.round(nanoseconds / requests) : 0,
    });
    if (verb === 'INFO') return { type, ...this.#identity, description: 'Handlers of Longshore', endpoints: this.#endpoints.map(shown) };
    if (verb === 'STATS') return { type, ...this.#identity, started: this.#started, endpoints: this.#endpoints.map(counted) };
    return { type, ...this.#identity };
  }
}
