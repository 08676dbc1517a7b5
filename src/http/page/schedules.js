// Recurring schedules: when each is due next, what its last run was, and what can be done.

import { html, nothing } from './vendor/lit-html.js';
import { ask, askText, get, mustBeFree, part, Problem } from './api.js';
import { absolute, cronWords, indented, isJson, member, zone } from './format.js';
import { acted, done, may, tenant, toast, tried } from './state.js';
import { askFirst, button, heading, line, list, ofTenant, pill, stale, table, time } from './widgets.js';
import { to } from './router.js';

const act = (schedule, verb, said) => acted(ask('POST', `v1/schedules/${part(schedule.id)}/${verb}`, { as: schedule.tenant }), said);

function backfill(schedule) {
  askFirst({
    title: `Backfill ${schedule.id}`,
    text: html`<p>Starts a run for each due time of a span that is over, as far as it has none. At most 1,000. A dry run comes first.</p>`,
    fields: [{ name: 'from', label: 'From', type: 'datetime-local', required: true }, { name: 'until', label: 'Until', type: 'datetime-local', hint: 'Empty: until now.' }],
    label: 'Count them',
    act: async ({ from, until }) => {
      const body = { from: new Date(from).toISOString(), until: until && new Date(until).toISOString() };
      const path = `v1/schedules/${part(schedule.id)}/backfill`;
      const many = (answer) => (Array.isArray(answer.started) ? answer.started.length : answer.started);
      const found = await ask('POST', path, { as: schedule.tenant, body: { ...body, dry_run: true } });
      setTimeout(() => askFirst({
        title: `Backfill ${schedule.id}`,
        text: html`<p>Starts <strong>${many(found)}</strong> runs.</p>`,
        label: 'Start them',
        act: async () => {
          const answer = await ask('POST', path, { as: schedule.tenant, body });
          toast(`${many(answer)} runs are started`);
        },
      }));
    },
  });
}

/** How it stands, which is no part of what was put. */
const STATE = ['tenant', 'declared', 'created_at', 'updated_at', 'last_run', 'last_skipped', 'next_run'];
/** What the form has, or goes as it is written; the rest of a schedule stays as it is. */
const FORM = ['every', 'every_ms', 'cron', 'time_zone', 'type', 'queue', 'payload', 'payload_base64', 'then'];

/** Whether it or a job that follows it is shown without its payload. */
const isRedacted = (job) => Boolean(job && (job.redacted || isRedacted(job.then)));

/** Makes a schedule, or changes one that nobody else has changed meanwhile. Payloads go as they are written. */
async function put(schedule) {
  const path = (id) => `v1/schedules/${part(id)}`;
  const who = schedule?.tenant ?? (tenant() === '_all' ? 'default' : tenant());
  // What a redacted type hides would be lost with the change.
  const query = isRedacted(schedule) ? { reveal: true } : {};
  const text = schedule ? await askText('GET', path(schedule.id), { as: who, query }) : '{}';
  const before = JSON.parse(text);
  const payload = member(text, 'payload') ?? '';
  const kept = Object.fromEntries(Object.entries(before).filter(([name]) => name !== 'id' && !STATE.includes(name) && !FORM.includes(name)));
  askFirst({
    title: schedule ? `Change ${schedule.id}` : 'Make a schedule',
    fields: [
      ...schedule ? [] : [{ name: 'id', label: 'Id', required: true, placeholder: 'nightly-report' }],
      ...!schedule && tenant() === '_all' ? [{ name: 'tenant', label: 'Tenant', value: who, required: true }] : [],
      { name: 'type', label: 'Type', required: true, value: before.type ?? '' },
      { name: 'cron', label: 'Cron', value: before.cron ?? '', placeholder: '30 2 * * MON-FRI', hint: 'Five fields, or six with seconds first; or leave it empty and say every.' },
      { name: 'time_zone', label: 'Time zone', value: before.time_zone ?? '', placeholder: 'UTC' },
      { name: 'every', label: 'Every', value: before.every ?? '', placeholder: '15m' },
      { name: 'queue', label: 'Queue', value: before.queue ?? '', placeholder: 'main' },
      ...before.payload_base64 ? [] : [{ name: 'payload', label: 'Payload (JSON)', type: 'area', value: indented(payload) }],
    ],
    label: schedule ? 'Change it' : 'Make it',
    act: async (said) => {
      if (said.payload !== undefined && !isJson(said.payload)) throw new Problem(0, { detail: 'The payload is no JSON.' });
      if (!schedule) await mustBeFree(path(said.id), said.tenant ?? who);
      const { type, cron, time_zone: zone, every, queue } = said;
      const body = JSON.stringify({ ...kept, type, cron, time_zone: zone, every, queue, payload_base64: before.payload_base64, if_updated_at: before.updated_at });
      const texts = Object.entries({ payload: said.payload, then: member(text, 'then') }).filter(([, value]) => value !== undefined).map(([name, value]) => `,"${name}":${value}`);
      const asked = askText('PUT', path(schedule?.id ?? said.id), { as: said.tenant ?? who, body: `${body.slice(0, -1)}${texts.join('')}}` });
      await done(asked, schedule ? 'It is changed' : 'It is made');
    },
  });
}

