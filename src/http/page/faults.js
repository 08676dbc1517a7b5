// Faults on purpose: which attempts meet what, until when, to rehearse failure.

import { html, nothing } from './vendor/lit-html.js';
import { get } from './api.js';
import { number, span } from './format.js';
import { change } from './limits.js';
import { may, tried } from './state.js';
import { askFirst, button, heading, line, list, pill, stale, table, time } from './widgets.js';
import { to } from './router.js';

/** What an attempt meets, by kind. */
const MEETS = {
  latency: 'Its handler is called later.',
  retryable: 'It fails and is tried again; its handler is not called.',
  permanent: 'It fails for good; its handler is not called.',
  panic: 'The worker panics instead of calling its handler.',
  hang: 'It does nothing until its time limit.',
  lost_heartbeat: 'Its handler is called, and nothing is heard of it.',
  fail_after_work: 'Its handler succeeds, and the reply is dropped: the work is done again.',
  fail_at_step: 'It fails as its handler begins a step.',
  storm: 'Every attempt fails and is tried again.',
};
const FOR = [['10', '10 minutes'], ['2', '2 minutes'], ['60', 'an hour'], ['1440', '24 hours']];

const set = () => askFirst({
  title: 'Set a fault on purpose',
  text: html`<p>Attempts of the type meet it on every node whose configuration allows it. It is in sight on all pages, and ends by itself.</p>`,
  fields: [
    { name: 'type', label: 'Type', required: true, placeholder: 'whole, such as email.send' },
    { name: 'kind', label: 'What an attempt meets', options: Object.entries(MEETS).map(([kind, text]) => [kind, `${kind}: ${text}`]), value: 'retryable' },
    { name: 'minutes', label: 'For how long', options: FOR },
    { name: 'percent', label: 'How many of 100 attempts', type: 'number', placeholder: '100' },
    { name: 'limit', label: 'At most so many attempts on each node', type: 'number', placeholder: 'no limit' },
    { name: 'delay', label: 'Of latency: later by so many ms', type: 'number', placeholder: '3000' },
    { name: 'step', label: 'Of fail_at_step: the step', placeholder: 'its name' },
  ],
  danger: true,
  label: 'Set it',
  act: ({ type, kind, minutes, percent, limit, delay, step }) => change('PUT', 'v1/faults', { type, kind, until: new Date(Date.now() + minutes * 60000).toISOString(), probability: percent && percent / 100, limit: limit && Number(limit), delay_ms: delay && Number(delay), step }, `${type} meets ${kind}`),
});

const end = (which, text) => tried(change('POST', 'v1/faults/clear', which, text));

const row = (fault) => html`<tr><td><a class="row-link" href=${to('runs', { type: fault.type })}>${fault.type}</a></td>
  <td>${pill(fault.kind, 'red')}</td><td class="wide">${MEETS[fault.kind] ?? nothing}${fault.delay_ms ? html` <span class="faint">By ${span(fault.delay_ms)}.</span>` : nothing}${fault.step ? html` <span class="faint">The step: ${line(fault.step)}.</span>` : nothing}</td>
  <td class="num">${Number((fault.probability * 100).toPrecision(3))} %</td><td class="num wide">${fault.limit ? number(fault.limit) : html`<span class="faint">no limit</span>`}</td><td>${time(fault.until)}</td>
  <td class="acts">${may('operate', true) ? button('End', () => end({ type: fault.type, kind: fault.kind }, `${fault.type} no longer meets ${fault.kind}`), { kind: 'small' }) : nothing}</td></tr>`;

function view(data, _route, error) {
  const refused = !data && error?.status === 403;
  const mayAct = may('operate', true) && data;
  return html`${heading('Faults', {
    sub: 'Faults on purpose, to rehearse failure: what attempts meet, and until when.',
    acts: mayAct ? html`${data.faults.length ? button('End all', () => end({}, 'All faults are ended')) : nothing}${button('Set a fault', set, { kind: 'primary' })}` : nothing,
    as: { words: ['faults'], request: { path: 'v1/faults' }, json: data && JSON.stringify(data.faults, null, 2) },
  })}${stale()}
    <section class="card">${refused ? html`<div class="empty">${line(error.message)}. ${line(error.hint)}</div>` : list({
      data, error, items: data?.faults ?? [], empty: 'No fault is set: what fails, fails by itself.',
      body: (faults) => table('Faults', ['Type', 'Meets', { text: 'Which is', kind: 'wide' }, { text: 'Of attempts', kind: 'num' }, { text: 'On each node', kind: 'num wide' }, 'Until', ''], faults.map(row)),
    })}</section>`;
}

export default {
  title: () => 'Faults',
  every: 5000,
  load: (_route, signal) => get('v1/faults', {}, signal),
  view,
};
