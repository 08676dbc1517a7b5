// The list of runs: filtered by the server, a page at a time, and acts on those that are chosen.

import { html, nothing } from './vendor/lit-html.js';
import { repeat } from './vendor/directives/repeat.js';
import { ask, get, part } from './api.js';
import { askForMany, forEach } from './bulk.js';
import { download } from './csv.js';
import { number, span } from './format.js';
import { changed, isShown, may, state, tried } from './state.js';
import { askFirst, button, choice, heading, line, list, ofTenant, pill, runLink, sinceOf, SINCE, stale, table, time, word } from './widgets.js';
import { filter, to } from './router.js';

export const STATES = ['scheduled', 'enqueued', 'running', 'retrying', 'completed', 'dead', 'cancelled', 'expired', 'duplicate', 'discarded'];
export const KINDS = ['retryable', 'permanent', 'timeout', 'lease_expired', 'panic', 'no_handler', 'invalid', 'cancelled'];
const FIELDS = ['state', 'queue', 'type', 'tag', 'search', 'error_kind', 'since', 'until'];
export const PAGE = 50;

/** The filter of an address, as the API takes it. */
export function wanted(query, fields = FIELDS) {
  const said = {};
  for (const name of fields) if (query[name]) said[name] = name === 'since' || name === 'until' ? sinceOf(query[name]) : query[name];
  return said;
}

/** The same for the command line. */
export const options = (query, fields = FIELDS) => fields.filter((name) => query[name]).flatMap((name) => [`--${name.replace('_', '-')}`, query[name]]);

async function load(route, signal) {
  const asked = wanted(route.query);
  const page = await get('v1/runs', { ...asked, limit: PAGE }, signal);
  return { runs: page.runs, cursor: page.cursor, searched_until: page.searched_until, unreadable: page.unreadable, asked, pages: 1 };
}

/** Reads the runs that follow those that are there, as these were asked for. */
export async function more(asked) {
  const data = state.data;
  data.busy = true;
  changed();
  await tried(get('v1/runs', { ...asked, limit: PAGE, cursor: data.cursor }).then((page) => {
    const known = new Map([...data.runs, ...page.runs].map((run) => [key(run), run]));
    Object.assign(data, { runs: [...known.values()], cursor: page.cursor, searched_until: page.searched_until, pages: data.pages + 1 });
  }));
  data.busy = false;
  changed();
}

export const key = (run) => `${run.tenant}/${run.run_id}`;

export function checkbox(run) {
  return html`<input type="checkbox" aria-label="Select ${run.run_id}" .checked=${state.selected.has(key(run))} @change=${(event) => {
    if (event.target.checked) state.selected.add(key(run));
    else state.selected.delete(key(run));
    changed();
  }}>`;
}

const cancelOne = (id, tenant) => ask('POST', `v1/runs/${part(id)}/cancel`, { as: tenant });
const nowOne = (id, tenant) => ask('POST', `v1/runs/${part(id)}/run-now`, { as: tenant });

export const LATER = [
  { name: 'run_at', label: 'Start at', type: 'datetime-local', hint: 'In the time of this browser.' },
  { name: 'priority', label: 'Priority', options: [['', 'as it is'], ...Array.from({ length: 9 }, (_, at) => [at + 1, `p${at + 1}`])] },
  { name: 'queue', label: 'Queue', placeholder: 'as it is' },
];

/** What the form of LATER asks for. */
export function start(said) {
  const set = {};
  if (said.run_at) set.run_at = new Date(said.run_at).toISOString();
  if (said.priority) set.priority = Number(said.priority);
  if (said.queue) set.queue = said.queue;
  if (!Object.keys(set).length) throw new Error('Choose a time, a priority or a queue.');
  return set;
}

function acts(data) {
  if (!may('operate')) return nothing;
  const chosen = state.selected.size;
  if (chosen) {
    const runs = chosen === 1 ? '1 run' : `${number(chosen)} runs`;
    return html`<div class="selection" role="group" aria-label="Acts on the selection"><strong>${number(chosen)} selected</strong>
      ${button('Cancel', () => askFirst({ title: `Cancel ${runs}`, text: html`<p>Waiting ones will not start, running ones are asked to stop.</p>`, typed: chosen > 100 ? String(chosen) : undefined, danger: true, label: `Cancel ${chosen}`, act: async () => { forEach('Cancelling', cancelOne); } }))}
      ${button('Run now', () => forEach('Starting now', nowOne))}
      ${button('Reschedule', () => askFirst({ title: `Reschedule ${runs}`, fields: LATER, label: 'Reschedule', act: async (said) => {
        const set = start(said);
        forEach('Rescheduling', (id, tenant) => ask('POST', `v1/runs/${part(id)}/reschedule`, { as: tenant, body: set }));
      } }))}
      ${button('Clear', () => { state.selected.clear(); changed(); }, { kind: 'quiet' })}</div>`;
  }
  const query = data?.asked ?? {};
  if (!Object.keys(query).length || !data?.runs.length || !isShown()) return nothing;
  const ended = query.state && STATES.indexOf(query.state) > 3;
  const waiting = WAIT.filter((name) => !query.state || name === query.state);
  return ended ? nothing : html`<div class="selection">All that match:
    ${button('Cancel', () => askForMany({ verb: 'Cancel', title: 'Cancel all that match', what: 'runs', path: 'v1/runs/cancel', body: query, done: 'cancelled', danger: true, states: query.state ? [query.state] : STATES.slice(0, 4) }), { kind: 'small' })}
    ${waiting.length ? html`${button('Run now', () => askForMany({ verb: 'Start', title: 'Start all that match', what: 'runs that wait for their time', path: 'v1/runs/run-now', body: query, done: 'rescheduled', states: waiting }), { kind: 'small' })}
    ${button('Reschedule', () => askFirst({ title: 'Reschedule all that match', text: html`<p>A dry run comes next.</p>`, fields: LATER, label: 'Count them', act: async (said) => {
      const body = { ...query, set: start(said) };
      setTimeout(() => askForMany({ verb: 'Reschedule', title: 'Reschedule all that match', what: 'runs that wait for their time', path: 'v1/runs/reschedule', body, done: 'rescheduled', states: waiting }));
    } }), { kind: 'small' })}` : nothing}</div>`;
}

