// One run: what happened to it, why it waits or failed, and what can be done.

import { html, nothing } from './vendor/lit-html.js';
import { ask, askText, orWhy, part } from './api.js';
import { decoded, member, span, visible } from './format.js';
import { follow, REPORTS } from './stream.js';
import { changed, done, may, reload, state, toast, tried } from './state.js';
import { LATER, start } from './runs.js';
import { askFirst, button, card, changes, heading, line, list, moment, pill, source, stale, table, time } from './widgets.js';
import { timeline } from './timeline.js';
import { go, to } from './router.js';

const ENDED = ['completed', 'dead', 'cancelled', 'expired', 'duplicate', 'discarded'];
/** So many of the events that handlers report are kept: the list shows no more. */
const REPORTED = 300;
let events = [];
let reports = 0;
let note = '';
let asked = 0;
/** Whether its stream is at an end, and for which round it was opened once more. */
let ended = false;
let reopened = 0;
/**
 * What a redacted type hides, by the round in which it was asked for here.
 * @type {Record<number, any>}
 */
let revealed = {};

const resultOf = (text, record) => member(text, 'result')
  ?? (record.result_base64 === undefined ? undefined : decoded(record.result_base64) ?? record.result_base64);

async function load(route, signal) {
  const [, tenant, id] = route.parts;
  const options = { as: tenant, signal };
  const text = await askText('GET', `v1/runs/${part(id)}`, options);
  const record = JSON.parse(text);
  // It was replayed, perhaps by somebody else.
  if (ended && record.round > Math.max(reopened, events.at(-1)?.round ?? 0)) {
    reopened = record.round;
    watch(route);
  }
  const said = { record, text, result: resultOf(text, record), progress: member(text, 'progress') };
  const beside = (path) => orWhy(askText('GET', `v1/runs/${part(id)}/${path}`, options), (error) => (error.status === 403 ? null : undefined));
  const [why, payload] = await Promise.all([beside('why'), ENDED.includes(record.state) ? undefined : beside('payload')]);
  Object.assign(said, { why: why && JSON.parse(why).lines, payload });
  if (record.state === 'dead') {
    said.letter = await orWhy(ask('GET', `v1/dlq/${part(id)}`, options), (error) => { said.noLetter = error.message; });
  }
  return said;
}

function again() {
  clearTimeout(asked);
  asked = setTimeout(reload, 150);
}

function add(event) {
  events.push(event);
  if (!REPORTS.includes(event.event) || (reports += 1) < 2 * REPORTED) return;
  events = events.filter((old) => !REPORTS.includes(old.event) || (reports -= 1) < REPORTED);
  reports = REPORTED;
}

/**
 * Its events, from the first on; each may have changed the record.
 * @param {{parts: string[]}} route
 */
function watch({ parts: [, tenant, id] }) {
  [events, reports, note, ended] = [[], 0, '', false];
  follow(`v1/runs/${part(id)}/stream`, { tenant, whole: true }, (event) => {
    add(event);
    changed();
    if (!['progress', 'log'].includes(event.event)) again();
    const shown = state.data;
    if (event.event === 'progress' && shown) shown.live = event.progress;
  }, {
    reset: (said) => { note = said.reason === 'gone' ? 'The event log no longer has the beginning of this run.' : 'The stream was interrupted.'; },
    end: () => { ended = true; again(); },
  });
}

function open(route) {
  revealed = {};
  reopened = 0;
  watch(route);
  return () => clearTimeout(asked);
}

const path = (record) => `v1/runs/${part(record.run_id)}`;

const act = (text, method, where, record, body) => done(ask(method, where, { as: record.tenant, body }), text);

/** The lines `Name: value` of a form; a name alone stands for its removal. */
const pairs = (text = '') => Object.fromEntries(text.split('\n').filter((row) => row.includes(':')).map((row) => [row.slice(0, row.indexOf(':')).trim(), row.slice(row.indexOf(':') + 1).trim() || null]));
const rows = (headers) => Object.entries(headers).filter(([, value]) => value !== null).map(([name, value]) => `${name}: ${value}`).sort().join('\n');

