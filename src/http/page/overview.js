// The first page: is it well, how fast is it, and what needs a person.

import { html, nothing } from './vendor/lit-html.js';
import { allOf, get } from './api.js';
import { read, seen } from './counters.js';
import { clock, jobsWait, number, short, span, sum } from './format.js';
import { may, tenant } from './state.js';
import { bar, card, heading, line, list, pill, runLink, spark, stale, table, time } from './widgets.js';
import { to } from './router.js';

// What all nodes have counted in the last hour; they count by ten seconds.
let hour = { points: [], nodes: [] };
let asked = 0;

async function lastHour(signal) {
  if (Date.now() - asked < 10_000) return;
  hour = await get('v1/stats', {}, signal);
  asked = Date.now();
}

async function load(_route, signal) {
  const whole = tenant() === '_all';
  const [queues, health, nodes, breakers, dead] = await Promise.all([
    get('v1/queues', {}, signal),
    get('v1/health', {}, signal),
    may('read', true) ? get('v1/nodes', {}, signal) : { nodes: [] },
    // Those that have just opened come last.
    allOf('v1/breakers', 'breakers', {}, signal),
    get('v1/runs', { state: 'dead', limit: 6 }, signal),
    whole ? read(signal).catch(() => {}) : undefined,
    whole && may('read', true) ? lastHour(signal).catch(() => {}) : undefined,
  ]);
  return { ...queues, health, nodes: nodes.nodes, breakers: breakers.entries, moreBreakers: Boolean(breakers.cursor), dead: dead.runs };
}

/**
 * @param {string} name
 * @param {unknown} value
 * @param {{unit?: string, note?: unknown, plot?: unknown, bad?: boolean, href?: string}} [more]
 */
const tile = (name, value, { unit = '', note = nothing, plot = nothing, bad = false, href } = {}) => {
  const body = html`<span class="name">${name}</span><span class="value ${bad ? 'bad' : ''}">${value}<small>${unit}</small></span>${plot}<span class="note">${note}</span>`;
  return href ? html`<a class="tile" href=${href}>${body}</a>` : html`<div class="tile">${body}</div>`;
};

const upTo = (ms) => (ms > 600_000 ? '> 10 min' : ms === undefined ? '–' : `≤ ${span(ms)}`);

function tiles(data) {
  const waiting = data.queues.reduce((all, queue) => all + sum(queue.waiting), 0);
  const running = data.queues.reduce((all, queue) => all + queue.running, 0);
  const room = data.nodes.reduce((all, node) => all + Object.values(node.queues).reduce((of, queue) => of + queue.concurrency, 0), 0);
  const oldest = Math.max(0, ...data.queues.map((queue) => queue.oldest_age_ms ?? 0));
  const later = data.queues.reduce((all, queue) => all + (queue.scheduled ?? 0) + (queue.retrying ?? 0) + sum(queue.deferred), 0);
  const now = seen.rates.at(-1);
  const kept = hour.points.length > 1;
  const of = (name) => (kept ? hour.points.map((point) => (point[name] * 1000) / hour.every_ms) : seen.rates.map((rate) => rate[name]));
  // One node counts as often as it is asked, several together by ten seconds.
  const several = data.nodes.length > 1 && kept;
  const last = hour.points.slice(-6);
  const counted = (name) => last.reduce((all, point) => all + point[name], 0);
  const rate = (name) => (several ? (counted(name) * 1000) / (last.length * hour.every_ms) : now?.[name]);
  const minute = (name) => (several ? html`${number(counted(name))} in ${span(last.length * hour.every_ms)}`
    : seen.totals?.ms ? html`${number(seen.totals[name])} in ${span(Math.min(seen.totals.ms, 60000))}` : 'counting …');
  const newest = (name) => last.map((point) => point[name]).findLast((times) => times?.p50_ms !== undefined);
  const times = (name) => (several ? { p50: newest(name)?.p50_ms, p99: newest(name)?.p99_ms } : seen.times[name]);
  const rates = tenant() === '_all' ? html`
    ${tile('Enqueued', short(rate('enqueued')), { unit: '/s', note: minute('enqueued'), plot: spark(of('enqueued'), { label: 'Jobs enqueued a second' }) })}
    ${tile('Ended', short(rate('ended')), { unit: '/s', note: minute('ended'), plot: spark(of('ended'), { label: 'Runs ended a second', colour: 'green' }) })}
    ${tile('Failed attempts', short(rate('failed')), { unit: '/s', note: minute('failed'), plot: spark(of('failed'), { label: 'Failed attempts a second', colour: 'red' }), bad: rate('failed') > 0 })}
    <div class="tile"><span class="name">Times</span><dl class="times"><dt></dt><dd class="head">half</dd><dd class="head">99 %</dd>
      ${[['Wait', times('wait')], ['Attempt', times('run')]].map(([name, of]) => html`<dt>${name}</dt><dd>${upTo(of?.p50)}</dd><dd>${upTo(of?.p99)}</dd>`)}</dl><span class="note">of the last ${several ? span(hour.every_ms) : 'minute'}</span></div>` : nothing;
  return html`<div class="tiles">${rates}
    ${tile('Waiting', short(waiting), { note: waiting ? `oldest ${span(oldest)}` : 'none waits', href: to('runs', { state: 'enqueued' }) })}
    ${tile('Running', short(running), { note: room ? `of ${number(room)} places` : nothing, href: to('runs', { state: 'running' }) })}
    ${tile('Later', short(later), { note: 'scheduled, retrying, put off', href: to('runs', { state: 'scheduled' }) })}
    ${seen.dead === undefined || tenant() !== '_all' ? nothing : tile('Dead letters', short(seen.dead), { bad: seen.dead > 0, note: 'failed for good', href: to('dlq') })}</div>
    ${tenant() === '_all' && seen.since ? html`<p class="hint">${several ? html`Rates, times and curves are those of ${hour.nodes.length} nodes, counted each ${span(hour.every_ms)} since ${clock(Date.parse(hour.points[0].at))}.`
    : html`Rates and times are those of ${data.health.node}, watched since ${clock(seen.since)}${kept ? html`; the curves are those of one node in the last hour, since ${clock(Date.parse(hour.points[0].at))}` : nothing}.`}</p>` : nothing}`;
}

