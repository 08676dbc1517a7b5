// The way in where keys are needed.

import { html, nothing } from './vendor/lit-html.js';
import { login } from './api.js';
import { changed, reload, state } from './state.js';

let error = '';
let busy = false;

async function opened(event) {
  event.preventDefault();
  const key = String(new FormData(event.target).get('key')).trim();
  busy = true;
  error = '';
  changed();
  try {
    state.session = await login(key);
    event.target.reset();
    if (state.session) reload();
    else error = 'This browser did not keep the session: are its cookies off?';
  } catch (problem) {
    error = problem.status === 401 ? 'This key does not count: it is wrong, revoked or too old.' : problem.message;
  }
  busy = false;
  changed();
}

export const loginView = () => html`<main class="login"><form class="card" @submit=${opened}>
  <h1>Longshore</h1><p class="sub">Open this dashboard with a key that may <code>read</code>.</p>
  <div class="field"><label for="key">Key</label>
    <input id="key" name="key" type="password" autocomplete="current-password" required placeholder="ls_…" autofocus></div>
  ${error ? html`<p class="error" role="alert">${error}</p>` : nothing}
  <button class="button primary" ?disabled=${busy}>${busy ? 'Opening …' : 'Open'}</button>
  <p class="hint">An operator makes one: <code>longshore keys create me --tenant _all --scopes read,operate</code>. The browser keeps a
    session of twelve hours, not the key.</p></form></main>`;
