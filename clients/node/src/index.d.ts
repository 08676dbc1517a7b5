import type { ConnectionOptions, NatsConnection } from '@nats-io/transport-node';

/** Seconds, or a text such as "30s". */
export type Duration = number | string;

/** No other attempt would help: the run goes straight to the dead letters. */
export class Permanent extends Error {}
/** The attempt failed; the next one follows after this delay, in place of the type's back-off. */
export class Retry extends Error {
  constructor(after: Duration, message?: string);
  readonly after: string;
}
/** The job is put back for so long; no attempt is used. */
export class Snooze extends Error {
  constructor(wait: Duration);
  readonly wait: string;
}
/** The attempt goes on elsewhere, for so long without a sign; who has the token ends it. */
export class Detach extends Error {
  constructor(lasts: Duration);
  readonly lasts: string;
}
/** The attempt was asked to stop, or has lost its lease: what it does further counts no more. */
export class Cancelled extends Error {}

/** A node refused a request: `code` as in HTTP, `error` a word, `reason` what is wrong. */
export class ApiError extends Error {
  readonly code: number;
  readonly error: string;
  readonly reason: string;
}

/** One attempt of one run. */
export class Context {
  /** The job's own headers and Longshore's about the run. */
  readonly headers: Record<string, string>;
  readonly runId: string;
  readonly tenant: string;
  readonly type: string;
  readonly queue: string;
  readonly round: number;
  readonly attempt: number;
  readonly maxAttempts: number;
  /** When this attempt is over (RFC 3339). */
  readonly deadline: string;
  /** Ends this attempt by `runs.complete` or `runs.fail`, once it is detached. */
  readonly token: string;
  readonly contentType: string;
  /** Aborted when the attempt was asked to stop: for `fetch` and the like. */
  readonly signal: AbortSignal;
  readonly cancelled: boolean;
  /** An event, and kept in the record: a number is a percentage, else any JSON of at most 4,096 bytes. */
  progress(value: unknown): void;
  /** A line for the node's log and the run's record, cut at 512 bytes there. */
  log(line: string): void;
  /** An idempotency key for what the next step of this name does outside; the same in every attempt. */
  stepKey(name: string): string;
  /**
   * The result of `work`, which is not done again once its result is stored, whatever dies. It is JSON of at most 512 KiB.
   * Throws `Cancelled` if the attempt has lost its job.
   */
  step<T>(name: string, work: () => T | Promise<T>): Promise<T>;
}

export type Handler = (payload: any, ctx: Context) => unknown;

export interface WorkerOptions extends Omit<ConnectionOptions, 'servers' | 'name'> {
  /** Else NATS_URL, or nats://127.0.0.1:4222. */
  servers?: string | string[];
  name?: string;
  /** Jobs of this tenant; by default of all. */
  tenant?: string;
  namespace?: string;
  /**
   * Seconds after which a handler whose event loop stands still loses its attempt, and one whose node does not answer
   * is cancelled; 0 sends no heartbeats.
   */
  heartbeat?: number;
  log?: Pick<Console, 'info' | 'warn' | 'error'>;
}

/** A process that runs jobs of some types. */
export class Worker {
  constructor(options?: WorkerOptions);
  /** Has the function run jobs of a type, `slots` (1) of them at once. What it returns is the result: JSON, or bytes. */
  handler(type: string, call: Handler): this;
  handler(type: string, options: { slots?: number }, call: Handler): this;
  /** Called before each handler; what it throws ends the attempt. */
  before(hook: (ctx: Context, payload: unknown) => unknown): this;
  /** Called after each handler that succeeded. */
  after(hook: (ctx: Context, result: unknown) => unknown): this;
  /** Called after each handler that threw. */
  onError(hook: (ctx: Context, error: unknown) => unknown): this;
  /**
   * Runs jobs until `stop`, SIGTERM or SIGINT; jobs that run are finished then. Throws the connection's error if that is
   * closed for good.
   */
  run(): Promise<void>;
  stop(): void;
}

export interface Submitted {
  run_id: string;
  state: string;
  deduplicated: boolean;
}

/** A record or an event, as the contract has it. */
export type Json = Record<string, any>;

/** A connection for submitting jobs. */
export class Client {
  constructor(connection: NatsConnection, options?: { tenant?: string; namespace?: string });
  static connect(
    options?: Omit<ConnectionOptions, 'servers'> & { servers?: string | string[]; tenant?: string; namespace?: string },
  ): Promise<Client>;
  readonly connection: NatsConnection;
  /** Ends the connection. */
  close(): Promise<void>;
  /**
   * Submits a job, and returns once it is durable. Options are the fields of `submit` in the contract. The payload is
   * JSON, or a `Uint8Array` as it is (`application/octet-stream`, unless a header names its type).
   */
  submit(type: string, payload?: unknown, options?: Json): Promise<Submitted>;
  /** Publishes a job to JetStream, without asking a node, and returns its run id once it is durable. */
  publish(
    type: string, payload?: unknown, options?: { queue?: string; priority?: number; headers?: Record<string, string> },
  ): Promise<string>;
  /** The run's record. */
  get(runId: string): Promise<Json>;
  /** The run's record once it has ended, however; throws after so many seconds (60). */
  wait(runId: string, timeout?: number): Promise<Json>;
  /** Cancels a run that has not ended, and returns its record. */
  cancel(runId: string): Promise<Json>;
  /** Live events of one run, or of all, from the call on. */
  events(runId?: string): AsyncGenerator<Json, void>;
  /** Asks any endpoint of the API. */
  request(endpoint: string, body: Json): Promise<Json>;
}
