// Live events. One stream a tab at most; none while the tab is hidden, as a browser has few connections to a server.

import { address } from './api.js';
import { changed, state } from './state.js';

/** Every event of a run. */
export const EVENTS = [
  'scheduled', 'enqueued', 'started', 'progress', 'log', 'deferred', 'released', 'failed', 'completed', 'dlq', 'expired',
  'duplicate', 'cancelled', 'replayed', 'discarded',
];
const AGAIN_AFTER = 3000;

let open = null;

/** Ends what is followed. */
export const stop = () => open?.close();

function says(word) {
  if (state.stream === word) return;
  state.stream = word;
  changed();
}

/**
 * Follows a stream until it is closed; a later call closes it. `taken` gets each event once.
 * @param {string} path
 * @param {Record<string, any>} query
 * @param {(event: any) => void} taken
 * @param {{reset?: (said: {reason: string}) => void, end?: () => void}} [more]
 */
export function follow(path, query, taken, { reset = () => {}, end = () => {} } = {}) {
  stop();
  const seen = new Set();
  let source = null;
  let again = 0;
  let last = query.since;
  let ended = false;

  const event = (message) => {
    const said = JSON.parse(message.data);
    const key = said.id + (said.event === 'progress' || said.event === 'log' ? message.lastEventId : '');
    if (seen.has(key)) return;
    seen.add(key);
    if (seen.size > 5000) seen.delete(seen.values().next().value);
    last = said.at ?? last;
    taken(said);
  };
  const connect = () => {
    clearTimeout(again);
    if (ended || source || document.hidden) return;
    says('connecting');
    source = new EventSource(new URL(address(path, { ...query, since: query.whole ? undefined : last, whole: undefined }), document.baseURI));
    source.onopen = () => says('live');
    source.onerror = () => {
      says('lost');
      // A refused stream is not tried again by the browser.
      if (source?.readyState === EventSource.CLOSED) {
        pause('lost');
        again = setTimeout(connect, AGAIN_AFTER);
      }
    };
    for (const name of EVENTS) source.addEventListener(name, event);
    source.addEventListener('reset', (message) => reset(JSON.parse(message.data)));
    source.addEventListener('end', () => {
      ended = true;
      pause('off');
      end();
    });
  };
  const pause = (word) => {
    clearTimeout(again);
    source?.close();
    source = null;
    says(word);
  };
  const seenOrHidden = () => (document.hidden ? pause('off') : connect());
  document.addEventListener('visibilitychange', seenOrHidden);
  connect();
  const following = {
    close() {
      ended = true;
      document.removeEventListener('visibilitychange', seenOrHidden);
      pause('off');
      if (open === following) open = null;
    },
  };
  open = following;
  return following;
}
