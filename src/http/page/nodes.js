// The nodes and what each finds wrong.

import { html, nothing } from './vendor/lit-html.js';
import { ask, get, part } from './api.js';
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
  const health = await Promise.all(nodes.map((node) => get('v1/health', { node: node.node }, signal).catch((error) => {
    if (error.name === 'AbortError') throw error;
    return { error: error.message };
  })));
  return { nodes: nodes.map((node, at) => ({ ...node, health: health[at] })) };
}

/** What a node finds wrong of itself, each with its colour. */
export const findings = ({ health }) => [...(health.error ? [['red', health.error]] : []), ...(health.reasons ?? []).map((text) => ['red', text]), ...(health.warnings ?? []).map((text) => ['amber', text])];

function nodeCard(node) {
  const found = findings(node);
  const counters = Object.entries(node.health.counters ?? {}).filter(([, count]) => count);
  return card(html`${node.node} ${pill(node.state, node.state === 'running' ? 'green' : undefined)} ${node.health.error || node.health.ready ? nothing : pill('not ready', 'red')}`, html`
    ${found.length ? html`<ul class="findings">${found.map(([colour, text]) => html`<li class=${colour}>${line(text)}</li>`)}</ul>` : nothing}
    ${table(`Queues of ${node.node}`, ['Queue', { text: 'Busy', kind: 'bar-cell' }, { text: 'Running', kind: 'num' }, { text: 'Places', kind: 'num' }], Object.entries(node.queues).map(([queue, { running, concurrency }]) => html`<tr><td>${queue}</td>
      <td class="bar-cell">${bar([{ value: running, colour: 'blue' }], concurrency, `${running} of ${concurrency}`)}</td><td class="num">${number(running)}</td><td class="num">${number(concurrency)}</td></tr>`))}
    ${counters.length ? html`<p class="note-line">Since its start: ${counters.map(([name, count]) => `${name.replaceAll('_', ' ')} ${number(count)}`).join(', ')}</p>` : nothing}`,
  html`${node.version} · up ${span(Date.now() - Date.parse(node.started_at))} · seen ${time(node.seen_at)} ${may('operate', true) ? button('Log level', () => level(node.node), { kind: 'small' }) : nothing}`);
}

export default {
  title: () => 'Nodes',
  every: 3000,
  load,
  view: (data, _route, error) => html`${heading('Nodes', { sub: 'Those that were seen within the last 10 s, and what each finds wrong.', as: { words: ['nodes'], request: { path: 'v1/nodes' }, json: data && JSON.stringify(data.nodes, null, 2) } })}${stale()}
    ${list({ data, error, items: data?.nodes ?? [], empty: 'No node is there.', body: (nodes) => nodes.map(nodeCard) })}
    <p class="hint">The <a href=${to('settings')}>doctor</a> looks for more: server, rights, streams, storage, clocks.</p>`,
};
