// A new job by a form.

import { html, nothing } from './vendor/lit-html.js';
import { ask, Problem } from './api.js';
import { sent, state, tenant, toast } from './state.js';
import { field, heading, line, values } from './widgets.js';
import { go } from './router.js';

const form = { busy: false, error: '' };

const PRIORITIES = [['', 'p5, the usual'], ...Array.from({ length: 9 }, (_, at) => [at + 1, `p${at + 1}`])];

/** The request as text: the payload goes as it was written. */
function body(said) {
  const job = { type: said.type, queue: said.queue, idempotency_key: said.idempotency_key };
  if (said.priority) job.priority = Number(said.priority);
  if (said.max_attempts) job.max_attempts = Number(said.max_attempts);
  if (said.run_at) job.run_at = new Date(said.run_at).toISOString();
  if (said.tags) job.tags = said.tags.split(',').map((tag) => tag.trim()).filter(Boolean);
  const text = JSON.stringify(job);
  if (said.payload === undefined) return text;
  try {
    JSON.parse(said.payload);
  } catch (problem) {
    throw new Problem(0, { detail: `The payload is no JSON: ${problem.message}` });
  }
  return `${text.slice(0, -1)},"payload":${said.payload}}`;
}

const submitted = (event) => sent(event, form, async () => {
  const said = values(event.target);
  const who = said.tenant ?? tenant();
  const answer = await ask('POST', 'v1/jobs', { as: who, body: body(said) });
  toast(answer.deduplicated ? 'There is a run of this key already: this is it' : 'Submitted');
  go(['run', who, answer.run_id]);
});

export default {
  title: () => 'Submit a job',
  open: () => { form.error = ''; },
  load: async () => ({}),
  view: () => {
    const { query } = state.route;
    const who = tenant() === '_all' ? 'default' : tenant();
    return html`${heading('Submit a job', { as: { words: ['submit', query.type || 'echo', '{}'], request: { method: 'POST', path: 'v1/jobs', query: { tenant: who }, body: { type: query.type || 'echo', payload: {} } } } })}
    <form class="card form" @submit=${submitted}>
      ${state.session.tenant === '_all' ? field({ name: 'tenant', label: 'Tenant', value: who, required: true }) : nothing}
      ${field({ name: 'type', label: 'Type', required: true, value: query.type ?? '', placeholder: 'email.send' })}
      ${field({ name: 'payload', label: 'Payload (JSON)', type: 'area', rows: 9, placeholder: '{"order": 17}', hint: 'It is sent as it is written here.' })}
      <div class="pair">${field({ name: 'queue', label: 'Queue', value: query.queue ?? '', placeholder: 'main' })}${field({ name: 'priority', label: 'Priority', options: PRIORITIES })}
        ${field({ name: 'run_at', label: 'Start at', type: 'datetime-local' })}${field({ name: 'max_attempts', label: 'Attempts at most', type: 'number', placeholder: 'as its type has it' })}
        ${field({ name: 'tags', label: 'Tags', placeholder: 'nightly, eu' })}${field({ name: 'idempotency_key', label: 'Idempotency key', hint: 'The same key is the same run.' })}</div>
      ${form.error ? html`<p class="error" role="alert">${line(form.error)}</p>` : nothing}
      <footer><button class="button primary" ?disabled=${form.busy}>${form.busy ? 'Submitting …' : 'Submit'}</button></footer></form>`;
  },
};
