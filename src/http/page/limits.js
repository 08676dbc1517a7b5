// What keeps jobs from starting: rate limits, concurrency limits, circuit breakers.

import { html, nothing } from './vendor/lit-html.js';
import { allOf, ask } from './api.js';
import { number, span } from './format.js';
import { done, may, tried } from './state.js';
import { askFirst, bar, button, card, heading, line, list, num, pill, stale, table, time } from './widgets.js';
import { to } from './router.js';

const which = ({ type, name, tenant }) => Object.fromEntries(Object.entries({ type, name, tenant }).filter(([, value]) => value));

/** Has all nodes keep to something else, and says which have not confirmed it. */
export const change = (method, path, body, said) => done(ask(method, path, { body, as: '' }),
  ({ unconfirmed }) => (unconfirmed?.length ? `${said}; not confirmed by ${unconfirmed.join(', ')}` : said));

function set(limit) {
  const { rate, per_ms: per, burst, window } = limit.values;
  askFirst({
    title: `Limit of ${Object.values(which(limit))[0]}`,
    text: html`<p>On all nodes, until it is reset, whatever is restarted. From one second after the answer on, starts keep to it.</p>`,
    fields: [{ name: 'rate', label: 'Jobs', type: 'number', value: rate, required: true }, { name: 'per_ms', label: 'in so many ms', type: 'number', value: per, required: true }, { name: 'burst', label: 'Burst', type: 'number', value: burst, hint: 'At most so many at once after a quiet time.' }, { name: 'window', label: 'Counted as', options: ['bucket', 'fixed', 'sliding'], value: window }],
    label: 'Set',
    act: (said) => change('PUT', 'v1/limits', { ...which(limit), rate: Number(said.rate), per_ms: Number(said.per_ms), burst: said.burst && said.window === 'bucket' ? Number(said.burst) : undefined, window: said.window }, 'The limit is set'),
  });
}

const limitRow = (limit) => html`<tr><td><span class="strong">${limit.type ?? limit.name ?? limit.tenant}</span> <span class="faint">${limit.type ? 'type' : limit.name ? 'shared' : 'tenant'}</span></td>
  <td>${number(limit.values.rate)} in ${span(limit.values.per_ms)} <span class="faint">${limit.values.window}${limit.values.window === 'bucket' ? `, burst ${number(limit.values.burst)}` : ''}</span></td>
  <td class="bar-cell">${bar([{ value: limit.left ?? 0, colour: 'green' }], Math.max(limit.values.burst ?? limit.values.rate, 1), `${number(limit.left)} left`)}</td><td class="num">${number(limit.left)}</td>
  <td class="num">${number(limit.waiting)}</td><td>${limit.origin === 'run_time' ? pill('set at run time', 'amber') : html`<span class="faint">${line(limit.set_in ?? limit.origin)}</span>`}</td>
  <td class="acts">${may('operate', true) ? html`${button('Set', () => set(limit), { kind: 'small' })}${limit.origin === 'run_time' ? button('Reset', () => tried(change('POST', 'v1/limits/reset', which(limit), 'The configured limit applies again')), { kind: 'small quiet' }) : nothing}` : nothing}</td></tr>`;

const breakerRow = (breaker) => {
  const body = { tenant: breaker.tenant, type: breaker.type, key: breaker.key };
  return html`<tr><td><a href=${to('runs', { type: breaker.type })}>${breaker.type}</a> <span class="faint">${breaker.tenant}${breaker.key ? ` · ${line(breaker.key)}` : ''}</span></td>
  <td>${pill(breaker.state)}</td><td>${breaker.cause ? breaker.cause : nothing}</td><td class="num">${number(breaker.failures)}</td><td>${time(breaker.since)}</td><td>${breaker.until ? time(breaker.until) : nothing}</td><td class="num">${number(breaker.times_opened)}</td>
  <td class="acts">${may('operate', true) ? html`${breaker.state === 'closed' ? button('Trip', () => askFirst({ title: `Open the breaker of ${breaker.type}`, text: html`<p>Its jobs wait for one cool-down.</p>`, danger: true, label: 'Open it', act: () => change('POST', 'v1/breakers/trip', body, 'The breaker is open') }), { kind: 'small danger-text' })
    : button('Reset', () => tried(change('POST', 'v1/breakers/reset', body, 'The breaker is closed')), { kind: 'small' })}` : nothing}</td></tr>`;
};

const slotRow = (limit) => {
  const taken = limit.holders.reduce((all, holder) => all + holder.slots, 0);
  const runs = limit.holders.flatMap((holder) => holder.runs ?? []);
  return html`<tr><td><a href=${to('runs', { type: limit.type })}>${limit.type}</a> <span class="faint">${limit.key_hash ? `${limit.tenant} · key ${limit.key_hash}` : 'of the type'}</span></td>
    <td class="bar-cell">${bar([{ value: taken, colour: 'blue' }], limit.max, `${taken} of ${limit.max} taken`)}</td><td class="num">${taken} of ${number(limit.max)}</td>
    <td>${runs.slice(0, 6).map((run) => html`<a class="mono" href=${to(['run', run.tenant, run.run_id])}>${run.run_id}</a> `)}${runs.length > 6 ? `and ${runs.length - 6} more` : nothing}</td>
    <td>${limit.holders.map((holder) => holder.node).join(', ')}</td></tr>`;
};

const cut = (data, name) => (data?.more[name] ? `the first ${number(data[name].length)}; there are more` : nothing);

export default {
  title: () => 'Limits and breakers',
  every: 3000,
  load: async (_route, signal) => {
    const lists = [['v1/limits', 'limits'], ['v1/breakers', 'breakers'], ['v1/concurrency', 'limits']];
    const [limits, breakers, slots] = await Promise.all(lists.map(([path, name]) => allOf(path, name, {}, signal)));
    const more = { limits: Boolean(limits.cursor), breakers: Boolean(breakers.cursor), slots: Boolean(slots.cursor) };
    return { limits: limits.entries, breakers: breakers.entries, slots: slots.entries, more };
  },
  view: (data, _route, error) => html`${heading('Limits and breakers', { as: { words: ['limits'], request: { path: 'v1/limits' }, json: data && JSON.stringify(data, null, 2) } })}${stale()}
    ${card('Rate limits', list({ data, error, items: data?.limits ?? [], empty: 'No rate limit is set.', body: (all) => table('Rate limits', ['Limit', 'Rate', { text: 'Left', kind: 'bar-cell' }, num('Tokens'), num('Waiting'), 'From', ''], all.map(limitRow)) }), cut(data, 'limits'))}
    ${card('Circuit breakers', list({ data, error, items: data?.breakers ?? [], empty: 'None has seen a failure within the last hour.', body: (all) => table('Circuit breakers', ['Type', 'State', 'Cause', num('Failures'), 'Since', 'Until', num('Opened'), ''], all.map(breakerRow)) }), cut(data, 'breakers'))}
    ${card('Concurrency', list({ data, error, items: data?.slots ?? [], empty: 'No slot is taken.', body: (all) => table('Concurrency limits', ['Type', { text: 'Taken', kind: 'bar-cell' }, num('Slots'), 'Runs', 'Nodes'], all.map(slotRow)) }), cut(data, 'slots'))}`,
};