function replay({ record, letter }) {
  const text = letter?.payload_base64 === undefined ? '' : decoded(letter.payload_base64) ?? '';
  // Line ends as a form has them: else it would differ though nobody changed it.
  const before = { payload: text.replaceAll(/\r\n?/g, '\n'), headers: letter?.headers ?? {}, queue: record.queue, priority: record.priority };
  askFirst({
    title: `Replay ${record.run_id}`,
    text: html`<p>The run begins its next round, with its history. Change what was wrong, or nothing.</p>`,
    fields: [
      { name: 'payload', label: 'Payload (JSON)', type: 'area', value: before.payload, rows: 8 },
      { name: 'queue', label: 'Queue', placeholder: record.queue },
      { name: 'priority', label: 'Priority', options: [['', `p${record.priority}, as it was`], ...Array.from({ length: 9 }, (_, at) => [at + 1, `p${at + 1}`])] },
      { name: 'headers', label: 'Headers to set, a line each', type: 'area', rows: 3, placeholder: 'Name: value', hint: html`Of the job: <span class="mono">${line(rows(before.headers).replaceAll('\n', ' · ')) || 'none'}</span>. “Name:” alone removes one.` },
    ],
    shows: (said) => [
      changes('Payload', before.payload, said.payload ?? before.payload),
      changes('Queue', before.queue, said.queue ?? before.queue),
      changes('Priority', `p${before.priority}`, `p${said.priority ?? before.priority}`),
      changes('Headers', rows(before.headers), rows({ ...before.headers, ...pairs(said.headers) })),
    ],
    label: 'Replay',
    act: async (said) => {
      const set = [];
      if (said.payload !== undefined && said.payload !== before.payload) {
        JSON.parse(said.payload);
        set.push(`"payload":${said.payload}`);
      }
      if (said.queue) set.push(`"queue":${JSON.stringify(said.queue)}`);
      if (said.priority) set.push(`"priority":${Number(said.priority)}`);
      if (said.headers) set.push(`"headers":${JSON.stringify(pairs(said.headers))}`);
      const answer = JSON.parse(await askText('POST', `v1/dlq/${part(record.run_id)}/replay`, { as: record.tenant, body: set.length ? `{"set":{${set.join(',')}}}` : '{}' }));
      if (!answer.replayed) throw new Error(answer.failed?.[0]?.error ?? 'It was not replayed.');
      toast('Replayed: its next round begins');
      open(state.route);
      reload();
    },
  });
}

function acts(data) {
  const { record } = data;
  if (!may('operate')) return nothing;
  const ended = ENDED.includes(record.state);
  const waits = ['scheduled', 'retrying'].includes(record.state);
  return html`${record.state === 'dead' && !data.noLetter ? html`${button('Replay', () => replay(data), { kind: 'primary' })}
      ${button('Discard', () => askFirst({ title: `Discard ${record.run_id}`, text: html`<p>The dead letter is deleted with its payload; the run ends as discarded.</p>`, danger: true, label: 'Discard', act: () => act('Discarded', 'DELETE', `v1/dlq/${part(record.run_id)}`, record) }), { kind: 'danger-text' })}` : nothing}
    ${waits ? html`${button('Run now', () => tried(act('It starts now', 'POST', `${path(record)}/run-now`, record)))}
      ${button('Reschedule', () => askFirst({ title: `Reschedule ${record.run_id}`, fields: LATER, label: 'Reschedule', act: (said) => act('Rescheduled', 'POST', `${path(record)}/reschedule`, record, start(said)) }))}` : nothing}
    ${ended ? button('Erase', () => askFirst({ title: `Erase ${record.run_id}`, text: html`<p>Payload, result, progress, log, tags, search values and error texts are removed for good; identity and times stay. The event log keeps its lines until they are too old.</p>`, danger: true, label: 'Erase', act: () => act('Erased', 'POST', `${path(record)}/erase`, record) }), { kind: 'quiet danger-text' })
      : button('Cancel', () => askFirst({ title: `Cancel ${record.run_id}`, text: html`<p>${record.state === 'running' ? 'Its handler is asked to stop; the run ends as cancelled whether it obeys or not.' : 'It will not start.'}</p>`, danger: true, label: 'Cancel the run', act: () => act('Cancelled', 'POST', `${path(record)}/cancel`, record) }), { kind: 'danger-text' })}`;
}

const fact = (name, value) => (value === undefined || value === nothing ? nothing : html`<div><dt>${name}</dt><dd>${value}</dd></div>`);

const other = (record, id) => html`<a class="mono" href=${to(['run', record.tenant, id])}>${id}</a>`;

/** The trace, where `http.trace_url` says that it is looked at. */
const trace = (id) => (state.session.trace_url ? html`<a class="mono" href=${state.session.trace_url.replaceAll('{trace_id}', id)} target="_blank" rel="noopener noreferrer">${id}</a>`
  : html`<span class="mono">${id}</span>`);

