// Keys for clients over HTTP.

import { html, nothing } from './vendor/lit-html.js';
import { ask, get, part } from './api.js';
import { done, may, reload } from './state.js';
import { askFirst, button, heading, line, list, pill, source, stale, table, time } from './widgets.js';

const SCOPES = ['submit', 'read', 'operate', 'reveal'];

function create() {
  askFirst({
    title: 'Make a key',
    fields: [
      { name: 'name', label: 'Name', required: true, placeholder: 'whose it is' },
      { name: 'tenant', label: 'Tenant', value: 'default', required: true, hint: '_all: the operator’s.' },
      ...SCOPES.map((scope) => ({ name: `may_${scope}`, label: scope, type: 'checkbox', value: scope === 'read' })),
      { name: 'days', label: 'Counts for so many days', type: 'number', placeholder: 'no end' },
    ],
    label: 'Make it',
    act: async (said) => {
      const scopes = SCOPES.filter((scope) => said[`may_${scope}`]);
      const expires = said.days && new Date(Date.now() + Number(said.days) * 864e5).toISOString();
      const made = await ask('POST', 'v1/keys', { as: '', body: { name: said.name, tenant: said.tenant, scopes, expires_at: expires } });
      setTimeout(() => askFirst({ title: 'The key, this once', text: html`<p>Keep it as a password: it is not shown again.</p>${source(made.key)}` }));
      reload();
    },
  });
}

const revoke = (key) => askFirst({
  title: `Revoke ${line(key.name)}`,
  text: html`<p>Within two seconds no node takes it any more; its sessions and streams end.</p>`,
  danger: true,
  label: 'Revoke',
  act: () => done(ask('DELETE', `v1/keys/${part(key.id)}`, { as: '' }), `${key.name} is revoked`),
});

const row = (key) => {
  const over = key.expires_at && Date.parse(key.expires_at) < Date.now();
  return html`<tr><td class="cut"><span class="strong">${line(key.name)}</span></td><td class="mono">${key.id}</td><td>${key.tenant === '_all' ? html`<span class="strong">all tenants</span>` : key.tenant}</td><td>${key.scopes.map((scope) => html`${pill(scope, scope === 'operate' ? 'amber' : 'grey')} `)}</td>
    <td>${time(key.created_at)}</td><td>${key.last_used ?? html`<span class="faint">never</span>`}</td><td>${key.expires_at ? html`${over ? pill('over', 'red') : nothing} ${time(key.expires_at)}` : html`<span class="faint">never</span>`}</td>
    <td class="acts">${may('operate', true) ? button('Revoke', () => revoke(key), { kind: 'small quiet danger-text' }) : nothing}</td></tr>`;
};

export default {
  title: () => 'Keys',
  every: 10000,
  load: (_route, signal) => get('v1/keys', {}, signal),
  view: (data, _route, error) => html`${heading('Keys', { sub: 'For clients over HTTP, where http.auth is "keys".', acts: may('operate', true) ? button('Make a key', create, { kind: 'primary' }) : nothing, as: { words: ['keys'], request: { path: 'v1/keys' }, json: data && JSON.stringify(data.keys, null, 2) } })}${stale()}
    <section class="card">${list({ data, error, items: data?.keys ?? [], empty: 'There is no key.', body: (keys) => table('Keys', ['Name', 'Id', 'Tenant', 'Scopes', 'Made', 'Last used', 'Ends', ''], keys.map(row)) })}</section>`,
};