/** When it is due, in words where they are short. */
const when = (schedule) => (schedule.every ?? (schedule.every_ms ? `${schedule.every_ms} ms` : undefined)
  ? html`every ${schedule.every ?? `${schedule.every_ms} ms`}`
  : html`<span title=${schedule.cron}>${cronWords(schedule.cron) ?? html`<span class="mono">${schedule.cron}</span>`}</span> <span class="faint">${schedule.time_zone ?? 'UTC'}</span>`);

/** When it is next due, and behind that the five times, in its zone and in the reader's. */
function next(schedule) {
  const times = schedule.next_run ?? [];
  if (!times.length) return html`<span class="faint">–</span>`;
  const zones = [...new Set([schedule.time_zone ?? 'UTC', zone.name])];
  return html`<details class="next"><summary>${time(times[0])}</summary><table><caption class="hidden">The next times of ${schedule.id}</caption>
    <thead><tr>${zones.map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
    <tbody>${times.map((at) => html`<tr>${zones.map((name) => html`<td>${absolute(at, name).replace('.000', '')}</td>`)}</tr>`)}</tbody></table></details>`;
}

const row = (schedule) => html`<tr><td class="cut">${ofTenant(schedule.tenant)}<span class="strong">${schedule.id}</span> ${schedule.paused ? pill('paused') : nothing}</td>
  <td class="keep">${when(schedule)}</td><td class="cut"><a href=${to('runs', { type: schedule.type })}>${schedule.type}</a></td>
  <td class="keep">${next(schedule)}</td>
  <td class="cut">${schedule.last_run ? html`<a class="row-link mono" href=${to(['run', schedule.tenant, schedule.last_run.run_id])}>${schedule.last_run.run_id}</a>` : html`<span class="faint">none yet</span>`}</td>
  <td class="wide">${schedule.last_skipped ? html`${time(schedule.last_skipped.due_at)} <span class="faint" title=${line(schedule.last_skipped.error)}>${schedule.last_skipped.reason}</span>` : nothing}</td>
  <td class="acts">${may('operate') ? html`${button('Run now', () => act(schedule, 'run-now', 'A run is started'), { kind: 'small' })}
    ${schedule.paused ? button('Resume', () => act(schedule, 'resume', `${schedule.id} is resumed`), { kind: 'small' }) : button('Pause', () => act(schedule, 'pause', `${schedule.id} is paused`), { kind: 'small' })}
    ${button('Change', () => tried(put(schedule)), { kind: 'small quiet' })}${button('Backfill', () => backfill(schedule), { kind: 'small quiet' })}` : nothing}</td></tr>`;

export default {
  title: () => 'Schedules',
  every: 5000,
  load: (_route, signal) => get('v1/schedules', { limit: 200 }, signal),
  view: (data, _route, error) => html`${heading('Schedules', { acts: may('operate') ? button('Make a schedule', () => tried(put()), { kind: 'primary' }) : nothing, as: { words: ['schedules'], request: { path: 'v1/schedules' }, json: data && JSON.stringify(data.schedules, null, 2) } })}${stale()}
    <section class="card">${list({ data, error, items: data?.schedules ?? [], empty: 'There is no schedule.',
    body: (schedules) => table('Schedules', ['Schedule', 'Due', 'Type', 'Next', 'Last run', { text: 'Last left out', kind: 'wide' }, ''], schedules.map(row)) })}
    ${data?.cursor ? html`<footer class="more faint">The first 200 are shown; there are more.</footer>` : nothing}</section>
    <p class="hint">“Next” opens: the next five times, in the zone of the schedule and in yours.</p>`,
};
