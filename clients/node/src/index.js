// Submit and run jobs of Longshore, a job queue on NATS JetStream.

export { ApiError, Client } from './client.js';
export { Context } from './context.js';
export { Cancelled, Detach, Permanent, Retry, Snooze } from './errors.js';
export { Worker } from './worker.js';
