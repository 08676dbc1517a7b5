// Who asked for what beyond reading and submitting.

import { html, nothing } from './vendor/lit-html.js';
import { allOf, get } from './api.js';
import { number } from './format.js';
import { changed, state, tried } from './state.js';
import { button, choice, heading, line, list, pill, sinceOf, SINCE, stale, table, time } from './widgets.js';

/** A request and how it ended are two entries of one id. */
function together(entries) {
  const found = new Map();
  for (const entry of entries) found.set(entry.id, { ...found.get(entry.id), ...entry });
  return [...found.values()].reverse();
}

async function load({ query }, signal) {
  const since = sinceOf(query.since || '24h');
  // The newest are wanted, and the list begins with the oldest.
  return { ...await allOf('v1/audit', 'entries', { since }, signal), since };
}

function more() {
  const { data } = state;
  data.pages = true; // No reload may take its place now.
  return tried(get('v1/audit', { since: data.since, limit: 500, cursor: data.cursor }).then((said) => {
    Object.assign(data, { entries: [...data.entries, ...said.entries], cursor: said.cursor });
    changed();
  }));
}

const SHOWN = 500;

function rows(entries) {
  const all = together(entries);
  return html`${table('Audit', ['At', 'Asked', 'What', 'Tenant', 'By', 'Reason', { text: 'From', kind: 'wide' }, 'Outcome'], all.slice(0, SHOWN).map(row))}
    ${all.length > SHOWN ? html`<footer class="more faint">Of the ${number(all.length)} that were read, the newest ${number(SHOWN)} are shown; “Copy as JSON” has them all.</footer>` : nothing}`;
}

const row = (entry) => html`<tr><td>${time(entry.at)}</td><td><span class="strong">${entry.endpoint}</span></td><td class="cut wider"><span title=${line(JSON.stringify(entry.request))} class="mono">${line(JSON.stringify(entry.request ?? {}))}</span></td>
  <td>${entry.tenant}</td><td><span title=${line(entry.by)}>${line(entry.by)}</span></td><td class="cut"><span title=${line(entry.reason)}>${line(entry.reason)}</span></td><td class="wide">${entry.from} <span class="faint">${entry.node}</span></td>
  <td class="cut">${entry.error ? html`${pill('refused')} <span title=${line(entry.error.message)}>${line(entry.error.message)}</span>` : entry.stage === 'asked' ? pill('not answered yet', 'amber') : html`<span class="mono" title=${line(JSON.stringify(entry.outcome))}>${line(JSON.stringify(entry.outcome ?? {}))}</span>`}</td></tr>`;

export default {
  title: () => 'Audit',
  every: 10000,
  holds: (data) => data?.pages,
  load,
  view: (data, { query }, error) => html`${heading('Audit', { sub: 'What was asked beyond reading and submitting, the newest first.', as: { words: ['audit', '--since', query.since || '24h'], request: { path: 'v1/audit', query: { since: data?.since, limit: 500 } }, json: data && JSON.stringify(data.entries, null, 2) } })}
    <div class="filters">${choice('since', 'Since', [['', 'last 24 h'], ...SINCE.filter(([value]) => value && value !== '24h')])}</div>${stale()}
    <section class="card">${data?.cursor ? html`<div class="more"><span class="faint">${number(data.entries.length)} entries were read; newer ones are not shown yet.</span>${button('Go on', more)}</div>` : nothing}
    ${list({ data, error, items: data?.entries ?? [], empty: 'Nothing was asked in this time.', body: rows })}</section>`,
};