const facts = (record) => html`<dl class="facts">
  ${fact('Type', html`<a href=${to('runs', { type: record.type })}>${record.type}</a>`)}
  ${fact('Queue', html`<a href=${to('runs', { queue: record.queue })}>${record.queue}</a> p${record.priority}`)}
  ${fact('Tenant', record.tenant)}
  ${fact('Attempt', `${record.attempt ?? 0} of ${record.max_attempts}${record.round > 1 ? `, round ${record.round}` : ''}`)}
  ${fact('Submitted', record.submitted_at ? time(record.submitted_at) : undefined)}
  ${fact('Enqueued', record.enqueued_at ? time(record.enqueued_at) : undefined)}
  ${fact('Due', record.run_at && !record.ended_at ? time(record.run_at) : undefined)}
  ${fact('Started', record.started_at ? time(record.started_at) : undefined)}
  ${fact('Ended', record.ended_at ? time(record.ended_at) : undefined)}
  ${fact('Took', record.started_at && record.ended_at ? span(Date.parse(record.ended_at) - Date.parse(record.started_at)) : undefined)}
  ${fact('Node', record.node)}
  ${fact('Duplicate of', record.duplicate_of ? other(record, record.duplicate_of) : undefined)}
  ${fact('Follows', record.parent_run_id ? other(record, record.parent_run_id) : undefined)}
  ${fact('Followed by', record.children?.length ? record.children.map((child) => other(record, child)) : record.then)}
  ${fact('Batch', record.batch_id)}
  ${fact('Tags', record.tags?.length ? record.tags.map((tag) => html`<a class="tag" href=${to('runs', { tag })}>${line(tag)}</a>`) : undefined)}
  ${fact('Found by', record.search?.length ? record.search.map((search) => html`<a class="tag" href=${to('runs', { search })}>${line(search)}</a>`) : undefined)}
  ${fact('Trace', record.trace_id ? trace(record.trace_id) : undefined)}
  ${fact('Erased', record.erased_at ? time(record.erased_at) : undefined)}</dl>`;

