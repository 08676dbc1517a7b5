// Recurring schedules: when each is due next, what its last run was, and what can be done.

import { html, nothing } from './vendor/lit-html.js';
import { ask, get, part } from './api.js';
import { absolute } from './format.js';
import { may, toast } from './state.js';
import { askFirst, button, heading, line, list, ofTenant, pill, stale, table, time } from './widgets.js';
import { to } from './router.js';

const reload = () => dispatchEvent(new Event('reload'));

async function act(schedule, verb, said) {
  try {
    await ask('POST', `v1/schedules/${part(schedule.id)}/${verb}`, { as: schedule.tenant });
    toast(said);
  } catch (error) {
    toast(error.message, true);
  }
  reload();
}

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

/** When it is due, in words where they are short. */
const when = (schedule) => (schedule.every ?? (schedule.every_ms ? `${schedule.every_ms} ms` : undefined)
  ? html`every ${schedule.every ?? `${schedule.every_ms} ms`}` : html`<span class="mono">${schedule.cron}</span> <span class="faint">${schedule.time_zone ?? 'UTC'}</span>`);

/** A due time in the zone of the schedule. */
function there(at, zone) {
  try {
    return new Intl.DateTimeFormat('en-GB', { timeZone: zone ?? 'UTC', dateStyle: 'medium', timeStyle: 'medium' }).format(new Date(at));
  } catch {
    return at;
  }
}

const row = (schedule) => html`<tr><td class="cut">${ofTenant(schedule.tenant)}<span class="strong">${schedule.id}</span> ${schedule.paused ? pill('paused') : nothing}</td>
  <td class="keep">${when(schedule)}</td><td class="cut"><a href=${to('runs', { type: schedule.type })}>${schedule.type}</a></td>
  <td title=${(schedule.next_run ?? []).map((at) => `${there(at, schedule.time_zone)} ${schedule.time_zone ?? 'UTC'} = ${absolute(at)}`).join('\n')}>${schedule.next_run?.length ? time(schedule.next_run[0]) : html`<span class="faint">–</span>`}</td>
  <td class="cut">${schedule.last_run ? html`<a class="row-link mono" href=${to(['run', schedule.tenant, schedule.last_run.run_id])}>${schedule.last_run.run_id}</a>` : html`<span class="faint">none yet</span>`}</td>
  <td class="wide">${schedule.last_skipped ? html`${time(schedule.last_skipped.due_at)} <span class="faint" title=${line(schedule.last_skipped.error)}>${schedule.last_skipped.reason}</span>` : nothing}</td>
  <td class="acts">${may('operate') ? html`${button('Run now', () => act(schedule, 'run-now', 'A run is started'), { kind: 'small' })}
    ${schedule.paused ? button('Resume', () => act(schedule, 'resume', `${schedule.id} is resumed`), { kind: 'small' }) : button('Pause', () => act(schedule, 'pause', `${schedule.id} is paused`), { kind: 'small' })}
    ${button('Backfill', () => backfill(schedule), { kind: 'small quiet' })}` : nothing}</td></tr>`;

export default {
  title: () => 'Schedules',
  every: 5000,
  load: (_route, signal) => get('v1/schedules', { limit: 200 }, signal),
  view: (data, _route, error) => html`${heading('Schedules', { as: { words: ['schedules'], request: { path: 'v1/schedules' }, json: data && JSON.stringify(data.schedules, null, 2) } })}${stale()}
    <section class="card">${list({ data, error, items: data?.schedules ?? [], empty: 'No schedule: the command “longshore schedules put”, or the configuration, makes one.',
    body: (schedules) => table('Schedules', ['Schedule', 'Due', 'Type', 'Next', 'Last run', { text: 'Last left out', kind: 'wide' }, ''], schedules.map(row)) })}
    ${data?.cursor ? html`<footer class="more faint">The first 200 are shown; there are more.</footer>` : nothing}</section>
    <p class="hint">Held over “next”: the next five times, in the zone of the schedule and in yours.</p>`,
};
