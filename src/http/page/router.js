// Addresses: `#/runs?state=dead`. Everything that a list is filtered by stands in the address.

import { address } from './api.js';
import { changed, state } from './state.js';

/** The parts and the query of an address. */
export function parse(hash) {
  const [path, query = ''] = hash.replace(/^#\/?/, '').split(/\?(.*)/s);
  const parts = path.split('/').map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
  return { parts, query: Object.fromEntries(new URLSearchParams(query)) };
}

/** The address of a page; the chosen tenant stays. */
export function to(parts, query = {}) {
  const path = [].concat(parts).map(encodeURIComponent).join('/');
  return address(`#/${path}`, { tenant: state.route.query.tenant, ...query });
}

/** Goes to a page. */
export function go(parts, query) {
  location.hash = to(parts, query);
}

/** Changes the query of this page's address; typing leaves no trail of steps back. */
export function filter(changes) {
  const hash = to(state.route.parts, { ...state.route.query, ...changes });
  if (hash === location.hash) return;
  history.replaceState(null, '', hash);
  dispatchEvent(new HashChangeEvent('hashchange'));
}

/** Follows the address from now on. */
export function follow(arrived) {
  const read = () => {
    const before = state.route;
    state.route = parse(location.hash);
    state.menu = false;
    // A question about a page does not outlive it: Back may be pressed while it is open.
    if (String(state.route.parts) !== String(before?.parts)) state.dialog = null;
    arrived(state.route, before);
    changed();
  };
  addEventListener('hashchange', read);
  read();
}
