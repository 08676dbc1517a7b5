// What the page knows, in one place, and when it is drawn again. It knows nothing of the API.

export const state = {
  /** undefined: not asked yet; null: to be opened by a key. */
  session: undefined,
  route: { parts: [''], query: {} },
  page: null,
  /** What the page has loaded, for which address, when, and why it could not. */
  data: undefined,
  loadedFor: null,
  error: undefined,
  loadedAt: 0,
  /** The faults on purpose that the node meets, in words. */
  faults: [],
  paused: false,
  /** off, connecting, live, lost. */
  stream: 'off',
  /** Why something is done, for the audit. */
  reason: '',
  dialog: null,
  toasts: [],
  menu: false,
  selected: new Set(),
  bulk: null,
};

let draw = () => {};
let asked = false;

/** Says how the page is drawn. */
export function drawnBy(how) {
  draw = how;
}

/** Draws the page with the next frame, once, however often this is called. */
export function changed() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => {
    asked = false;
    draw();
  });
}

/** A setting that this browser keeps, as far as it keeps anything. */
export function kept(name, fallback) {
  try {
    return localStorage.getItem(`longshore.${name}`) ?? fallback;
  } catch {
    return fallback;
  }
}

export function keep(name, value) {
  try {
    localStorage.setItem(`longshore.${name}`, value);
  } catch {
    // Then the choice lasts as long as the page.
  }
}

/** Whether the session may do this; `all`: it is for the operator alone. */
export function may(scope, all = false) {
  const session = state.session;
  return Boolean(session) && session.scopes.includes(scope) && (!all || session.tenant === '_all');
}

/** The tenant that is looked at: `_all` for the operator who has chosen none. */
export function tenant() {
  const own = state.session?.tenant ?? 'default';
  return own === '_all' ? state.route.query.tenant || '_all' : own;
}

/** Whether what is shown is what the address asks for: else nobody may act on all of it. */
export const isShown = () => state.loadedFor === state.route;

/** A short message at the edge, which goes by itself. */
export function toast(text, bad = false) {
  const entry = { text, bad };
  state.toasts.push(entry);
  changed();
  setTimeout(() => {
    state.toasts = state.toasts.filter((other) => other !== entry);
    changed();
  }, bad ? 12000 : 5000);
}

/** Has the page ask again for what it shows. */
export const reload = () => dispatchEvent(new Event('reload'));

/** Says why not, if what is under way fails. */
export const tried = (work) => work.catch((error) => toast(error.message, true));

/**
 * Does what a form was sent for; the form holds whether that is under way, and why it failed.
 * @param {Event} event
 * @param {{busy: boolean, error: string}} form
 * @param {() => Promise<unknown>} work
 */
export async function sent(event, form, work) {
  event.preventDefault();
  Object.assign(form, { busy: true, error: '' });
  changed();
  try {
    await work();
  } catch (error) {
    form.error = error.message;
  }
  form.busy = false;
  changed();
}

/** Says that an act is done, if need be by its answer, and has the page ask again. */
export async function done(work, said) {
  const answer = await work;
  toast(typeof said === 'function' ? said(answer) : said);
  reload();
}

/** The same where nobody else says why not; the page asks again either way. */
export const acted = (work, said) => done(work, said).catch((error) => {
  toast(error.message, true);
  reload();
});
