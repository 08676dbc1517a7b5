// Rates from the node's own counters: what changed between two answers of `/metrics`.

const SUMS = {
  enqueued: 'longshore_jobs_enqueued_total',
  ended: 'longshore_runs_finished_total',
  failed: 'longshore_attempts_failed_total',
};
const TIMES = { wait: 'longshore_job_wait_seconds_bucket', run: 'longshore_attempt_duration_seconds_bucket' };
const KEPT = 150;

/** The newest rates last. */
export const seen = { since: 0, rates: [], totals: null, times: { wait: null, run: null }, queues: {} };
let readings = [];

export async function read(signal) {
  const answer = await fetch(new URL('metrics', document.baseURI), { signal, cache: 'no-store' });
  if (!answer.ok) throw new Error(`metrics: ${answer.status}`);
  add(parsed(await answer.text()), Date.now());
}

function parsed(text) {
  const reading = { sums: { enqueued: 0, ended: 0, failed: 0 }, buckets: { wait: new Map(), run: new Map() }, queues: {}, dead: undefined, started: 0 };
  for (const row of text.split('\n')) {
    if (!row || row[0] === '#') continue;
    const name = row.slice(0, row.search(/[{ ]/));
    const value = Number(row.slice(row.lastIndexOf(' ') + 1));
    for (const [sum, counter] of Object.entries(SUMS)) {
      if (name !== counter) continue;
      reading.sums[sum] += value;
      const queue = /queue="((?:[^"\\]|\\.)*)"/.exec(row)?.[1];
      if (queue) (reading.queues[queue] ??= { enqueued: 0, ended: 0, failed: 0 })[sum] += value;
    }
    for (const [time, bucket] of Object.entries(TIMES)) {
      if (name !== bucket) continue;
      const edge = /le="([^"]*)"/.exec(row)[1];
      const upTo = edge === '+Inf' ? Infinity : Number(edge);
      reading.buckets[time].set(upTo, (reading.buckets[time].get(upTo) ?? 0) + value);
    }
    if (name === 'longshore_dlq_jobs') reading.dead = value;
    if (name === 'process_start_time_seconds') reading.started = value;
  }
  return reading;
}

function add(reading, at) {
  reading.at = at;
  const before = readings.at(-1);
  // Another node answered, or this one began anew: its counters are other ones.
  if (before && reading.started !== before.started) readings = [];
  readings.push(reading);
  readings = readings.slice(-KEPT);
  seen.since = readings[0].at;
  const rates = readings.slice(1).map((now, index) => rate(readings[index], now));
  seen.rates = rates;
  const minute = readings.find((old) => at - old.at <= 60_500) ?? readings[0];
  const totals = (of, ago) => Object.fromEntries(Object.keys(SUMS).map((sum) => [sum, (of?.[sum] ?? 0) - (ago?.[sum] ?? 0)]));
  seen.totals = { ...totals(reading.sums, minute.sums), ms: at - minute.at };
  seen.queues = Object.fromEntries(Object.entries(rates.length ? reading.queues : {}).map(([queue, sums]) => [queue, totals(sums, minute.queues[queue])]));
  seen.dead = reading.dead;
  for (const time of Object.keys(TIMES)) {
    seen.times[time] = quantiles(reading.buckets[time], minute.buckets[time]) ?? quantiles(reading.buckets[time], new Map());
  }
}

function rate(before, now) {
  const seconds = (now.at - before.at) / 1000 || 1;
  const per = (sum) => (now.sums[sum] - before.sums[sum]) / seconds;
  return { enqueued: per('enqueued'), ended: per('ended'), failed: per('failed') };
}

/** The edges of the buckets that hold half, and 99 of 100, in milliseconds. */
function quantiles(now, before) {
  const edges = [...now.keys()].sort((one, other) => one - other);
  const counts = edges.map((edge) => now.get(edge) - (before.get(edge) ?? 0));
  const all = counts.at(-1);
  if (!all) return null;
  const at = (share) => edges[counts.findIndex((count) => count >= all * share)] * 1000;
  return { p50: at(0.5), p99: at(0.99) };
}
