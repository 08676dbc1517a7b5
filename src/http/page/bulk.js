// Acts on many: asked by the page one call after the other, with progress, a pace and a way to stop.

import { html, nothing } from './vendor/lit-html.js';
import { ask, now } from './api.js';
import { number } from './format.js';
import { changed, reload, state, tenant, toast, tried } from './state.js';
import { askFirst, button, line, ofTenant, pill, runLink, time } from './widgets.js';

const AT_ONCE = 200;
const SAMPLE = 10;
const RATE = { name: 'rate', label: 'How fast', options: [['', 'at once'], ['1', '1 a second'], ['10', '10 a second'], ['100', '100 a second']], hint: 'Slower is kinder to a service that has just come back. This tab keeps the pace: leave it open.' };

/** How many an act would reach. */
export async function counted({ path, body, done, as }) {
  const said = await ask('POST', path, { body: { ...body, dry_run: true }, as });
  return { count: said[done] ?? 0, more: Boolean(said.more), failed: said.failed ?? [] };
}

/** Some of them, the newest first: those in one of these states. */
async function sample(body, states, as) {
  const of = { ...body, all: undefined, set: undefined };
  const pages = await Promise.all(states.map((name) => ask('GET', 'v1/runs', { query: { ...of, state: name, limit: SAMPLE }, as })));
  return pages.flatMap((page) => page.runs).slice(0, SAMPLE);
}

/**
 * Shows how far an act on many is, until it is over.
 * @param {string} title
 * @param {number | undefined} total
 * @param {(bulk: any) => Promise<void>} work
 */
async function shown(title, total, work) {
  if (state.bulk && !state.bulk.over) return toast(`“${state.bulk.title}” is not over yet: stop it, or wait for it`, true);
  /** @type {any} */
  const bulk = { title, asker: state.session, done: 0, failed: [], failures: 0, total, stopped: false, over: false };
  state.bulk = bulk;
  changed();
  try {
    await work(bulk);
  } catch (error) {
    bulk.error = error.message;
  }
  bulk.over = true;
  changed();
  reload();
}

/** Not if it was stopped, and not in the session of somebody else. */
const goesOn = (bulk) => !bulk.stopped && state.session === bulk.asker;

/**
 * Calls until nothing is left, or it is stopped; at most so many a second. `as`: whose runs are meant, whatever the page
 * shows meanwhile.
 * @param {{title: string, path: string, body: object, done: string, as: string, total?: number, rate?: number}} what
 */
export const run = ({ title, path, body, done, as, total, rate = 0 }) => shown(title, total, async (bulk) => {
  const begun = performance.now();
  const step = rate ? Math.min(rate, AT_ONCE) : AT_ONCE;
  for (let more = true; more && goesOn(bulk);) {
    // Each call meets those that failed again, and its limit counts them, too.
    const said = await ask('POST', path, { body: { ...body, limit: step + bulk.failures }, as });
    const failures = said.failed_in_all ?? said.failed?.length ?? 0;
    more = Boolean(said.more) && ((said[done] ?? 0) > 0 || failures > bulk.failures);
    bulk.done += said[done] ?? 0;
    bulk.failed = said.failed ?? [];
    bulk.failures = failures;
    changed();
    const early = rate && more ? begun + (bulk.done / rate) * 1000 - performance.now() : 0;
    if (early > 0) await new Promise((go) => { setTimeout(go, early); });
  }
});

/** Each chosen run is asked for by itself; what is refused is counted. */
export const forEach = (title, act) => shown(title, state.selected.size, async (bulk) => {
  for (const one of [...state.selected]) {
    if (!goesOn(bulk)) break;
    const [tenant, id] = one.split('/');
    try {
      await act(id, tenant);
      bulk.done += 1;
      state.selected.delete(one);
    } catch (error) {
      bulk.failures = bulk.failed.push({ run_id: id, error: error.message });
    }
    changed();
  }
});

/**
 * Shows what is meant, how many and some of them, then acts: on those that are there now, of the tenant that is looked at
 * now. More than 100 are confirmed by their number.
 * @param {{verb: string, title: string, what: string, path: string, body: object, done: string, danger?: boolean, states: string[]}} what
 */
export async function askForMany({ verb, title, what, path, body: filter, done, danger = false, states }) {
  const as = tenant();
  const body = { until: now().toISOString(), ...filter };
  const answers = await tried(Promise.all([counted({ path, body, done, as }), sample(body, states, as)]));
  if (!answers) return undefined;
  const [seen, some] = answers;
  if (!seen.count) return toast(`Nothing to ${verb.toLowerCase()}: no ${what} fits any more`);
  const meant = Object.entries({ tenant: as, ...filter }).filter(([name]) => !['all', 'set'].includes(name)).map((pair) => pair.join(' ')).join(', ');
  const many = `${seen.more ? 'at least ' : ''}${number(seen.count)}`;
  return askFirst({
    title,
    text: html`<p>${verb}s <strong>${many}</strong> ${what} (${line(meant)}), as a dry run says. ${seen.failed.length
      ? html`Of some it says no, such as: ${line(seen.failed[0].error)}.` : nothing}</p>
      ${some.length ? html`<p>${some.length < seen.count ? 'Some' : 'All'} of them:</p><ul class="sample" aria-label="Some of them">${some.map((one) => html`<li>${pill(one.state)} ${time(one.ended_at ?? one.run_at ?? one.enqueued_at)}
        <span class="strong">${one.type}</span> ${ofTenant(one.tenant)}${runLink(one)}</li>`)}</ul>` : nothing}`,
    fields: [RATE],
    typed: danger && seen.count > 100 ? String(seen.count) : undefined,
    label: `${verb} ${many}`,
    danger,
    act: async ({ rate }) => {
      run({ title, path, body, done, as, total: seen.more ? undefined : seen.count, rate: Number(rate ?? 0) });
    },
  });
}

export function bulkView() {
  const bulk = state.bulk;
  if (!bulk) return nothing;
  const close = () => {
    state.bulk = null;
    changed();
  };
  return html`<div class="bulk" role="status"><strong>${bulk.title}</strong>
    <span>${number(bulk.done)}${bulk.total ? ` of ${number(bulk.total)}` : ''} done${bulk.failures ? `, ${number(bulk.failures)} failed` : ''}</span>
    ${bulk.error ? html`<span class="bad">${line(bulk.error)}</span>` : nothing}
    ${bulk.failed.length ? html`<span class="bad">${line(bulk.failed[0].run_id)}: ${line(bulk.failed[0].error)}</span>` : nothing}
    ${bulk.over ? button('Close', close, { kind: 'small' })
      : button(bulk.stopped ? 'Stopping …' : 'Stop', () => { bulk.stopped = true; changed(); }, { kind: 'small', disabled: bulk.stopped })}</div>`;
}
