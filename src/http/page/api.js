// Requests to the API. Addresses are relative to the page, so that it works under any path.

import { changed, state, tenant } from './state.js';

/** How far the nodes' clock is ahead of this one, as far as their answers, dated to the second, prove that it is. */
let ahead = 0;

/** This moment, by the nodes' clock. */
export const now = () => new Date(Date.now() + ahead);

/** An answer that is an error, as the API says it. */
export class Problem extends Error {
  constructor(status, said) {
    super(said?.detail || said?.title || `the node answered ${status}`);
    this.status = status;
    this.code = said?.code ?? '';
    this.hint = said?.hint ?? '';
  }
}

/** A path with its query, of which empty words are left out. */
export function address(path, query = {}) {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== '' && value !== null) words.set(name, value);
  }
  const rest = words.toString();
  return rest ? `${path}?${rest}` : path;
}

/** A segment of a path. */
export const part = encodeURIComponent;

/**
 * The text of an answer. `body` is an object, or JSON as text that is to be sent as it is.
 * @param {string} method
 * @param {string} path
 * @param {{query?: object, body?: unknown, signal?: AbortSignal, as?: string}} [options]
 */
export async function askText(method, path, { query, body, signal, as } = {}) {
  const who = as === undefined ? tenant() : as;
  const asker = state.session;
  const url = new URL(address(path, { ...query, tenant: who || undefined }), document.baseURI);
  /** @type {Record<string, string>} */
  const headers = {};
  /** @type {RequestInit} */
  const request = { method, signal, headers, cache: 'no-store' };
  if (method !== 'GET') {
    headers['Content-Type'] = 'application/json';
    // A header of fetch holds no other signs.
    if (state.reason) headers['Longshore-Reason'] = part(state.reason);
    request.body = typeof body === 'string' ? body : JSON.stringify(body ?? {});
  }
  const sent = Date.now();
  let answer;
  try {
    answer = await fetch(url, request);
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new Problem(0, { detail: 'the node does not answer' });
  }
  const date = Date.parse(answer.headers.get('Date') ?? '');
  if (date) ahead = Math.min(Math.max(0, date - Date.now()), date + 1000 - sent);
  const text = await answer.text();
  // What the former one asked for is not the next one's, and says nothing of that session.
  if (state.session !== asker && path !== 'v1/session') throw new Problem(0, { detail: 'the session was changed meanwhile' });
  if (answer.ok) return text;
  let said;
  try {
    said = JSON.parse(text);
  } catch {
    // Something between says no, in its own words.
  }
  if (answer.status === 401 && path !== 'v1/session') {
    state.session = null;
    changed();
  }
  throw new Problem(answer.status, said);
}

/** The answer. Numbers in payloads may lose digits here: those are cut out of the text. */
export async function ask(method, path, options) {
  const text = await askText(method, path, options);
  return text ? JSON.parse(text) : {};
}

export const get = (path, query, signal) => ask('GET', path, { query, signal });

const PAGES = 10;

/**
 * The list of this name from its beginning, page after page; with a `cursor` where that would be too many.
 * @param {string} path
 * @param {string} name
 * @param {object} query
 * @param {AbortSignal} signal
 */
export async function allOf(path, name, query, signal) {
  const entries = [];
  let cursor;
  for (let page = 0; page < PAGES; page += 1) {
    const said = await get(path, { ...query, limit: 500, cursor }, signal);
    entries.push(...said[name]);
    cursor = said.cursor;
    if (!cursor) break;
  }
  return { entries, cursor };
}

/**
 * An answer, or what is said of why there is none.
 * @param {Promise<any>} asked
 * @param {(error: any) => any} [says]
 */
export const orWhy = (asked, says = (error) => ({ error: error.message })) => asked.catch((error) => {
  if (error.name === 'AbortError') throw error;
  return says(error);
});

/** Refuses to make what is there already: a PUT would overwrite it. */
export async function mustBeFree(path, as) {
  const found = await askText('GET', path, { as }).catch((error) => {
    if (error.status !== 404) throw error;
  });
  if (found) throw new Problem(409, { detail: 'There is one of this id already: change that one, or choose another id.' });
}

/** What the session may do; null: a key is needed. */
export async function session() {
  try {
    return await ask('GET', 'v1/session', { as: '' });
  } catch (error) {
    if (error.status === 401) return null;
    throw error;
  }
}

/** The tabs of this browser, which have one session together: each says here that it began or ended one. */
export const tabs = new BroadcastChannel('longshore.session');

let leaving;

/** Opens a session, once the answer that takes the old one's cookie away is here; the key is not kept here. */
export async function login(key) {
  await leaving;
  await ask('POST', 'v1/session', { body: { key }, as: '' });
  tabs.postMessage(null);
  return session();
}

/** Ends the session, unless the next one is open by the time this is answered. */
export async function logout() {
  const asker = state.session;
  const answer = ask('DELETE', 'v1/session', { as: '' });
  leaving = answer.catch(() => {});
  await answer;
  tabs.postMessage(null);
  if (state.session === asker) state.session = null;
}
