// Queues: what waits in each, who serves it, and pauses.

import { html, nothing } from './vendor/lit-html.js';
import { ask, get, part } from './api.js';
import * as bulk from './bulk.js';
import { seen, read } from './counters.js';
import { number, short, span, sum } from './format.js';
import { acted, changed, done, may, state, tenant, tried } from './state.js';
import { askFirst, bar, button, card, heading, list, num, pill, stale, table, time } from './widgets.js';
import { to } from './router.js';

const FOR = [['', 'until it is resumed'], ['15', 'for 15 minutes'], ['60', 'for an hour'], ['1440', 'for a day']];

function pause(queue) {
  askFirst({
    title: `Pause ${queue.queue}`,
    text: html`<p>Nothing of it starts any more, on any node; what runs goes on, and new jobs are taken and wait.</p>`,
    fields: [{ name: 'for', label: 'How long', options: FOR }, { name: 'type', label: 'Only this type', placeholder: 'all types', hint: 'Empty: the whole queue.' }],
    label: 'Pause',
    act: ({ for: minutes, type }) => {
      const until = minutes ? new Date(Date.now() + minutes * 60000).toISOString() : undefined;
      const asked = ask('POST', `v1/queues/${part(queue.queue)}/pause`, { body: { until, type }, as: '' });
      return done(asked, ({ warning }) => warning || `${type ?? queue.queue} is paused`);
    },
  });
}

const resume = (queue, type) => acted(ask('POST', `v1/queues/${part(queue)}/resume`, { body: { type }, as: '' }), `${type ?? queue} is resumed`);

async function purge(queue) {
  const what = { path: `v1/queues/${part(queue.queue)}/purge`, done: 'cancelled', as: '' };
  const found = await tried(bulk.counted({ ...what, body: {} }));
  if (!found) return;
  askFirst({
    title: `Purge ${queue.queue}`,
    text: html`<p>Cancels <strong>${found.more ? 'at least ' : ''}${number(found.count)}</strong> runs of all tenants that wait, are delayed, or are between two
      attempts. Attempts that run go on. There is no way back.</p>`,
    typed: queue.queue,
    danger: true,
    label: 'Purge',
    act: async () => {
      bulk.run({ ...what, title: `Purging ${queue.queue}`, body: { confirm: queue.queue }, total: found.more ? undefined : found.count });
    },
  });
}

const counts = (of) => Object.entries(of ?? {}).filter(([, count]) => count);
const byName = (title, name, of) => (counts(of).length ? table(title, [name, num('Jobs')], counts(of).map(([word, count]) => html`<tr>
  <td>${word.replaceAll('_', ' ')}</td><td class="num">${number(count)}</td></tr>`)) : nothing);

/** Who has jobs in it, what each is owed of its starts, and what each got in a second. */
function shares(said) {
  const started = said.shares.reduce((all, one) => all + one.delivered, 0);
  const percent = (of) => `${(of * 100).toFixed(1)} %`;
  return html`<p>While jobs of several ${said.fair_by}s wait in a lane, each gets its weight's part of what starts, and what others leave.</p>
    ${said.shares.length ? table(`Shares of ${said.queue}`, [said.fair_by === 'type' ? 'Type' : 'Tenant', ...['Jobs', 'Weight', 'Share', 'Delivered in a second'].map(num)], said.shares.map((one) => html`<tr>
      <td class="cut">${one.tenant ?? one.type}</td><td class="num">${number(one.jobs)}</td><td class="num">${one.weight}</td><td class="num">${percent(one.share)}</td>
      <td class="num">${number(one.delivered)}${started ? html` <span class="faint">${percent(one.delivered / started)}</span>` : nothing}</td></tr>`)) : html`<div class="empty">No job is in its lanes.</div>`}
    ${said.left_out ? html`<p class="hint">${number(said.left_out)} more have jobs in it.</p>` : nothing}`;
}

/** What waits in each lane and why; then, after the second for which deliveries are counted, who gets what. */
function details(queue) {
  const lanes = html`${byName(`Waiting in ${queue.queue}`, 'Lane', queue.waiting)}${byName(`Put off in ${queue.queue}`, 'Put off as', queue.deferred)}`;
  const show = (text) => askFirst({ title: `Inside ${queue.queue}`, text: html`${lanes}${text}` });
  if (!may('read', true)) return show(counts(queue.waiting).length || counts(queue.deferred).length ? nothing : html`<div class="empty">Nothing waits.</div>`);
  show(html`<div class="empty" aria-busy="true">Deliveries are counted for a second …</div>`);
  const { dialog } = state;
  const then = (text) => { if (state.dialog === dialog) show(text); };
  return ask('GET', `v1/queues/${part(queue.queue)}/shares`, { as: '' }).then((said) => then(shares(said)), (error) => then(html`<p class="error">${error.message}</p>`));
}

