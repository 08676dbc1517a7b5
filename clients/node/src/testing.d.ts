import type { Handler } from './index.js';

export interface Report {
  /** What the handler returned, as its run would have it. */
  result: unknown;
  progress: unknown[];
  log: string[];
  /** Results by `name#n`; give them to the next call to test a later attempt. */
  steps: Map<string, unknown>;
}

/** Calls a handler with a payload, as a worker would; what it throws is thrown. */
export function run(
  handler: Handler, payload?: unknown, options?: { headers?: Record<string, string>; steps?: Map<string, unknown> },
): Promise<Report>;