export const saysOf = (event) => {
  if (event.event === 'log') return visible(event.line);
  if (event.event === 'progress') return line(JSON.stringify(event.progress));
  if (event.error) return line(`${event.error.kind}: ${event.error.message}`);
  if (event.step) return line(`${event.step.name}${event.step.n > 1 ? ` #${event.step.n}` : ''}`);
  if (event.reason) return event.reason.replaceAll('_', ' ');
  return '';
};

const eventRows = (all) => html`<ol class="events" tabindex="0" aria-label="Events">${all.slice(-300).map((event) => html`<li>${moment(event.at)} ${pill(event.event)}
  <span class="faint">${event.attempt ? `attempt ${event.attempt}` : ''}${event.node ? ` ${event.node}` : ''}</span> <span class="says">${saysOf(event)}</span></li>`)}</ol>`;

/** Asks once for what is hidden, as the audit has each such request; it stays in sight until the next round. */
async function reveal({ record, result, payload, letter }) {
  const shown = (revealed[record.round] ??= {});
  const options = { as: record.tenant, query: { reveal: true } };
  if (record.redacted && result === undefined) {
    const text = await askText('GET', path(record), options);
    Object.assign(shown, { text, result: resultOf(text, JSON.parse(text)) });
  }
  if (payload === null) shown.payload = await askText('GET', `${path(record)}/payload`, options);
  if (letter?.redacted) shown.letter = await ask('GET', `v1/dlq/${part(record.run_id)}`, options);
  changed();
}

/** In the place of what its type hides. */
const hidden = (data) => html`<div class="empty">Hidden, as this type is redacted. ${may('reveal') ? button('Reveal', () => tried(reveal(data)), { kind: 'small' })
  : 'Your key lacks the scope reveal.'}</div>`;

function payload(data) {
  const { letter } = data;
  if (data.payload === null || letter?.redacted) return hidden(data);
  if (data.payload !== undefined) return data.payload ? source(data.payload) : html`<div class="empty">It has none.</div>`;
  if (!letter) return data.noLetter ? html`<div class="empty">${line(data.noLetter)}</div>` : nothing;
  if (letter.payload_bytes) return html`<div class="empty">The payload of ${letter.payload_bytes} bytes was too large to be kept.</div>`;
  const text = decoded(letter.payload_base64 ?? '');
  return html`${text === null ? source(letter.payload_base64, { label: 'Copy base64' }) : source(text)}
    <dl class="facts small">${Object.entries(letter.headers).map(([name, value]) => fact(line(name), line(value)))}</dl>`;
}

function view(loaded, { parts: [, tenant, id] }, error) {
  if (!loaded) return html`${heading(html`<span class="mono">${id}</span>`)}${list({ data: loaded, error, items: [], empty: '' })}
    ${error?.status === 404 ? html`<p class="hint">Asked of tenant ${tenant}. In another one: write tenant/id into the field above.</p>` : nothing}`;
  const { record } = loaded;
  // What is erased meanwhile is out of sight.
  const data = { ...loaded, ...(record.erased_at ? {} : revealed[record.round]) };
  const waits = record.waiting_for;
  const progress = data.live === undefined ? data.progress : JSON.stringify(data.live);
  const { result } = data;
  return html`${heading(html`<span class="mono">${record.run_id}</span> ${pill(record.state)}`, {
    acts: acts(data),
    as: { words: ['why', record.run_id], request: { path: path(record), query: { tenant: record.tenant } }, json: data.text },
  })}${stale()}
    ${waits ? html`<div class="banner amber" role="status"><strong>${waits.message}</strong>${record.run_at ? html` · due ${time(record.run_at)}` : nothing}</div>` : nothing}
    ${record.error && record.state !== 'completed' ? html`<section class="card failure-card"><header><h2>${record.state === 'dead' ? 'Why it failed for good' : 'Last error'}</h2><div class="side">${pill(record.error.kind, 'red')}</div></header>${source(record.error.message)}</section>` : nothing}
    ${facts(record)}
    ${card('Timeline', timeline(record, events), note)}
    ${progress !== undefined && !ENDED.includes(record.state) ? card('Progress', source(progress)) : nothing}
    ${data.why?.length ? card('In words', html`<ol class="words" tabindex="0" aria-label="In words">${data.why.slice(-40).map(({ at, text }) => html`<li>${at ? moment(at) : html`<span class="faint">now</span>`}<span>${line(text)}</span></li>`)}</ol>`) : nothing}
    <div class="columns">
      ${card('Events', events.length ? eventRows(events) : html`<div class="empty">${state.stream === 'connecting' ? 'Reading the event log …' : 'The event log has none of this run.'}</div>`)}
      <div>${result !== undefined ? card('Result', source(result)) : record.redacted ? card('Result', hidden(data)) : record.result_bytes ? card('Result', html`<div class="empty">${record.result_bytes} bytes: too large for the record.</div>`) : nothing}
      ${record.state === 'dead' || data.payload !== undefined ? card('Payload', payload(data)) : nothing}
      ${record.steps?.length ? card('Steps', table('Finished steps', ['Step', { text: 'Attempt', kind: 'num' }, 'Finished'], record.steps.map((step) => html`<tr><td class="mono">${line(step.name)}${step.n > 1 ? ` #${step.n}` : nothing}</td>
        <td class="num">${step.attempt}</td><td>${time(step.at)}</td></tr>`)), 'a later attempt does not repeat them') : nothing}
      ${record.log?.length ? card('Log', html`<pre class="log" tabindex="0">${record.log.map((entry) => visible(entry.line)).join('\n')}</pre>`) : nothing}</div></div>`;
}

export default {
  title: ({ parts }) => parts[2] ?? 'Run',
  nav: 'runs',
  every: 5000,
  // A dead run may be replayed.
  holds: (data) => ENDED.includes(data?.record.state) && data.record.state !== 'dead',
  load,
  open,
  view,
};

/** The run that a tenant knows by this id or idempotency key. */
async function known(tenant, name) {
  try {
    // Of a key that cannot be an id, only the key is asked for.
    if (/^[\w-]{1,96}$/.test(name)) return (await ask('GET', `v1/runs/${part(name)}`, { as: tenant })).run_id;
  } catch (error) {
    if (error.status !== 404) throw error;
  }
  return (await ask('GET', 'v1/runs', { as: tenant, query: { idempotency_key: name } })).runs[0]?.run_id;
}

/** Goes to a run by what was written: its id or idempotency key, or its tenant, `/` and one of both. */
export async function find(text, tenants) {
  const [first, ...rest] = text.split('/');
  const places = tenants.map((tenant) => [tenant, text]);
  // A key may have a `/` itself.
  if (rest.length && /^[\w-]{1,64}$/.test(first) && (may('read', true) || tenants.includes(first))) places.unshift([first, rest.join('/')]);
  try {
    for (const [tenant, name] of places) {
      const found = name && await known(tenant, name);
      if (found) return go(['run', tenant, found]);
    }
  } catch (error) {
    return toast(error.message, true);
  }
  const asked = [...new Set(places.map(([tenant]) => tenant))];
  return toast(`No run of tenant ${asked.join(' or ')} has the id or key ${text}. Of another one: tenant/id`, true);
}
