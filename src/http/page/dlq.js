// Dead letters: grouped by what failed, then one by one.

import { html, nothing } from './vendor/lit-html.js';
import { repeat } from './vendor/directives/repeat.js';
import { ask, get, part } from './api.js';
import { askForMany, forEach } from './bulk.js';
import { download } from './csv.js';
import { number } from './format.js';
import { acted, changed, isShown, may, state } from './state.js';
import { checkbox, filters, key, more, options, PAGE, wanted } from './runs.js';
import { askFirst, button, card, columns, heading, line, list, ofTenant, pill, runLink, stale, table, time } from './widgets.js';
import { filter, to } from './router.js';

const FIELDS = ['queue', 'type', 'tag', 'search', 'error_kind', 'since', 'until'];

const GROUPS = 50;

async function load(route, signal) {
  const asked = wanted(route.query, FIELDS);
  const [groups, page] = await Promise.all([
    get('v1/dlq-groups', { ...asked, limit: GROUPS }, signal),
    get('v1/runs', { ...asked, state: 'dead', limit: PAGE }, signal),
  ]);
  return { groups: groups.groups, moreGroups: groups.cursor, runs: page.runs, cursor: page.cursor, asked, pages: 1 };
}

/** A group shows an example itself; runs cannot be asked for by it. */
const ofGroup = (body) => (body.fingerprint ? [] : ['dead']);
const replayMany = (body, name) => askForMany({ verb: 'Replay', title: `Replay ${name}`, what: 'dead letters', path: 'v1/dlq/replay', body, done: 'replayed', states: ofGroup(body) });
const discardMany = (body, name) => askForMany({ verb: 'Discard', title: `Discard ${name}`, what: 'dead letters', path: 'v1/dlq/discard', body, done: 'discarded', danger: true, states: ofGroup(body) });
const all = (asked) => (Object.keys(asked).length ? asked : { all: true });

export const replayOne = async (id, tenant) => {
  const said = await ask('POST', `v1/dlq/${part(id)}/replay`, { as: tenant });
  if (!said.replayed) throw new Error(said.failed?.[0]?.error ?? 'not replayed');
};
const discardOne = (id, tenant) => ask('DELETE', `v1/dlq/${part(id)}`, { as: tenant });

const one = (text, act, run) => acted(act(run.run_id, run.tenant), `${run.run_id} is ${text}`);

const group = (entry, asked) => html`<tr><td class="num strong">${number(entry.count)}</td>
  <td class="cut"><a class="row-link" href="#" @click=${(event) => { event.preventDefault(); filter({ type: entry.type, error_kind: entry.error_kind }); }}>${entry.type}</a></td>
  <td>${pill(entry.error_kind, 'red')}</td><td class="cut wider"><a class="mono" href=${to(['run', entry.example.tenant, entry.example.run_id])} title="${line(entry.pattern)}: for example ${entry.example.run_id}">${line(entry.pattern)}</a></td>
  <td class="trend wide">${columns(entry.hours ?? [], `${entry.type}, by hour`)}</td><td class="num wide">${time(entry.first)}</td><td class="num">${time(entry.last)}</td>
  <td class="acts">${may('operate') && isShown() ? html`${button('Replay', () => replayMany({ ...asked, fingerprint: entry.fingerprint }, `the group “${line(entry.pattern)}”`), { kind: 'small' })}
    ${button('Discard', () => discardMany({ ...asked, fingerprint: entry.fingerprint }, `the group “${line(entry.pattern)}”`), { kind: 'small quiet danger-text' })}` : nothing}</td></tr>`;

const row = (run) => html`<tr class=${state.selected.has(key(run)) ? 'selected' : ''}><td class="check">${checkbox(run)}</td>
  <td class="cut">${ofTenant(run.tenant)}${runLink(run)}</td><td class="cut"><span>${run.type}</span></td><td>${pill(run.error?.kind ?? 'unknown', 'red')}</td>
  <td class="cut wider"><span title=${line(run.error?.message)}>${line(run.error?.message)}</span></td><td class="num wide">${run.attempt ?? 0}/${run.max_attempts}</td><td class="num">${time(run.ended_at)}</td>
  <td class="acts">${may('operate') ? html`${button('Replay', () => one('replayed', replayOne, run), { kind: 'small' })}
    ${button('Discard', () => askFirst({ title: `Discard ${run.run_id}`, danger: true, label: 'Discard', text: html`<p>Its payload is deleted; the run ends as discarded.</p>`, act: () => one('discarded', discardOne, run) }), { kind: 'small quiet danger-text' })}` : nothing}</td></tr>`;

function chosen() {
  const many = state.selected.size;
  if (!many || !may('operate')) return nothing;
  return html`<div class="selection" role="group" aria-label="Acts on the selection"><strong>${number(many)} selected</strong>
    ${button('Replay', () => forEach('Replaying', replayOne))}
    ${button('Discard', () => askFirst({ title: `Discard ${many} dead letters`, text: html`<p>Their payloads are deleted.</p>`, danger: true, typed: many > 100 ? String(many) : undefined, label: `Discard ${many}`, act: async () => { forEach('Discarding', discardOne); } }))}
    ${button('Clear', () => { state.selected.clear(); changed(); }, { kind: 'quiet' })}</div>`;
}

function view(data, { query }, error) {
  const asked = data?.asked ?? {};
  return html`${heading('Dead letters', {
    sub: 'Runs that failed for good. They stay until they are replayed, discarded or too old.',
    acts: html`${data?.runs.length && may('operate') && isShown() ? html`${button('Replay all that match', () => replayMany(all(asked), 'all that match'))}
      ${button('Discard all', () => discardMany(all(asked), 'all that match'), { kind: 'quiet danger-text' })}` : nothing}
      ${data?.runs.length ? button('CSV', () => download(data.runs, 'dead-letters.csv'), { kind: 'quiet' }) : nothing}`,
    as: { words: ['dlq', 'groups', ...options(query, FIELDS)], request: { path: 'v1/dlq-groups', query: wanted(query, FIELDS) }, json: data && JSON.stringify({ groups: data.groups, runs: data.runs }, null, 2) },
  })}${filters(query, { states: [] })}${stale()}
    ${card('By what failed', list({ data, error, items: data?.groups ?? [], empty: 'No dead letter fits: nothing has failed for good.', body: (groups) => table('Groups of dead letters',
    [{ text: 'Count', kind: 'num' }, 'Type', 'Kind', 'Error', { text: 'Last 24 h', kind: 'wide' }, { text: 'First', kind: 'num wide' }, { text: 'Last', kind: 'num' }, ''], groups.map((entry) => group(entry, asked))) }),
  [data?.groups.length >= GROUPS && `the ${GROUPS} largest`, data?.moreGroups && 'of the oldest dead letters'].filter(Boolean).join(', ') || nothing)}
    ${data?.runs.length ? html`${chosen()}${card('One by one', html`${table('Dead letters', [{ text: 'Select', kind: 'check' }, 'Run', 'Type', 'Kind', 'Error', { text: 'Attempt', kind: 'num wide' }, { text: 'Died', kind: 'num' }, ''], repeat(data.runs, key, row))}
      ${data.cursor ? html`<footer class="more"><span class="faint">${number(data.runs.length)} shown; there are more.</span>${button('Go on', () => more({ ...asked, state: 'dead' }))}</footer>` : nothing}`, 'the last one first')}` : nothing}`;
}

export default {
  title: () => 'Dead letters',
  every: 4000,
  holds: (data) => data?.pages > 1 || state.selected.size > 0,
  load,
  view,
};
