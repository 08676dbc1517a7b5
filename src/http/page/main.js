// The frame around each page: navigation, search, keys, and when what is asked again.

import { html, nothing, render } from './vendor/lit-html.js';
import { get, logout, session, tabs } from './api.js';
import { bulkView } from './bulk.js';
import { clock, setZone, zone, ZONES } from './format.js';
import { loginView } from './login.js';
import * as router from './router.js';
import { stop } from './stream.js';
import { changed, drawnBy, isShown, keep, kept, may, state, tenant, tried } from './state.js';
import { askFirst, button, dialogView, icon, line, failed } from './widgets.js';
import audit from './audit.js';
import dlq from './dlq.js';
import events from './events.js';
import faults from './faults.js';
import keys from './keys.js';
import limits from './limits.js';
import nodes from './nodes.js';
import overview from './overview.js';
import queues from './queues.js';
import run, { find } from './run.js';
import runs from './runs.js';
import settings from './settings.js';
import schedules from './schedules.js';
import submit from './submit.js';
import webhooks from './webhooks.js';

const PAGES = { '': overview, queues, runs, run, dlq, schedules, limits, nodes, events, webhooks, audit, keys, faults, settings, submit };
const NAVIGATION = [
  ['', 'Overview', 'overview', 'o'], ['queues', 'Queues', 'queues', 'q'], ['runs', 'Runs', 'runs', 'r'], ['dlq', 'Dead letters', 'dlq', 'd'],
  ['schedules', 'Schedules', 'schedules', 's'], ['limits', 'Limits and breakers', 'limits', 'l'], ['events', 'Events', 'events', 'e'],
  ['nodes', 'Nodes', 'nodes', 'n', true], ['webhooks', 'Webhooks', 'webhooks', 'w'], ['audit', 'Audit', 'audit', 'a'], ['keys', 'Keys', 'keys', 'k', true],
  ['faults', 'Faults', 'faults', 'f', true], ['settings', 'Settings', 'settings', 't', true], ['submit', 'Submit a job', 'submit', 'c'],
];
const KEYS = [
  ['/', 'Go to a run by its id or key, or tenant/id'], ...NAVIGATION.filter(([, , , key]) => key).map(([, name, , key]) => [`g ${key}`, name]),
  ['j / k', 'Next, previous row'], ['Enter', 'Open the row'], ['x', 'Select the row'], ['p', 'Pause and go on'], ['?', 'This list'],
];

let asked = null;
let timer = 0;
let leave = null;
/** Whose page this is. */
let asker = null;

const page = () => PAGES[state.route.parts[0]];

/** Loads the page's data; what is there stays until the answer comes. */
async function load() {
  clearTimeout(timer);
  asked?.abort();
  const current = page();
  if (!current || !state.session) return;
  const { route } = state;
  const mine = new AbortController();
  asked = mine;
  const begun = performance.now();
  try {
    const data = await current.load(route, mine.signal);
    if (asked !== mine) return;
    // What was chosen until now, was chosen from other rows.
    if (!isShown()) state.selected.clear();
    Object.assign(state, { data, loadedFor: route, error: undefined, loadedAt: Date.now() });
  } catch (error) {
    if (asked !== mine || error.name === 'AbortError') return;
    state.error = error;
    // Another tab may have logged somebody else in.
    if (error.status === 403) begin();
  }
  changed();
  again(current, state.error ? 0 : performance.now() - begun);
}

/** Nobody is to take a fault on purpose for a real one, whatever the page. */
async function lookForFaults() {
  if (!state.session || document.hidden) return;
  try {
    state.faults = (await get('v1/health', {})).faults ?? [];
  } catch {
    // What is wrong, the page itself says.
  }
  changed();
}

/** Whether what is shown stays as it is for now. */
const held = () => state.paused || document.hidden || state.dialog || (!state.error && page()?.holds?.(state.data));

/** Slow answers take a twentieth of the time at most; yet one that met a fault is not to keep the page old for minutes. */
function again(current, took) {
  clearTimeout(timer);
  if (!current.every) return;
  timer = setTimeout(() => {
    if (held()) again(current, took);
    else load();
  }, Math.max(current.every, Math.min(took * 20, 30_000)));
}

function arrived(route, before) {
  state.selected.clear();
  if (route.parts.join('/') !== before?.parts.join('/') || !state.page) {
    leave?.();
    leave = null;
    stop();
    Object.assign(state, { page: route.parts[0], data: undefined, error: undefined });
    document.querySelector('main')?.scrollTo(0, 0);
    if (state.session) leave = page()?.open?.(route) ?? null;
  } else page()?.refiltered?.();
  load();
}

const tenants = () => {
  if (tenant() !== '_all') return [tenant()];
  const seen = (state.data?.runs ?? []).map((entry) => entry.tenant);
  return [...new Set(['default', ...kept('tenants', '').split(' ').filter(Boolean), ...seen])];
};

