// The settings in force on a node, where each was set, and what the nodes find wrong.

import { html, nothing } from './vendor/lit-html.js';
import { ask, get, orWhy, part } from './api.js';
import { number } from './format.js';
import { findings } from './nodes.js';
import { button, card, choice, heading, line, list, pill, stale, table, time, word } from './widgets.js';
import { filter } from './router.js';
import { changed } from './state.js';

/** So many nodes are compared. */
const COMPARED = 20;
/** Every node has its own. */
const OWN = ['node.name', 'http.listen'];
/** What all nodes of a cluster are to have alike. */
const ALIKE = ['node.lease', 'storage.', 'idempotency.'];

/** What the doctor of the node that answers found last; it looks once as the page is opened, and when it is asked to. */
let looked = { busy: false };

async function look() {
  looked = { ...looked, busy: true };
  changed();
  try {
    looked = { busy: false, at: new Date().toISOString(), findings: (await ask('GET', 'v1/doctor', { as: '' })).findings };
  } catch (error) {
    looked = { busy: false, error: error.message };
  }
  changed();
}

const LEVELS = ['failure', 'warning', 'note', 'fine'];
const COLOURS = { failure: 'red', warning: 'amber', note: 'blue', fine: 'green' };

function doctor() {
  const again = button(looked.busy ? 'Looking …' : 'Look again', look, { kind: 'small', disabled: looked.busy });
  const by = html`by the node that answers${looked.at ? html`, ${time(looked.at)}` : nothing} ${again}`;
  if (looked.error) return card('What the doctor finds', html`<div class="empty" role="alert">It could not look: ${line(looked.error)}</div>`, by);
  if (!looked.findings) return card('What the doctor finds', html`<div class="empty" aria-busy="true">Looking …</div>`, by);
  const rows = [...looked.findings].sort((one, other) => LEVELS.indexOf(one.level) - LEVELS.indexOf(other.level));
  return card('What the doctor finds', html`<ul class="findings">${rows.map((found) => html`<li class=${COLOURS[found.level]}>${pill(found.level, COLOURS[found.level])}
    <strong>${found.check}</strong>: ${line(found.text)}${found.remedy ? html`<span class="faint"> – ${line(found.remedy)}</span>` : nothing}</li>`)}</ul>`, by);
}

const nameOf = ({ section, name }) => (section ? `${section}.${name}` : name);

async function load({ query }, signal) {
  const { nodes } = await get('v1/nodes', {}, signal);
  const names = nodes.map(({ node }) => node);
  const chosen = names.includes(query.node) ? query.node : names[0];
  const asked = names.filter((name, at) => at < COMPARED || name === chosen);
  const [said, health] = await Promise.all([
    Promise.all(asked.map((name) => orWhy(get(`v1/nodes/${part(name)}/settings`, {}, signal)))),
    Promise.all(asked.map((node) => orWhy(get('v1/health', { node }, signal)))),
  ]);
  const values = new Map();
  said.forEach(({ settings = [] }, at) => settings.forEach((setting) => {
    const name = nameOf(setting);
    values.set(name, (values.get(name) ?? new Map()).set(asked[at], setting.value ?? 'not set'));
  }));
  const differ = new Map([...values].filter(([name, of]) => !OWN.includes(name) && new Set(of.values()).size > 1)
    .map(([name, of]) => [name, [...of].map(([node, value]) => `${node}: ${value}`).join(', ')]));
  const own = said[asked.indexOf(chosen)] ?? {};
  return { names, chosen, own, differ, compared: asked.length, nodes: asked.map((node, at) => ({ node, health: health[at] })) };
}

function wrong({ nodes, differ }) {
  const found = nodes.flatMap((node) => findings(node).map(([colour, text]) => [colour, `${node.node}: ${text}`]));
  const unlike = [...differ].filter(([name]) => ALIKE.some((alike) => name.startsWith(alike)));
  return [...found, ...unlike.map(([name, values]) => ['amber', `${name} is to be the same on all nodes (${values})`])];
}

const row = (differ) => (setting) => {
  const others = differ.get(nameOf(setting));
  const isDefault = setting.from === 'default';
  return html`<tr><td class="value"><span class=${isDefault ? '' : 'strong'}>${line(setting.name)}</span></td>
    <td class="value">${setting.value === undefined ? html`<span class="faint">not set</span>` : html`<code>${line(setting.value)}</code>`}${others ? html` <span title=${line(others)}>${pill('differs', 'amber')}</span>` : nothing}</td>
    <td class="value">${isDefault ? html`<span class="faint">default</span>` : html`<span class="mono">${line(setting.from)}</span>`}</td></tr>`;
};

function sections({ own, differ }, { text = '', show = '' }) {
  const fits = (setting) => nameOf(setting).includes(text.toLowerCase())
    && (show !== 'set' || setting.from !== 'default') && (show !== 'differ' || differ.has(nameOf(setting)));
  const found = Map.groupBy((own.settings ?? []).filter(fits), ({ section }) => section);
  if (own.error) return html`<section class="card"><div class="empty">The node does not say: ${line(own.error)}</div></section>`;
  return found.size ? [...found].map(([section, settings]) => card(section ? html`<code>[${line(section)}]</code>` : 'Top of the file', table(`Settings of ${section || 'the top'}`, ['Setting', 'Value', 'From'], settings.map(row(differ)))))
    : html`<section class="card"><div class="empty">No setting fits. ${button('All', () => filter({ text: '', show: '' }), { kind: 'small' })}</div></section>`;
}

function view(data, { query }, error) {
  const found = data ? wrong(data) : [];
  return html`${heading('Settings', {
    sub: 'What is in force on a node, and where it was set. Secrets and payloads are left out.',
    as: { words: ['nodes', 'settings', data?.chosen ?? 'NODE'], request: { path: `v1/nodes/${part(data?.chosen ?? 'NODE')}/settings` }, json: data && JSON.stringify(data.own, null, 2) },
  })}${stale()}
    ${data ? card('What the nodes find', found.length ? html`<ul class="findings">${found.map(([colour, text]) => html`<li class=${colour}>${line(text)}</li>`)}</ul>` : html`<div class="empty">${data.compared === 1 ? 'The node finds' : `The ${number(data.compared)} nodes find`} nothing wrong.</div>`) : nothing}
    ${doctor()}
    <div class="filters">${choice('node', 'Node', (data?.names ?? []).map((name, at) => [at ? name : '', name]))}${word('text', 'Name has', 'max_age')}
      ${choice('show', 'Show', [['', 'all'], ['set', 'what is set'], ['differ', 'what differs']])}</div>
    ${data ? sections(data, query) : list({ data, error, items: [], empty: '' })}
    <p class="hint">A type has here what it has of its own; the rest is that of <code>[defaults]</code>. Limits that were set at run time are on their own page.</p>`;
}

export default {
  title: () => 'Settings',
  every: 10000,
  open: () => {
    look();
    return () => { looked = { busy: false }; };
  },
  load,
  view,
};
