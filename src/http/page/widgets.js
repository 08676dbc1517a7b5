// Pieces that pages are made of. Foreign text goes into them as text only.

import { html, nothing, svg } from './vendor/lit-html.js';
import { live } from './vendor/directives/live.js';
import { Problem, address } from './api.js';
import { absolute, clock, indented, number, quoted, relative, short, visible } from './format.js';
import { changed, may, reload, sent, state, tenant, toast } from './state.js';
import { filter, to } from './router.js';

const ICONS = {
  overview: 'M3 12h4l3-8 4 16 3-8h4', queues: 'M4 6h16M4 12h16M4 18h10', runs: 'M7 4l12 8-12 8z',
  dlq: 'M12 8v5M12 16.5v.5M10.3 3.9L2.5 18a2 2 0 0 0 1.7 3h15.6a2 2 0 0 0 1.7-3L13.7 3.9a2 2 0 0 0-3.4 0z',
  schedules: 'M12 7v5l3 2M21 12a9 9 0 1 1-18 0 9 9 0 0 1 18 0z', limits: 'M5 19a9 9 0 1 1 14 0M12 14l4-5',
  nodes: 'M4 5h16v6H4zM4 13h16v6H4zM8 8h.01M8 16h.01', events: 'M5 12a7 7 0 0 1 14 0M8.5 12a3.5 3.5 0 0 1 7 0M12 12v8',
  audit: 'M6 3h9l4 4v14H6zM9 12h7M9 16h5', keys: 'M15 14a5 5 0 1 0-4.6-3L4 17.4V20h2.6l1.4-1.4v-2h2l1.8-1.8M16 8.5v.01',
  webhooks: 'M8 9a4 4 0 1 1 6 3l-3 6M16 15a4 4 0 1 1-2 4H6', settings: 'M4 7h10M18 7h2M4 17h2M10 17h10M16 5v4M8 15v4',
  submit: 'M12 5v14M5 12h14', menu: 'M4 7h16M4 12h16M4 17h16', search: 'M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14zM20 20l-4-4',
  faults: 'M13 3L5 14h6l-1 7 8-11h-6z',
};

export const icon = (name) => html`<svg class="icon" viewBox="0 0 24 24" aria-hidden="true">${svg`<path d=${ICONS[name] ?? ''} />`}</svg>`;

const STATES = {
  scheduled: 'violet', enqueued: 'grey', running: 'blue', retrying: 'amber', completed: 'green', dead: 'red',
  cancelled: 'grey', expired: 'amber', duplicate: 'grey', discarded: 'grey', open: 'red', half_open: 'amber', closed: 'green',
  draining: 'amber', silent: 'red', paused: 'amber', unserved: 'red', failed: 'red', dlq: 'red', started: 'blue',
  deferred: 'amber', released: 'amber', replayed: 'violet', revoked: 'grey', active: 'green', refused: 'red', done: 'green',
};

export const pill = (word, colour) => html`<span class="pill ${colour ?? STATES[word] ?? 'grey'}">${String(word).replaceAll('_', ' ')}</span>`;

/** A moment: how long ago, and exactly when. */
export const time = (at) => (at ? html`<time datetime=${at} title=${absolute(at)}>${relative(at)}</time>` : html`<span class="faint">–</span>`);
export const moment = (at) => html`<time datetime=${at} title="${absolute(at)} · ${relative(at)}">${clock(at)}</time>`;

/** Foreign text of one line. */
export const line = (text) => visible(String(text ?? '').split('\n', 1)[0]);

/** A run's address: its tenant is a part of it. */
export const runLink = (run) => html`<a class="row-link mono" href=${to(['run', run.tenant, run.run_id])} title=${run.run_id}>${run.run_id}</a>`;

/** The tenant before a name, where that is not clear. */
export const ofTenant = (name) => (tenant() === '_all' && name && name !== 'default' ? html`<span class="faint">${name} / </span>` : nothing);

/**
 * @param {unknown} text
 * @param {(event: Event) => void} act
 * @param {{kind?: string, disabled?: boolean, title?: string}} [more]
 */
export const button = (text, act, { kind = '', disabled = false, title = '' } = {}) => html`<button
  type="button" class="button ${kind}" ?disabled=${disabled} title=${title} @click=${act}>${text}</button>`;

export const card = (title, body, side = nothing) => html`<section class="card">
  <header><h2>${title}</h2><div class="side">${side}</div></header>${body}</section>`;

/**
 * A request of the API.
 * @typedef {{method?: string, path: string, query?: Record<string, any>, body?: unknown}} Asked
 * @typedef {{words?: string[], request?: Asked, json?: string}} Elsewhere
 */