function search(event) {
  event.preventDefault();
  const text = String(new FormData(event.target).get('id')).trim();
  if (!text) return;
  event.target.reset();
  // The keys are the page's again.
  document.getElementById('search').blur();
  find(text, tenants());
}

function chooseTenant(event) {
  const chosen = event.target.value.trim();
  if (chosen) keep('tenants', [...new Set([...kept('tenants', '').split(' ').filter(Boolean), chosen])].slice(-50).join(' '));
  router.filter({ tenant: chosen });
}

function theme(value) {
  keep('theme', value);
  if (value === 'system') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = value;
  changed();
}

const NEXT = { system: 'light', light: 'dark', dark: 'system' };

const live = () => {
  const late = state.error && state.data;
  const [word, kind] = state.paused ? ['Paused', 'amber'] : late ? [`Stale since ${clock(state.loadedAt)}`, 'red'] : state.stream === 'lost' ? ['Reconnecting', 'amber'] : ['Live', 'green'];
  return html`<button type="button" class="live ${kind}" aria-pressed=${state.paused} title="Pause and go on (p)" @click=${pause}><span class="dot"></span>${word}</button>`;
};

function pause() {
  state.paused = !state.paused;
  page()?.paused?.(state.paused);
  if (!state.paused) load();
  changed();
}

const out = () => tried(logout()).then(changed);

function shell() {
  const current = page();
  const here = current?.nav ?? state.route.parts[0];
  const { session: who } = state;
  const links = NAVIGATION.filter(([name, , , , all]) => (name === 'submit' ? may('submit') : !all || may('read', true)));
  return html`<a class="skip" href="#main" @click=${(event) => { event.preventDefault(); document.querySelector('main').focus(); }}>To the content</a>
  <nav class="side ${state.menu ? 'open' : ''}" aria-label="Pages"><a class="brand" href=${router.to('')}><svg viewBox="0 0 32 32" aria-hidden="true"><rect width="32" height="32" rx="7" /><path d="M9 8v14h9M14 12h9v4h-9z" /></svg>Longshore</a>
    <ul>${links.map(([name, text, symbol]) => html`<li><a href=${router.to(name)} aria-current=${here === name ? 'page' : nothing}>${icon(symbol)}<span>${text}</span></a></li>`)}</ul>
    <footer><button type="button" class="plain" @click=${() => { theme(NEXT[kept('theme', 'system')]); }}>Theme: ${kept('theme', 'system')}</button>
      <div class="plain">Times: <select aria-label="Times" @change=${(event) => { setZone(event.target.value); changed(); }}>${ZONES.map((name) => html`<option ?selected=${name === zone.name}>${name}</option>`)}</select></div>
      ${may('operate') ? html`<button type="button" class="plain" @click=${reason}>Reason: ${state.reason ? line(state.reason) : 'none'}</button>` : nothing}
      <button type="button" class="plain" @click=${help}>Keys: ?</button>
      ${who.auth === 'keys' ? html`<button type="button" class="plain" @click=${out}>Log out${who.name ? html` ${line(who.name)}` : nothing}</button>` : nothing}</footer></nav>
  <header class="top"><button type="button" class="menu-button" aria-label="Menu" aria-expanded=${state.menu} @click=${() => { state.menu = !state.menu; changed(); }}>${icon('menu')}</button>
    <form role="search" @submit=${search}>${icon('search')}<input id="search" name="id" aria-label="Go to a run by its id or key" placeholder="Go to run id or key" autocomplete="off" spellcheck="false"><kbd>/</kbd></form>
    ${who.tenant === '_all' ? html`<label class="tenant"><span class="hidden">Tenant</span><input list="tenants" .value=${state.route.query.tenant ?? ''} placeholder="All tenants" @change=${chooseTenant} autocomplete="off" spellcheck="false">
      <datalist id="tenants">${tenants().map((name) => html`<option value=${name}></option>`)}</datalist></label>` : html`<span class="tenant-name">${who.tenant}</span>`}
    ${who.environment ? html`<span class="environment">${who.environment}</span>` : nothing}${live()}</header>
  <main id="main" tabindex="-1">${state.faults.length ? html`<div class="faults" role="alert">${state.faults.map((fault) => html`<p>Fault on purpose: ${line(fault)}</p>`)}</div>` : nothing}${because()}${current ? safely(current) : html`<div class="empty">There is no such page. <a href=${router.to('')}>Overview</a></div>`}</main>
  ${bulkView()}<div class="toasts" role="status" aria-live="polite">${state.toasts.map(({ text, bad }) => html`<div class="toast ${bad ? 'bad' : ''}">${line(text)}</div>`)}</div>
  ${dialogView()}`;
}

/** A page that cannot be drawn costs itself alone. */
function safely(current) {
  try {
    return current.view(state.data, state.route, state.error);
  } catch (error) {
    console.error(error);
    return failed(error);
  }
}

