// The nodes: what each finds wrong, the parts that it is made of, and the handlers that are online.

import { html, nothing } from './vendor/lit-html.js';
import { ask, get, orWhy, part } from './api.js';
import { number, span } from './format.js';
import { to } from './router.js';
import { may, toast } from './state.js';
import { askFirst, bar, button, card, heading, line, list, pill, stale, table, time } from './widgets.js';

const LEVELS = ['info', 'debug', 'trace', 'warn', 'error', 'off'];

const level = (node) => askFirst({
  title: `Log of ${node}`,
  text: html`<p>Which lines it writes from now on, until it ends.</p>`,
  fields: [{ name: 'level', label: 'Level', options: LEVELS }, { name: 'filter', label: 'Or a filter', placeholder: 'info,longshore_actors=debug' }],
  label: 'Set',
  act: async (said) => {
    const answer = await ask('PUT', `v1/nodes/${part(node)}/log-level`, { body: { level: said.filter ?? said.level }, as: '' });
    toast(`${node} logs ${answer.level}`);
  },
});

async function load(_route, signal) {
  const { nodes } = await get('v1/nodes', {}, signal);
  const health = await Promise.all(nodes.map((node) => orWhy(ask('GET', 'v1/health', { query: { node: node.node }, as: '_all', signal }))));
  return { nodes: nodes.map((node, at) => ({ ...node, health: health[at] })) };
}

/** What a node finds wrong of itself, each with its colour. */
export const findings = ({ health }) => [...(health.error ? [['red', health.error]] : []), ...(health.reasons ?? []).map((text) => ['red', text]), ...(health.warnings ?? []).map((text) => ['amber', text])];

const leaf = ({ part: name, restarts, waiting }) => html`<span class="mono">${name}</span>${restarts ? html` ${pill(`started again ${number(restarts)} ×`, 'amber')}` : nothing}${
  waiting === undefined ? nothing : html` <span class="faint">${number(waiting)} waiting</span>`}`;
const leaves = (parts) => parts.map((one) => html`<li>${leaf(one)}</li>`);
/** What the supervisor of a queue starts. */
const OF_SUPERVISOR = ['scheduler', 'worker'];

/** The tree of actors, as ARCHITECTURE.md draws it. */
function tree({ node, queues, health: { parts = [] } }) {
  if (!parts.length) return nothing;
  const [restarts, waiting] = [parts.reduce((all, one) => all + one.restarts, 0), parts.reduce((all, one) => all + (one.waiting ?? 0), 0)];
  const { false: own = [], true: each = [] } = Object.groupBy(parts, (one) => String(one.per_queue));
  const [below, beside] = [each.filter((one) => OF_SUPERVISOR.includes(one.part)), each.filter((one) => !['queue', ...OF_SUPERVISOR].includes(one.part))];
  const supervisor = each.find((one) => one.part === 'queue');
  return html`<details class="parts" ?open=${restarts > 0}><summary>Actors: ${number(parts.length)} kinds, ${restarts ? `${number(restarts)} started again` : 'none started again'}, messages waiting: ${number(waiting)}</summary>
    <ul class="tree" aria-label="Actors of ${node}">${leaves(own)}${supervisor ? html`<li class="branch">for each queue <span class="faint">(${Object.keys(queues).join(', ') || 'none'})</span>
      <ul><li>${leaf(supervisor)}<ul>${leaves(below)}</ul></li>${leaves(beside)}</ul></li>` : nothing}</ul></details>`;
}

/** Handlers as their subjects say: `longshore.work.<tenant>.<type>`. */
function handlers(nodes) {
  const known = nodes.filter(({ health }) => health.handlers);
  const all = new Map(known.flatMap(({ health }) => health.handlers.map((one) => [`${one.subject} ${one.service}`, one])));
  const row = ({ subject, service, slots }) => {
    const [, , of, ...type] = subject.split('.');
    return html`<tr><td class="cut wider"><span title=${subject}>${line(type.join('.'))}</span></td><td>${of === '*' ? html`<span class="faint">all</span>` : of}</td>
      <td class="cut"><span class="mono" title=${line(service)}>${line(service)}</span></td><td class="num">${slots === undefined ? html`<span class="faint">not announced</span>` : number(slots)}</td></tr>`;
  };
  const rows = [...all.values()].sort((one, other) => one.subject.localeCompare(other.subject)).map(row);
  return card('Remote handlers online', rows.length ? table('Remote handlers', ['Type', 'Tenant', 'Service', { text: 'Slots', kind: 'num' }], rows)
    : html`<div class="empty">${known.length || !nodes.length ? 'None has answered.' : 'Asking them …'}</div>`, 'as they answered in the last seconds');
}

/** Nodes of several versions work together, while they are replaced. */
function versions(nodes) {
  const of = Map.groupBy(nodes, ({ version }) => version);
  return of.size > 1 ? html`<div class="banner amber" role="status">Several versions are running: ${[...of].map(([version, them]) => `${version} on ${them.map(({ node }) => node).join(', ')}`).join('; ')}</div>` : nothing;
}

function nodeCard(node) {
  const found = findings(node);
  const counters = Object.entries(node.health.counters ?? {}).filter(([, count]) => count);
  return card(html`${node.node} ${pill(node.state, node.state === 'running' ? 'green' : undefined)} ${node.health.error || node.health.ready ? nothing : pill('not ready', 'red')}`, html`
    ${found.length ? html`<ul class="findings">${found.map(([colour, text]) => html`<li class=${colour}>${line(text)}</li>`)}</ul>` : nothing}
    ${table(`Queues of ${node.node}`, ['Queue', { text: 'Busy', kind: 'bar-cell' }, { text: 'Running', kind: 'num' }, { text: 'Places', kind: 'num' }], Object.entries(node.queues).map(([queue, { running, concurrency }]) => html`<tr><td>${queue}</td>
      <td class="bar-cell">${bar([{ value: running, colour: 'blue' }], concurrency, `${running} of ${concurrency}`)}</td><td class="num">${number(running)}</td><td class="num">${number(concurrency)}</td></tr>`))}
    ${node.state === 'draining' ? html`<p class="note-line">It takes no new jobs, and ends once those that run have ended.</p>` : nothing}${tree(node)}
    ${counters.length ? html`<p class="note-line">Since its start: ${counters.map(([name, count]) => `${name.replaceAll('_', ' ')} ${number(count)}`).join(', ')}</p>` : nothing}`,
  html`${node.version} · up ${span(Date.now() - Date.parse(node.started_at))} · seen ${time(node.seen_at)} ${may('operate', true) ? button('Log level', () => level(node.node), { kind: 'small' }) : nothing}`);
}

export default {
  title: () => 'Nodes',
  every: 3000,
  load,
  view: (data, _route, error) => html`${heading('Nodes', { sub: 'Those that were seen within the last 10 s, and what each finds wrong.', as: { words: ['nodes'], request: { path: 'v1/nodes' }, json: data && JSON.stringify(data.nodes, null, 2) } })}${stale()}
    ${list({ data, error, items: data?.nodes ?? [], empty: 'No node is there.', body: (nodes) => html`${versions(nodes)}${nodes.map(nodeCard)}${handlers(nodes)}` })}
    <p class="hint">The <a href=${to('settings')}>doctor</a> looks for more: server, rights, streams, storage, clocks.</p>`,
};