/**
 * The head of a page: its name, what it can do, and how the same is had elsewhere.
 * @param {unknown} title
 * @param {{sub?: unknown, acts?: unknown, as?: Elsewhere}} [more]
 */
export const heading = (title, { sub = nothing, acts = nothing, as } = {}) => html`<header class="heading">
  <div class="titles"><h1>${title}</h1>${sub === nothing ? nothing : html`<p class="sub">${sub}</p>`}</div>
  <div class="acts">${acts}${as ? asMenu(as) : nothing}</div></header>`;

/**
 * A list in one of its states: failed with the reason, not loaded yet, empty, or there.
 * @param {{data: unknown, error?: Error, items: any[], empty: unknown, body?: (items: any[]) => unknown}} list
 */
export function list({ data, error, items, empty, body }) {
  if (error && !data) return failed(error);
  if (!data) return html`<div class="empty" aria-busy="true">Loading …</div>`;
  return items.length ? body(items) : html`<div class="empty">${empty}</div>`;
}

export function failed(error) {
  const code = error instanceof Problem && error.status ? `${error.status} ${error.code}` : 'no answer';
  return html`<div class="failure" role="alert"><strong>Could not be loaded.</strong> ${line(error.message)}
    <span class="faint">(${code})</span>${error.hint ? html`<p>${error.hint}</p>` : nothing}
    <p>${button('Try again', reload)}</p></div>`;
}

/** What was loaded before stays, and says since when it is old. */
export const stale = () => (state.error && state.data
  ? html`<div class="banner amber" role="status">Stale since ${clock(state.loadedAt)}: ${line(state.error.message)}
      ${button('Try again', reload, { kind: 'small' })}</div>` : nothing);

/** The head of a column of numbers. */
export const num = (text) => ({ text, kind: 'num' });

/** A column that is left out on a narrow screen has `wide` in its `kind`. */
export const table = (caption, heads, rows) => html`<div class="scroll" role="region" aria-label=${caption} tabindex="0"><table>
  <caption class="hidden">${caption}</caption>
  <thead><tr>${heads.map((head) => {
    const { text, kind = '' } = typeof head === 'object' ? head : { text: head };
    return html`<th scope="col" class=${kind}>${text || html`<span class="hidden">Acts</span>`}</th>`;
  })}</tr></thead><tbody>${rows}</tbody></table></div>`;

/** A line of numbers over time; the last one in words stands beside it. */
export function spark(values, { label = '', colour = 'blue' } = {}) {
  const [width, height] = [120, 28];
  const most = Math.max(...values, 1e-9);
  const step = width / Math.max(values.length - 1, 1);
  const points = values.map((value, at) => `${(at * step).toFixed(1)},${(height - 2 - (value / most) * (height - 4)).toFixed(1)}`);
  return html`<svg class="spark ${colour}" viewBox="0 0 ${width} ${height}" preserveAspectRatio="none" role="img" aria-label="${label}: ${values.slice(-1).map(short)} now, ${short(most)} at most">
    ${values.length > 1 ? svg`<path class="area" d="M0,${height} L${points.join(' L')} L${width},${height} Z" /><path class="stroke" d="M${points.join(' L')}" />` : nothing}</svg>`;
}

/** Numbers side by side, the last one of now; an hour with little is still to be seen. */
export function columns(values, label) {
  const most = Math.max(...values, 1);
  const height = (value) => (value ? Math.max((value / most) * 22, 2) : 0);
  const said = `${label}: ${number(values.reduce((all, one) => all + one, 0))} in ${values.length} hours, at most ${number(most)} in one, ${number(values.at(-1) ?? 0)} in the last`;
  return html`<svg class="columns-of" viewBox="0 0 ${values.length * 5} 24" role="img" aria-label=${said}><title>${said}</title>
    <rect class="track" y="23" width="100%" height="1" />${values.map((value, at) => svg`<rect x=${at * 5} y=${23 - height(value)} width="4" height=${height(value)} />`)}</svg>`;
}

/** Parts of a whole, side by side. */
export function bar(parts, most, label) {
  let at = 0;
  return html`<svg class="bar" role="img" aria-label=${label}><rect class="track" width="100%" height="100%" />${parts.map(({ value, colour }) => {
    const width = most ? (value / most) * 100 : 0;
    const x = at;
    at += width;
    return width ? svg`<rect class=${colour} x="${x}%" width="${Math.max(width, 0.8)}%" height="100%" />` : nothing;
  })}</svg>`;
}

export async function copy(text, what = 'Copied') {
  try {
    await navigator.clipboard.writeText(text);
    toast(what);
  } catch {
    toast('This browser does not let the page copy', true);
  }
}