/** The states whose time can be changed. */
const WAIT = ['scheduled', 'retrying'];

function duration(run) {
  if (!run.started_at) return '–';
  return span((run.ended_at ? Date.parse(run.ended_at) : Date.now()) - Date.parse(run.started_at));
}

export const filters = (query, { states = STATES } = {}) => html`<div class="filters" role="search" aria-label="Filter">
  ${states.length ? choice('state', 'State', [['', 'any'], ...states.map((name) => [name, name])]) : nothing}
  ${word('queue', 'Queue', 'any')}${word('type', 'Type', 'any, whole')}
  ${word('tag', 'Tag', 'any')}${word('search', 'Value in payload', 'whole, of a search field')}
  ${choice('error_kind', 'Error kind', [['', 'any'], ...KINDS.map((name) => [name, name.replace('_', ' ')])])}
  ${choice('since', 'Ended or waiting since', [...SINCE, ...(query.since && !SINCE.some(([value]) => value === query.since) ? [[query.since, query.since]] : [])])}
  ${[...FIELDS].some((name) => query[name]) ? button('Clear', () => filter(Object.fromEntries(FIELDS.map((name) => [name, '']))), { kind: 'quiet' }) : nothing}</div>`;

export const row = (run) => html`<tr class=${state.selected.has(key(run)) ? 'selected' : ''}><td class="check">${checkbox(run)}</td>
  <td>${pill(run.state)}</td><td class="cut run">${ofTenant(run.tenant)}${runLink(run)}${run.tags?.length ? html`<span class="tags">${run.tags.map((tag) => html`<a class="tag" href=${to('runs', { tag })}>${line(tag)}</a>`)}</span>` : nothing}</td>
  <td class="cut"><a class="plain" href=${to('runs', { ...state.route.query, type: run.type })}>${run.type}</a></td>
  <td class="cut wide">${run.queue} <span class="faint">p${run.priority}</span></td>
  <td class="num wide">${run.attempt ?? 0}<span class="faint">/${run.max_attempts}</span></td>
  <td class="num wide">${duration(run)}</td>
  <td class="cut error-cell">${run.error && run.state !== 'completed' ? html`<span title=${line(run.error.message)}>${line(run.error.message)}</span>` : nothing}</td>
  <td class="num">${time(run.ended_at ?? run.run_at ?? run.started_at ?? run.enqueued_at)}</td></tr>`;

export const HEADS = [{ text: 'Select', kind: 'check' }, 'State', 'Run', 'Type', { text: 'Queue', kind: 'wide' }, { text: 'Attempt', kind: 'num wide' }, { text: 'Took', kind: 'num wide' }, 'Error', { text: 'When', kind: 'num' }];

function view(data, { query }, error) {
  return html`${heading('Runs', {
    acts: html`${data?.runs.length ? button('CSV', () => download(data.runs), { kind: 'quiet', title: 'The rows that are loaded' }) : nothing}`,
    as: { words: ['runs', 'list', ...options(query)], request: { path: 'v1/runs', query: { ...wanted(query), limit: PAGE } }, json: data && JSON.stringify(data.runs, null, 2) },
  })}
    ${filters(query)}${stale()}${acts(data)}
    <section class="card">${list({
      data, error, items: data?.runs ?? [],
      empty: data?.cursor ? html`None so far${data.searched_until ? html`: looked until ${time(data.searched_until)}` : nothing}.` : html`No run fits. ${Object.keys(data?.asked ?? {}).length ? 'Records of completed runs are kept for a day, of others for a week, unless set otherwise.' : 'Submit a first one.'}`,
      body: (runs) => table('Runs', HEADS, repeat(runs, key, row)),
    })}
    ${data?.cursor ? html`<footer class="more"><span class="faint">${number(data.runs.length)} shown; each step reads about 20,000 records at most, and there are more.</span>
      ${button(data.busy ? 'Reading …' : 'Go on', () => more(data.asked), { disabled: data.busy })}</footer>` : nothing}
    ${data?.unreadable ? html`<footer class="more faint">${number(data.unreadable)} records could not be read and are left out.</footer>` : nothing}</section>`;
}

export default {
  title: () => 'Runs',
  every: 4000,
  load,
  /** Further pages and a selection stay as they are: new rows would move them. */
  holds: (data) => data?.pages > 1 || state.selected.size > 0,
  view,
};
