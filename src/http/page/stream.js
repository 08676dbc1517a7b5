// Live events. One stream a tab at most; none while the tab is hidden, as a browser has few connections to a server.

import { address } from './api.js';
import { changed, state } from './state.js';

/** Every event of a run. */
export const EVENTS = [
  'scheduled', 'enqueued', 'started', 'progress', 'log', 'deferred', 'released', 'failed', 'completed', 'dlq', 'expired',
  'duplicate', 'cancelled', 'replayed', 'discarded', 'step_completed',
];
/** What handlers report: a run may have any number of these, and a node that starts anew counts them anew. */
export const REPORTS = ['progress', 'log', 'step_completed'];
const AGAIN_AFTER = 3000;
/** Who has not looked for longer than this is not told what happened meanwhile. */
const AWAY_MS = 60_000;

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
  // What comes again after a reconnect stands no further in the log; what was published twice has the same id and time.
  let reached = [0, 0];
  const seen = new Set();
  let source = null;
  let again = 0;
  let last = query.since;
  let hiddenAt = 0;
  let ended = false;

  const event = (message) => {
    const [sequence, row] = message.lastEventId.split('.').map(Number);
    if (sequence < reached[0] || (sequence === reached[0] && row <= reached[1])) return;
    reached = [sequence, row];
    const said = JSON.parse(message.data);
    const key = `${said.id} ${said.at}`;
    if (seen.has(key)) return;
    if (!REPORTS.includes(said.event)) seen.add(key);
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
    source.addEventListener('reset', (message) => {
      reached = [0, 0];
      reset(JSON.parse(message.data));
    });
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
  const seenOrHidden = () => {
    if (!document.hidden && Date.now() - hiddenAt > AWAY_MS) last = undefined;
    hiddenAt = Date.now();
    if (document.hidden) pause('off');
    else connect();
  };
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
