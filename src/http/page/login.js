// The way in where keys are needed.

import { html, nothing } from './vendor/lit-html.js';
import { login } from './api.js';
import { reload, sent, state } from './state.js';

const form = { busy: false, error: '' };

const opened = (event) => sent(event, form, async () => {
  const key = String(new FormData(event.target).get('key')).trim();
  state.session = await login(key).catch((problem) => {
    throw problem.status === 401 ? new Error('This key does not count: it is wrong, revoked or too old.') : problem;
  });
  event.target.reset();
  if (!state.session) throw new Error('This browser did not keep the session: are its cookies off?');
  reload();
});

export const loginView = () => html`<main class="login"><form class="card" @submit=${opened}>
  <h1>Longshore</h1><p class="sub">Open this dashboard with a key that may <code>read</code>.</p>
  <div class="field"><label for="key">Key</label>
    <input id="key" name="key" type="password" autocomplete="current-password" required placeholder="ls_…" autofocus></div>
  ${form.error ? html`<p class="error" role="alert">${form.error}</p>` : nothing}
  <button class="button primary" ?disabled=${form.busy}>${form.busy ? 'Opening …' : 'Open'}</button>
  <p class="hint">An operator makes one: <code>longshore keys create me --tenant _all --scopes read,operate</code>. The browser keeps a
    session of twelve hours, not the key.</p></form></main>`;