/** The lines of two texts, in order: those of both, and those of one alone, by their longest common part. */
function compared(old, now) {
  const left = old.map(() => new Uint16Array(now.length + 1));
  left.push(new Uint16Array(now.length + 1));
  for (let i = old.length - 1; i >= 0; i -= 1) {
    for (let j = now.length - 1; j >= 0; j -= 1) left[i][j] = old[i] === now[j] ? left[i + 1][j + 1] + 1 : Math.max(left[i + 1][j], left[i][j + 1]);
  }
  const [before, after] = [[], []];
  for (let i = 0, j = 0; i < old.length || j < now.length;) {
    const same = i < old.length && j < now.length && old[i] === now[j];
    const gone = !same && i < old.length && (j === now.length || left[i + 1][j] >= left[i][j + 1]);
    if (same || gone) before.push([old[i], gone]);
    if (!gone) after.push([now[j], !same]);
    if (same || gone) i += 1;
    if (!gone) j += 1;
  }
  return [before, after];
}

const COMPARED = 2000;

/** What changes between two texts, side by side; of long ones the beginning. */
export function changes(name, before, after) {
  if (before === after) return nothing;
  const [old, now] = compared(...[before, after].map((text) => indented(text).split('\n').slice(0, COMPARED)));
  const side = (title, lines, marked) => html`<div><h4>${title}</h4><pre tabindex="0" role="region" aria-label="${name} ${title.toLowerCase()}">${lines.map(([text, alone], at) => html`${at ? '\n' : nothing}${alone ? marked(visible(text)) : visible(text)}`)}</pre></div>`;
  return html`<section class="changes"><h3>${name}</h3>${side('Before', old, (text) => html`<del>${text}</del>`)}${side('After', now, (text) => html`<ins>${text}</ins>`)}</section>`;
}

/** JSON or text as it was sent, with a way to copy it. */
export function source(text, { label = 'Copy' } = {}) {
  const shown = indented(text);
  return html`<div class="source"><pre tabindex="0">${visible(shown.length > 200000 ? `${shown.slice(0, 200000)}\n…` : shown)}</pre>
    ${button(label, () => copy(text), { kind: 'small' })}</div>`;
}

/**
 * A request as curl has it.
 * @param {Asked} asked
 */
export function curl({ method = 'GET', path, query = {}, body }) {
  const who = tenant() === 'default' ? undefined : tenant();
  const url = new URL(address(path, { ...query, tenant: query.tenant ?? who }), document.baseURI).href;
  const key = state.session?.auth === 'keys' ? ' -H "Authorization: Bearer $LONGSHORE_KEY"' : '';
  const verb = method === 'GET' ? '' : ` -X ${method}`;
  const sent = method === 'GET' ? '' : ` -H 'Content-Type: application/json' -d ${quoted(typeof body === 'string' ? body : JSON.stringify(body ?? {}))}`;
  return `curl${verb} ${quoted(url)}${key}${sent}`;
}

/** A command of `longshore`, with its tenant: of one run that is the run's own. */
export const command = (words, who = tenant()) => ['longshore', ...(who === 'default' ? [] : ['--tenant', quoted(who)]), ...words.map(quoted)].join(' ');

/**
 * The same on the command line, with curl and as JSON.
 * @param {Elsewhere} as
 */
function asMenu({ words, request, json }) {
  const entries = [
    words && ['Copy as command', command(words, request?.query?.tenant)],
    request && ['Copy as curl', curl(request)],
    json && ['Copy as JSON', json],
  ].filter(Boolean);
  return html`<details class="menu"><summary class="button">Copy as …</summary><div class="popup">
    ${entries.map(([text, value]) => html`<button type="button" class="entry" @click=${(event) => {
      event.currentTarget.closest('details').open = false;
      copy(value, `${text}: done`);
    }}><span>${text}</span>${value.length < 400 ? html`<code>${value}</code>` : nothing}</button>`)}
  </div></details>`;
}

/**
 * An input of a form.
 * @typedef {{name: string, label: unknown, type?: string, value?: any, options?: any[], hint?: unknown, required?: boolean,
 *   placeholder?: string, rows?: number}} Field
 */

/**
 * Asks before something is done. `fields` are inputs by name; `shows` is drawn below them from what they hold; `typed`
 * must be written before; `act` gets the form's values and may take its time.
 * @param {{title: string, text?: unknown, fields?: Field[], shows?: (said: any) => unknown, typed?: string,
 *   act?: (said: any) => Promise<unknown>, label?: string, danger?: boolean}} asked
 */
export function askFirst({ title, text = nothing, fields = [], shows = () => nothing, typed, act, label = 'Do it', danger = false }) {
  state.dialog = { title, text, fields, shows, shown: shows({}), typed, act, label, danger, error: undefined, busy: false };
  changed();
}