function row(queue, most) {
  const rates = tenant() === '_all' && seen.queues[queue.queue];
  return html`<tr><td class="name"><a class="row-link" href=${to('runs', { queue: queue.queue })}>${queue.queue}</a>
      ${queue.paused ? html` ${pill('paused')}${queue.paused_until ? html` <span class="faint">until ${time(queue.paused_until)}</span>` : nothing}` : nothing}
      ${queue.served ? nothing : html` ${pill('unserved')}`}
      ${(queue.paused_types ?? []).map((paused) => html`<div class="faint">${paused.type} is paused ${paused.until ? html`until ${time(paused.until)}` : nothing}
        ${may('operate', true) ? button('Resume', () => resume(queue.queue, paused.type), { kind: 'small' }) : nothing}</div>`)}</td>
    <td class="bar-cell">${bar([{ value: queue.running, colour: 'blue' }, { value: sum(queue.waiting), colour: 'grey' }], most, `${queue.running} running, ${sum(queue.waiting)} waiting`)}</td>
    <td class="num">${number(sum(queue.waiting))}</td>
    <td class="num">${number(queue.running)}</td>
    <td class="num">${number(queue.scheduled)}</td><td class="num">${number(queue.retrying)}</td>
    <td class="num">${number(sum(queue.deferred))}</td>
    <td class="num">${queue.oldest_age_ms ? span(queue.oldest_age_ms) : '–'}</td>
    <td class="num">${rates ? html`${short(rates.enqueued)} / ${short(rates.ended)}` : '–'}</td>
    <td class="cut"><span title=${queue.served_by.join(', ')}>${queue.served_by.length === 1 ? queue.served_by[0] : `${queue.served_by.length} nodes`}</span></td>
    <td class="acts">${button('Details', () => details(queue), { kind: 'small quiet' })}${may('operate', true) ? html`${queue.paused ? button('Resume', () => resume(queue.queue), { kind: 'small' }) : button('Pause', () => pause(queue), { kind: 'small' })}
      ${button('Purge', () => purge(queue), { kind: 'small quiet danger-text' })}` : nothing}</td></tr>`;
}

function view(data, _route, error) {
  const most = Math.max(1, ...(data?.queues ?? []).map((queue) => queue.depth));
  return html`${heading('Queues', { as: { words: ['queues'], request: { path: 'v1/queues' }, json: data && JSON.stringify(data.queues, null, 2) } })}${stale()}
    <section class="card">${list({
      data, error, items: data?.queues ?? [], empty: 'No queue is declared.',
      body: (queues) => table('Queues', ['Queue', { text: 'Depth', kind: 'bar-cell' }, num('Waiting'), num('Running'), num('Scheduled'), num('Retrying'), num('Put off'), num('Oldest'), num('In / out'), 'Served by', ''], queues.map((queue) => row(queue, most))),
    })}</section>
    <p class="hint">Blue runs, grey waits. In / out: of the last minute, as this node counts. <em>Details</em>: its lanes, why jobs are put off, and who gets what.</p>
    ${data?.no_handler.length ? card('Types without a handler', table('Types without a handler', ['Type', num('Jobs'), 'Since', 'Listens on', ''], data.no_handler.map((type) => html`<tr>
      <td><a href=${to('runs', { type: type.type, tenant: type.tenant })}>${type.type}</a> <span class="faint">${type.tenant}</span></td><td class="num">${number(type.jobs)}</td><td>${time(type.since)}</td>
      <td class="mono cut"><span>${type.subject}</span></td><td>${type.never_served ? html`never seen${type.did_you_mean ? html`; did you mean <strong>${type.did_you_mean}</strong>?` : nothing}` : nothing}</td></tr>`))) : nothing}`;
}

export default {
  title: () => 'Queues',
  every: 2500,
  load: (_route, signal) => {
    // The rates are filled in as they come: the node reads the whole cluster's counts for them.
    if (tenant() === '_all') read(signal).then(changed, () => {});
    return get('v1/queues', {}, signal);
  },
  view,
};
