// Acts on many: asked by the page one call after the other, with progress and a way to stop.

import { html, nothing } from './vendor/lit-html.js';
import { ask } from './api.js';
import { number } from './format.js';
import { changed, reload, state, toast } from './state.js';
import { askFirst, button, line } from './widgets.js';

const AT_ONCE = 200;

/** How many an act would reach. */
export async function counted(path, body, done) {
  const said = await ask('POST', path, { body: { ...body, dry_run: true } });
  return { count: said[done] ?? 0, more: Boolean(said.more), failed: said.failed ?? [] };
}

/** Calls until nothing is left, or it is stopped. */
export async function run({ title, path, body, done, total }) {
  const bulk = { title, done: 0, failed: [], total, stopped: false, over: false };
  state.bulk = bulk;
  changed();
  try {
    for (let more = true; more && !bulk.stopped;) {
      const said = await ask('POST', path, { body: { ...body, limit: AT_ONCE + bulk.failed.length } });
      bulk.done += said[done] ?? 0;
      bulk.failed = said.failed ?? [];
      more = Boolean(said.more) && (said[done] ?? 0) > 0;
      changed();
    }
  } catch (error) {
    bulk.error = error.message;
  }
  bulk.over = true;
  changed();
  reload();
}

/**
 * Shows what is meant and how many, then acts. More than 100 are confirmed by their number.
 * @param {{verb: string, title: string, what: string, path: string, body: object, done: string, danger?: boolean,
 *   fields?: import('./widgets.js').Field[], change?: (said: any) => object}} what
 */
export async function askForMany({ verb, title, what, path, body, done, danger = false, fields = [], change = () => ({}) }) {
  let seen;
  try {
    seen = await counted(path, body, done);
  } catch (error) {
    return toast(error.message, true);
  }
  if (!seen.count) return toast(`Nothing to ${verb.toLowerCase()}: no ${what} fits any more`);
  const many = `${seen.more ? 'at least ' : ''}${number(seen.count)}`;
  return askFirst({
    title,
    text: html`<p>${verb}s <strong>${many}</strong> ${what}, as a dry run says. ${seen.failed.length
      ? html`Of some it says no, such as: ${line(seen.failed[0].error)}.` : nothing}</p>`,
    fields,
    typed: danger && seen.count > 100 ? String(seen.count) : undefined,
    label: `${verb} ${many}`,
    danger,
    act: async (said) => {
      const changes = change(said);
      run({ title, path, body: { ...body, ...changes }, done, total: seen.more ? undefined : seen.count });
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
    <span>${number(bulk.done)}${bulk.total ? ` of ${number(bulk.total)}` : ''} done${bulk.failed.length ? `, ${bulk.failed.length} failed` : ''}</span>
    ${bulk.error ? html`<span class="bad">${line(bulk.error)}</span>` : nothing}
    ${bulk.failed.length ? html`<span class="bad">${line(bulk.failed[0].run_id)}: ${line(bulk.failed[0].error)}</span>` : nothing}
    ${bulk.over ? button('Close', close, { kind: 'small' })
      : button(bulk.stopped ? 'Stopping …' : 'Stop', () => { bulk.stopped = true; changed(); }, { kind: 'small', disabled: bulk.stopped })}</div>`;
}