/** @param {Field} field */
export function field({ name, label, type = 'text', value = '', options, hint, required = false, placeholder = '', rows = 6 }) {
  const id = `field-${name}`;
  const described = hint ? `${id}-hint` : nothing;
  let input;
  if (options) {
    input = html`<select id=${id} name=${name} aria-describedby=${described}>${options.map((option) => {
      const [key, text] = Array.isArray(option) ? option : [option, option];
      return html`<option value=${key} ?selected=${String(key) === String(value)}>${text}</option>`;
    })}</select>`;
  } else if (type === 'area') {
    input = html`<textarea id=${id} name=${name} rows=${rows} spellcheck="false" placeholder=${placeholder} aria-describedby=${described} .defaultValue=${value}></textarea>`;
  } else if (type === 'checkbox') {
    return html`<label class="check"><input type="checkbox" name=${name} ?checked=${Boolean(value)}> ${label}</label>`;
  } else {
    input = html`<input id=${id} type=${type} name=${name} .defaultValue=${String(value)} ?required=${required} placeholder=${placeholder}
      autocomplete="off" spellcheck="false" aria-describedby=${described}>`;
  }
  return html`<div class="field"><label for=${id}>${label}</label>${input}${hint ? html`<p class="hint" id=${described}>${hint}</p>` : nothing}</div>`;
}

/**
 * What a form says, without its empty fields.
 * @returns {Record<string, string>}
 */
export function values(form) {
  /** @type {Record<string, any>} */
  const said = {};
  for (const [name, value] of new FormData(form)) if (value !== '') said[name] = value;
  return said;
}

const close = () => {
  state.dialog = null;
  changed();
};

function typedIn(event) {
  // Here and not as it is drawn, which is each second: it may compare long texts.
  state.dialog.shown = state.dialog.shows(values(event.currentTarget));
  changed();
}

function confirmed(event) {
  const dialog = state.dialog;
  return sent(event, dialog, async () => {
    const { reason = '', ...said } = values(event.target);
    if (dialog.typed && said.typed !== dialog.typed) throw new Error(`Write ${dialog.typed} to go on.`);
    if (dialog.act && may('operate')) state.reason = reason.trim();
    await dialog.act(said);
    if (state.dialog === dialog) close();
  });
}

export function dialogView() {
  const dialog = state.dialog;
  if (!dialog) return nothing;
  return html`<dialog aria-labelledby="dialog-title" @close=${close} @cancel=${close}><form method="dialog" @submit=${confirmed} @input=${typedIn}>
    <h2 id="dialog-title">${dialog.title}</h2><div class="body">${dialog.text}</div>
    ${dialog.fields.map(field)}${dialog.shown}
    ${dialog.typed ? field({ name: 'typed', label: html`Write <code>${dialog.typed}</code> to confirm` }) : nothing}
    ${dialog.act && may('operate') ? field({ name: 'reason', label: 'Reason', value: state.reason, placeholder: 'none', hint: 'Goes into the audit, with what follows in this tab.' }) : nothing}
    ${dialog.error ? html`<p class="error" role="alert">${line(dialog.error)}</p>` : nothing}
    <footer>${button(dialog.act ? 'Cancel' : 'Close', close, { kind: 'quiet' })}
      ${dialog.act ? html`<button class="button ${dialog.danger ? 'danger' : 'primary'}" ?disabled=${dialog.busy}>${dialog.busy ? 'Working …' : dialog.label}</button>` : nothing}
    </footer></form></dialog>`;
}

/** A filter in the address: it counts once it is left, or with Enter. */
export const word = (name, label, placeholder) => html`<label class="filter"><span>${label}</span>
  <input name=${name} .value=${state.route.query[name] ?? ''} placeholder=${placeholder} autocomplete="off" spellcheck="false"
    @change=${(event) => filter({ [name]: event.target.value.trim() })}></label>`;

export const choice = (name, label, options) => html`<label class="filter"><span>${label}</span>
  <select name=${name} @change=${(event) => filter({ [name]: event.target.value })}>
    ${options.map(([value, text]) => html`<option value=${value} .selected=${live((state.route.query[name] ?? '') === value)}>${text}</option>`)}</select></label>`;

export const SINCE = [['', 'any time'], ['15m', 'last 15 min'], ['1h', 'last hour'], ['24h', 'last 24 h'], ['7d', 'last 7 days']];

/** A filter such as `1h` as the moment that it stands for; a moment stays. */
export function sinceOf(text) {
  const found = /^(\d+)([mhd])$/.exec(text ?? '');
  if (!found) return text;
  return new Date(Date.now() - Number(found[1]) * { m: 6e4, h: 36e5, d: 864e5 }[found[2]]).toISOString();
}