function attention(data) {
  const found = [
    ...data.health.reasons.map((text) => ['red', html`${data.health.node} is not ready: ${line(text)}`]),
    ...data.health.warnings.map((text) => ['amber', line(text)]),
    ...data.queues.filter((queue) => !queue.served && sum(queue.waiting)).map((queue) => ['red', html`${jobsWait(sum(queue.waiting))} in
      <a href=${to('queues')}>${queue.queue}</a>, which no node serves`]),
    ...data.queues.filter((queue) => queue.paused).map((queue) => ['amber', html`Queue <a href=${to('queues')}>${queue.queue}</a> is paused${queue.paused_until ? html`, until ${time(queue.paused_until)}` : nothing}`]),
    ...data.no_handler.map((type) => ['amber', html`No handler of <a href=${to('runs', { type: type.type })}>${type.type}</a> (${type.tenant}): ${jobsWait(type.jobs)} since
      ${time(type.since)}${type.did_you_mean ? html`. Did you mean ${type.did_you_mean}?` : nothing}`]),
    ...data.breakers.filter((breaker) => breaker.state !== 'closed').map((breaker) => ['red', html`The breaker of <a href=${to('limits')}>${breaker.type}</a>
      (${breaker.tenant}) is ${breaker.state.replace('_', ' ')}: its jobs wait`]),
    ...(data.moreBreakers ? [['amber', html`There are more <a href=${to('limits')}>breakers</a> than the first ${number(data.breakers.length)}, which are looked at here`]] : []),
    ...data.nodes.filter((node) => node.state !== 'running').map((node) => ['amber', html`Node <a href=${to('nodes')}>${node.node}</a> is ${node.state}`]),
  ];
  if (!found.length) return html`<div class="banner green" role="status">Nothing needs attention.</div>`;
  return card('Needs attention', html`<ul class="findings">${found.map(([colour, text]) => html`<li class=${colour}>${text}</li>`)}</ul>`);
}

function queues(data) {
  const most = Math.max(1, ...data.queues.map((queue) => queue.depth));
  return card('Queues', table('Queues', ['Queue', { text: 'Depth', kind: 'bar-cell' }, { text: 'Waiting', kind: 'num' }, { text: 'Running', kind: 'num' }, { text: 'Oldest', kind: 'num wide' }],
    data.queues.map((queue) => html`<tr><td><a href=${to('runs', { queue: queue.queue })}>${queue.queue}</a> ${queue.paused ? pill('paused') : nothing}${queue.served ? nothing : pill('unserved')}</td>
      <td class="bar-cell">${bar([{ value: queue.running, colour: 'blue' }, { value: sum(queue.waiting), colour: 'grey' }], most, `${queue.running} running, ${sum(queue.waiting)} waiting`)}</td>
      <td class="num">${number(sum(queue.waiting))}</td><td class="num">${number(queue.running)}</td>
      <td class="num wide">${queue.oldest_age_ms ? span(queue.oldest_age_ms) : '–'}</td></tr>`)), html`<a href=${to('queues')}>All about queues</a>`);
}

const nodes = (data) => (data.nodes.length ? card('Nodes', table('Nodes', ['Node', 'State', { text: 'Busy', kind: 'bar-cell' }, { text: 'Up', kind: 'num' }], data.nodes.map((node) => {
  const all = Object.values(node.queues);
  const [busy, room] = [all.reduce((n, queue) => n + queue.running, 0), all.reduce((n, queue) => n + queue.concurrency, 0)];
  return html`<tr><td class="cut wider"><span title=${node.node}>${node.node}</span></td><td>${pill(node.state, node.state === 'running' ? 'green' : undefined)}</td>
    <td class="bar-cell">${bar([{ value: busy, colour: 'blue' }], room, `${busy} of ${room} places`)}</td><td class="num">${span(Date.now() - Date.parse(node.started_at))}</td></tr>`;
})), html`<a href=${to('nodes')}>All about nodes</a>`) : nothing);

const dead = (data) => card('Died last', list({ data, items: data.dead, empty: 'No dead letter.', body: (runs) => table('Runs that died last', ['Run', 'Type', 'Error', { text: 'When', kind: 'num' }],
  runs.map((run) => html`<tr><td class="cut">${runLink(run)}</td><td class="cut"><span>${run.type}</span></td><td class="cut wider"><span title=${line(run.error?.message)}>${line(run.error?.message)}</span></td><td class="num">${time(run.ended_at)}</td></tr>`)) }),
html`<a href=${to('dlq')}>Dead letters</a>`);

export default {
  title: () => 'Overview',
  every: 2000,
  load,
  view: (data, _route, error) => html`${heading('Overview', { as: { words: ['queues'], request: { path: 'v1/queues' }, json: data && JSON.stringify(data, null, 2) } })}
    ${stale()}${data ? html`${tiles(data)}${attention(data)}<div class="columns">${queues(data)}<div>${nodes(data)}</div></div>${dead(data)}` : list({ data, error, items: [], empty: '' })}`,
};
