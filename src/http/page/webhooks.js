// URLs to which a tenant's events are posted.

import { html, nothing } from './vendor/lit-html.js';
import { ask, get, mustBeFree, part } from './api.js';
import { acted, done, may, reload, tenant, toast } from './state.js';
import { askFirst, button, heading, line, list, ofTenant, pill, source, stale, table } from './widgets.js';
import { to } from './router.js';

const words = (text) => (text ?? '').split(',').map((word) => word.trim()).filter(Boolean);
const path = (webhook, verb = '') => `v1/webhooks/${part(webhook.id)}${verb}`;

/** A secret is in an answer once: when it was made. */
const shown = (answer) => setTimeout(() => askFirst({ title: 'The secret, this once', text: html`<p>The target verifies by it. It is not shown again.</p>${source(answer.secret)}` }));

function put(webhook) {
  const who = webhook?.tenant ?? (tenant() === '_all' ? 'default' : tenant());
  askFirst({
    title: webhook ? `Change ${webhook.id}` : 'Make a webhook',
    fields: [
      ...webhook ? [] : [{ name: 'id', label: 'Id', required: true, placeholder: 'shop' }],
      ...!webhook && tenant() === '_all' ? [{ name: 'tenant', label: 'Tenant', value: who, required: true }] : [],
      { name: 'url', label: 'URL', type: 'url', required: true, value: webhook?.url ?? '', placeholder: 'the address that events are posted to' },
      { name: 'events', label: 'Events', value: webhook?.events.join(', ') ?? '', placeholder: 'all', hint: 'Such as completed, dlq.' },
      { name: 'types', label: 'Types', value: webhook?.types.join(', ') ?? '', placeholder: 'all', hint: 'Such as email.>, order.*.' },
      { name: 'queues', label: 'Queues', value: webhook?.queues.join(', ') ?? '', placeholder: 'all' },
      { name: 'format', label: 'Form', options: [['standard', 'Standard Webhooks'], ['cloudevents', 'CloudEvents']], value: webhook?.format ?? 'standard' },
    ],
    label: webhook ? 'Change it' : 'Make it',
    act: async (said) => {
      if (!webhook) await mustBeFree(path(said), said.tenant ?? who);
      const body = { url: said.url, events: words(said.events), types: words(said.types), queues: words(said.queues), format: said.format };
      const answer = await ask('PUT', path(webhook ?? said), { as: said.tenant ?? who, body });
      toast(webhook ? 'It is changed' : 'It is made');
      if (answer.secret) shown(answer);
      reload();
    },
  });
}

const test = (webhook) => acted(ask('POST', path(webhook, '/test'), { as: webhook.tenant }), 'A delivery is on its way: look at its runs');

/** The rest is written back as it is now, which may be no more as the list has it. */
function pause(webhook, paused) {
  const as = webhook.tenant;
  const asked = ask('GET', path(webhook), { as }).then(({ url, events, types, queues, format }) => ask('PUT', path(webhook), { as, body: { url, events, types, queues, format, paused } }));
  return acted(asked, paused ? `${webhook.id} is paused` : `${webhook.id} goes on where it stopped`);
}

const rotate = (webhook) => askFirst({
  title: `A new secret for ${webhook.id}`,
  text: html`<p>Both sign for 24 hours; then only the new one.</p>`,
  label: 'Make it',
  act: async () => {
    shown(await ask('POST', path(webhook, '/rotate'), { as: webhook.tenant }));
    reload();
  },
});

const remove = (webhook) => askFirst({
  title: `Delete ${webhook.id}`,
  text: html`<p>Nothing more is posted; what is on its way becomes a dead letter.</p>`,
  danger: true,
  typed: webhook.id,
  label: 'Delete it',
  act: () => done(ask('DELETE', path(webhook), { as: webhook.tenant }), `${webhook.id} is deleted`),
});

const which = ({ events, types, queues }) => [[events, 'events'], [types, 'types'], [queues, 'queues']].map(([names, kind]) => (names.length ? names.join(', ') : `all ${kind}`)).join(' · ');

const row = (webhook) => html`<tr><td class="cut">${ofTenant(webhook.tenant)}<span class="strong">${webhook.id}</span></td><td class="cut mono" title=${webhook.url}>${line(webhook.url)}</td>
  <td>${webhook.paused ? html`${pill('paused')} <span class="faint">${line(webhook.paused_because ?? '')}</span>` : pill('on', 'green')}</td>
  <td class="cut" title=${which(webhook)}>${which(webhook)}</td>
  <td class="acts">${may('operate') ? html`${webhook.paused ? button('Resume', () => pause(webhook, false), { kind: 'small' }) : button('Pause', () => pause(webhook, true), { kind: 'small' })}
    ${button('Test', () => test(webhook), { kind: 'small' })}${button('Change', () => put(webhook), { kind: 'small quiet' })}
    ${button('New secret', () => rotate(webhook), { kind: 'small quiet' })}${button('Delete', () => remove(webhook), { kind: 'small quiet danger-text' })}` : nothing}</td></tr>`;

export default {
  title: () => 'Webhooks',
  every: 5000,
  load: (_route, signal) => get('v1/webhooks', {}, signal),
  view: (data, _route, error) => html`${heading('Webhooks', {
    sub: html`Events, posted and signed. Each delivery is <a href=${to('runs', { type: 'longshore.webhook' })}>a run</a>.`,
    acts: may('operate') ? button('Make a webhook', () => put(), { kind: 'primary' }) : nothing,
    as: { words: ['webhooks', 'list'], request: { path: 'v1/webhooks' }, json: data && JSON.stringify(data.webhooks, null, 2) },
  })}${stale()}
    <section class="card">${list({ data, error, items: data?.webhooks ?? [], empty: 'There is no webhook.', body: (all) => table('Webhooks', ['Webhook', 'URL', 'State', 'Which events', ''], all.map(row)) })}</section>`,
};
