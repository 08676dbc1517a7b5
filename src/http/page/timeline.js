// One run as a picture: from its events, or from its record where the log no longer has them.

import { html, nothing, svg } from './vendor/lit-html.js';
import { absolute, span } from './format.js';
import { line, pill } from './widgets.js';

const WAITS = {
  schedule: ['waits for its time', 'violet'], worker: ['waits for a worker', 'grey'], retry: ['waits for the next attempt', 'amber'],
  no_handler_online: ['no handler is online', 'red'], busy: ['its handlers are busy', 'amber'], snoozed: ['snoozed by its handler', 'violet'],
  rate_limited: ['over a rate limit', 'amber'], held: ['held by a handler', 'amber'], breaker_open: ['the breaker is open', 'red'],
  paused: ['paused', 'amber'], concurrency: ['no free slot', 'amber'],
};
const ENDS = { completed: 'green', failed: 'red', released: 'grey', cancelled: 'grey', expired: 'amber', duplicate: 'grey', dlq: 'red', deferred: 'grey' };
const MOST = 80;

/** Waits and attempts, each with its beginning and end in milliseconds; the last may have no end. */
export function segments(record, events) {
  const found = [];
  let open = null;
  const end = (at, how, error) => {
    if (!open) return;
    Object.assign(open, { until: at, how, error });
    found.push(open);
    open = null;
  };
  const wait = (at, reason, more) => {
    open = { wait: reason, from: at, round: more.round };
  };
  for (const event of events) {
    const at = Date.parse(event.at);
    switch (event.event) {
      case 'scheduled': end(at); wait(at, 'schedule', event); break;
      case 'enqueued': case 'replayed': end(at); wait(at, 'worker', event); break;
      case 'deferred':
        end(at, open?.attempt ? 'deferred' : undefined);
        wait(at, event.reason, event);
        break;
      case 'started':
        end(at);
        open = { attempt: event.attempt, from: at, round: event.round, node: event.node };
        break;
      case 'released': end(at, 'released'); wait(at, 'worker', event); break;
      case 'failed':
        end(at, 'failed', event.error);
        if (event.retry_at) wait(at, 'retry', event);
        break;
      case 'completed': case 'dlq': case 'cancelled': case 'expired': case 'duplicate':
        end(at, open?.attempt ? event.event : undefined, open?.attempt ? event.error : undefined);
        break;
      default:
    }
  }
  if (open) found.push(open);
  return found.some((one) => one.attempt) || !record.attempts?.length ? found : ofRecord(record);
}

function ofRecord(record) {
  const found = [];
  let from = Date.parse(record.enqueued_at);
  for (const one of record.attempts) {
    const [started, ended] = [Date.parse(one.started_at), Date.parse(one.ended_at)];
    if (from && started > from) found.push({ wait: found.length ? 'retry' : 'worker', from, until: started, round: one.round });
    found.push({ attempt: one.attempt, round: one.round, from: started, until: ended || undefined, node: one.node, how: one.error ? 'failed' : record.state, error: one.error });
    from = ended;
  }
  return found;
}

export function timeline(record, events) {
  const all = segments(record, events);
  if (!all.length) return html`<div class="empty">Nothing has happened yet.</div>`;
  const shown = all.slice(-MOST);
  const now = Date.now();
  const begin = shown[0].from;
  const end = Math.max(...shown.map((one) => one.until ?? now), begin + 1);
  const at = (time) => ((time - begin) / (end - begin)) * 100;
  const rounds = record.round > 1;
  return html`<ol class="timeline" aria-label="Waits and attempts">${all.length > MOST ? html`<li class="faint">${all.length - MOST} earlier ones are left out</li>` : nothing}
    ${shown.map((one) => {
    const until = one.until ?? now;
    const [text, colour] = one.attempt ? [`Attempt ${one.attempt}${rounds ? ` of round ${one.round}` : ''}`, ENDS[one.how] ?? 'blue'] : WAITS[one.wait] ?? [one.wait, 'grey'];
    const width = Math.max(at(until) - at(one.from), 0.7);
    const label = html`<span class=${one.attempt ? 'strong' : ''}>${text}</span>${one.node ? html` <span class="faint">on ${one.node}</span>` : nothing}`;
    return html`<li title="${absolute(one.from)} – ${one.until ? absolute(one.until) : 'now'}"><div class="label">${label}</div>
      <svg class="bar" role="img" aria-label="${text}, ${span(until - one.from)}"><rect class="track" width="100%" height="100%" />${svg`<rect class="${colour} ${one.attempt ? '' : 'wait'}" x="${Math.min(at(one.from), 99.3)}%" width="${width}%" height="100%" />`}</svg>
      <div class="took">${span(until - one.from)}${one.until ? nothing : ' …'}</div>
      ${one.how && one.how !== 'completed' ? html`<div class="outcome">${pill(one.how === 'dlq' ? 'failed' : one.how)} ${one.error ? html`<span title=${line(one.error.message)}>${one.error.kind.replace('_', ' ')}: ${line(one.error.message)}</span>` : nothing}</div>` : nothing}</li>`;
  })}</ol>`;
}
