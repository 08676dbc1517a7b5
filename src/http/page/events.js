// Events as they happen.

import { html, nothing } from './vendor/lit-html.js';
import { repeat } from './vendor/directives/repeat.js';
import { number } from './format.js';
import { EVENTS, follow, stop } from './stream.js';
import { changed, state, tenant } from './state.js';
import { button, choice, heading, ofTenant, moment, pill, runLink, table, word } from './widgets.js';
import { saysOf } from './run.js';

const KEPT = 300;
let events = [];
let missed = 0;

function start() {
  const { event, type, queue, tag } = state.route.query;
  follow('v1/events', { event, type, queue, tag, tenant: tenant() }, (said) => {
    events.unshift({ ...said, key: `${said.id}/${said.at}/${events.length}/${missed}` });
    if (events.length > KEPT) {
      events.length = KEPT;
      missed += 1;
    }
    changed();
  }, { reset: () => start() });
}

export default {
  title: () => 'Events',
  load: async () => ({}),
  open: () => {
    events = [];
    missed = 0;
    start();
    return stop;
  },
  /** Another filter is another stream; a pause ends it. */
  refiltered: () => {
    events = [];
    if (!state.paused) start();
  },
  paused: (is) => (is ? stop() : start()),
  view: (_data, { query }) => html`${heading('Events', { sub: 'What happens to runs from now on; a pause closes the stream.', acts: html`${button('Clear', () => { events = []; changed(); }, { kind: 'quiet' })}`,
    as: { words: ['events', ...['event', 'type', 'queue'].filter((name) => query[name]).flatMap((name) => [`--${name}`, query[name]])], request: { path: 'v1/events', query: { event: query.event, type: query.type, queue: query.queue, tag: query.tag } }, json: events.length ? JSON.stringify(events, null, 2) : undefined } })}
    <div class="filters" role="search" aria-label="Filter">${choice('event', 'Event', [['', 'any'], ...EVENTS.map((name) => [name, name])])}
      ${word('type', 'Type', 'email.> too')}${word('queue', 'Queue', 'any')}${word('tag', 'Tag', 'any')}</div>
    <section class="card">${events.length ? table('Events, the newest first', ['At', 'Event', 'Run', 'Type', { text: 'Queue', kind: 'wide' }, { text: 'Attempt', kind: 'num wide' }, { text: 'Node', kind: 'wide' }, 'Says'], repeat(events, (event) => event.key, (event) => html`<tr>
      <td>${moment(event.at)}</td><td>${pill(event.event)}</td><td class="cut">${ofTenant(event.tenant)}${runLink(event)}</td><td class="cut"><span>${event.type}</span></td><td class="wide">${event.queue}</td>
      <td class="num wide">${event.attempt ?? nothing}</td><td class="wide">${event.node ?? nothing}</td><td class="cut wider"><span title=${saysOf(event)}>${saysOf(event)}</span></td></tr>`))
    : html`<div class="empty">${state.paused ? 'Paused: nothing is followed.' : state.stream === 'live' ? 'Nothing has happened yet. Waiting …' : 'Connecting …'}</div>`}
    ${missed ? html`<footer class="more faint">${number(missed)} older ones are not shown any more; the newest ${KEPT} are.</footer>` : nothing}</section>`,
};