let drawn = false;
function draw() {
  document.title = [state.session && page()?.title(state.route), state.session?.environment, 'Longshore'].filter(Boolean).join(' · ');
  const root = document.getElementById('app');
  // The frame of index.html, which is painted before any script is read, stands until it is known who asks.
  if (state.session === undefined && !state.error) return;
  if (!drawn) root.replaceChildren();
  drawn = true;
  if (state.session === undefined) render(failed(state.error), root);
  else render(state.session ? shell() : loginView(), root);
  const dialog = /** @type {HTMLDialogElement} */ (root.querySelector('dialog:not([open])'));
  if (dialog) {
    dialog.showModal();
    /** @type {HTMLElement} */ (dialog.querySelector('input, select, textarea, footer button:last-of-type'))?.focus();
  }
  const badge = /** @type {HTMLElement} */ (root.querySelector('.environment'));
  if (badge && /^[#\w(),.% ]+$/.test(state.session.environment_color ?? '')) badge.style.setProperty('--badge', state.session.environment_color);
}

/** Why something is done stays for what follows in this tab, in sight, until it is taken away. */
const because = () => (state.reason ? html`<div class="because" role="status"><span>Reason of what you do here, for the audit: <strong>${line(state.reason)}</strong></span>
  ${button('Change', reason, { kind: 'small' })}${button('Clear', () => { state.reason = ''; changed(); }, { kind: 'small' })}</div>` : nothing);

function reason() {
  askFirst({ title: 'Why you do what you do', text: html`<p>It goes into the audit with each act in this tab, until it is cleared.</p>`, label: 'Keep it', act: async () => {} });
}

function help() {
  state.dialog = { title: 'Keys', text: html`<dl class="keys">${KEYS.map(([key, text]) => html`<div><dt><kbd>${key}</kbd></dt><dd>${text}</dd></div>`)}</dl>`, fields: [] };
  changed();
}

// The key before, and when it was pressed.
let before = { key: '', at: 0 };
const TOGETHER_MS = 1500;
function pressed(event) {
  const typing = event.target.closest?.('input:not([type=checkbox]), select, textarea, dialog');
  if (typing || event.ctrlKey || event.metaKey || event.altKey || !state.session) return;
  const { key } = event;
  const rows = /** @type {HTMLElement[]} */ ([...document.querySelectorAll('main a.row-link')]);
  const at = rows.findIndex((row) => row.closest('tr') === document.activeElement?.closest?.('tr'));
  const goes = before.key === 'g' && event.timeStamp - before.at < TOGETHER_MS && NAVIGATION.find(([, , , letter]) => letter === key);
  before = { key, at: event.timeStamp };
  if (goes) router.go(goes[0]);
  else if (key === '/') document.getElementById('search').focus();
  else if (key === '?') help();
  else if (key === 'j') rows[Math.min(at + 1, rows.length - 1)]?.focus();
  else if (key === 'k') rows[Math.max(at - 1, 0)]?.focus();
  else if (key === 'x') /** @type {HTMLElement} */ (rows[at]?.closest('tr').querySelector('input[type=checkbox]'))?.click();
  else if (key === 'p') pause();
  else return;
  event.preventDefault();
}

/** Begins the page anew: nothing that the former asker read, wrote or chose is left. */
function welcome() {
  asker = state.session;
  Object.assign(state, { reason: '', dialog: null, toasts: [], faults: [], bulk: null });
  // What was written into fields is there alone.
  if (drawn) render(nothing, document.getElementById('app'));
  arrived(state.route, undefined);
}

async function begin() {
  const before = state.session;
  try {
    const now = await session();
    if (state.session === before && JSON.stringify(now) !== JSON.stringify(before)) state.session = now;
  } catch (error) {
    state.error = error;
  }
  changed();
  if (state.session && state.session !== asker) welcome();
  lookForFaults();
}

theme(kept('theme', 'system'));
drawnBy(draw);
addEventListener('keydown', pressed);
addEventListener('reload', () => {
  if (!state.session) begin();
  else if (state.session !== asker) welcome();
  else load();
});
tabs.onmessage = () => {
  state.session = undefined;
  welcome();
  begin();
};
document.addEventListener('visibilitychange', () => {
  // A page at another port of this host has the same cookie.
  if (!document.hidden) begin();
  if (!held()) load();
});
document.addEventListener('click', (event) => {
  const target = /** @type {Node} */ (event.target);
  const menus = /** @type {NodeListOf<HTMLDetailsElement>} */ (document.querySelectorAll('details.menu[open]'));
  for (const menu of menus) if (!menu.contains(target)) menu.open = false;
});
setInterval(changed, 1000);
setInterval(lookForFaults, 5000);
router.follow((route, old) => { if (state.session) arrived(route, old); });
begin();
