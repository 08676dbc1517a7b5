// Words for numbers and times, and JSON as text: payloads are never read and written again, as large numbers would change.

import { keep, kept } from './state.js';

/** Of numbers by name. */
export const sum = (counts) => Object.values(counts ?? {}).reduce((all, one) => all + one, 0);

export const number = (value) => (value === undefined || value === null ? '–' : value.toLocaleString('en-US'));

/** How many jobs wait. */
export const jobsWait = (count) => `${number(count)} ${count === 1 ? 'job waits' : 'jobs wait'}`;

/** 950, 12.4k, 3.2M. */
export function short(value) {
  if (value === undefined || value === null || Number.isNaN(value)) return '–';
  const rounded = (n) => (n >= 100 ? Math.round(n) : Math.round(n * 10) / 10);
  if (value >= 1e6) return `${rounded(value / 1e6)}M`;
  if (value >= 1e4) return `${rounded(value / 1e3)}k`;
  return value >= 10 || Number.isInteger(value) ? number(Math.round(value)) : String(rounded(value));
}

/** How long, from milliseconds. */
export function span(ms) {
  if (ms === undefined || ms === null || Number.isNaN(ms)) return '–';
  if (ms < 1) return ms > 0 ? '< 1 ms' : '0 ms';
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds < 10 ? Math.round(seconds * 10) / 10 : Math.round(seconds)} s`;
  const [big, small, unit, under] = seconds < 3600 ? [60, 1, 'min', 's'] : seconds < 86400 ? [3600, 60, 'h', 'min'] : [86400, 3600, 'd', 'h'];
  const whole = Math.floor(seconds / big);
  const rest = Math.floor((seconds - whole * big) / small);
  return rest && whole < 10 ? `${whole} ${unit} ${rest} ${under}` : `${whole} ${unit}`;
}

/** Before or until when, from now. */
export function relative(time, now = Date.now()) {
  const away = now - Date.parse(time);
  if (Number.isNaN(away)) return '–';
  if (Math.abs(away) < 1500) return 'now';
  const rough = span(Math.abs(away)).split(' ').slice(0, 2).join(' ');
  return away > 0 ? `${rough} ago` : `in ${rough}`;
}

/** The zones of times: `local`, `UTC`, and those by name, such as `Europe/Berlin`. */
export const ZONES = ['local', 'UTC', ...Intl.supportedValuesOf('timeZone').filter((name) => name !== 'UTC')];
const wanted = kept('zone', 'local');
// `utc` is how an earlier version kept it.
export const zone = { name: wanted === 'utc' ? 'UTC' : wanted };

export function setZone(name) {
  zone.name = name;
  keep('zone', name);
}

/** @type {Map<string, Intl.DateTimeFormat>} */
const formats = new Map();

/** A moment's parts in a zone; one that the browser does not know is read as UTC. */
function parts(at, where) {
  if (!formats.has(where)) {
    /** @type {(timeZone?: string) => Intl.DateTimeFormat} */
    const made = (timeZone) => new Intl.DateTimeFormat('en-GB', { timeZone, year: 'numeric', month: '2-digit', day: '2-digit', hour: '2-digit', minute: '2-digit', second: '2-digit', fractionalSecondDigits: 3, timeZoneName: 'longOffset' });
    try {
      formats.set(where, made(where === 'local' ? undefined : where));
    } catch {
      formats.set(where, made('UTC'));
    }
  }
  return Object.fromEntries(formats.get(where).formatToParts(at).map(({ type, value }) => [type, value]));
}

/** The moment itself, in the chosen zone or in another one. */
export function absolute(time, where = zone.name) {
  const at = new Date(time);
  if (Number.isNaN(at.getTime())) return '–';
  const { year, month, day, hour, minute, second, fractionalSecond, timeZoneName } = parts(at, where);
  return `${year}-${month}-${day} ${hour}:${minute}:${second}.${fractionalSecond} ${timeZoneName === 'GMT' ? 'UTC' : timeZoneName.replace('GMT', '')}`;
}

/** The time of the day alone. */
export function clock(time) {
  const { hour, minute, second } = parts(new Date(time), zone.name);
  return `${hour}:${minute}:${second}`;
}

const TOKEN = /"(?:[^"\\]|\\.)*"|[{}[\]:,]|[^\s{}[\]:,"]+/gs;

/** The text of a field of a JSON object's first level, as it stands there. */
export function member(text, name) {
  let depth = 0;
  let key = null;
  let start = -1;
  TOKEN.lastIndex = 0;
  for (let found = TOKEN.exec(text); found; found = TOKEN.exec(text)) {
    const token = found[0];
    const closes = token === '}' || token === ']';
    if (start >= 0 && depth === 1 && (token === ',' || closes)) return text.slice(start, found.index).trim();
    if (depth === 1 && key === null && token[0] === '"') key = JSON.parse(token);
    else if (depth === 1 && token === ':' && key === name && start < 0) start = TOKEN.lastIndex;
    else if (depth === 1 && token === ',') key = null;
    if (token === '{' || token === '[') depth += 1;
    if (closes) depth -= 1;
  }
  return undefined;
}

/** JSON with line breaks and indents, every token as it was. */
export function indented(text) {
  if (!isJson(text)) return text;
  const tokens = text.match(TOKEN) ?? [];
  let depth = 0;
  let shown = '';
  const line = () => `\n${'  '.repeat(depth)}`;
  for (const [at, token] of tokens.entries()) {
    // The indents of what is thousands deep are more than a string holds.
    if (depth > 200) return text;
    const opens = token === '{' || token === '[';
    const closes = token === '}' || token === ']';
    const before = tokens[at - 1];
    if (closes) {
      depth -= 1;
      if (before !== '{' && before !== '[') shown += line();
    }
    shown += token;
    if (opens) {
      depth += 1;
      const next = tokens[at + 1];
      if (next !== '}' && next !== ']') shown += line();
    } else if (token === ',') shown += line();
    else if (token === ':') shown += ' ';
  }
  return shown;
}

export function isJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/** Base64 as text, if it is UTF-8; else null. */
export function decoded(base64) {
  const bytes = Uint8Array.from(atob(base64), (sign) => sign.charCodeAt(0));
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch {
    return null;
  }
}

/** Signs that no eye sees, or that turn the reading direction, as marks that can be seen. */
export function visible(text) {
  const mark = (sign) => `⟨U+${sign.codePointAt(0).toString(16).toUpperCase().padStart(4, '0')}⟩`;
  return String(text).replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g, mark);
}

/** A word for a shell. */
export const quoted = (word) => (/^[\w./:@%+=,-]+$/.test(word) ? word : `'${String(word).replaceAll("'", "'\\''")}'`);

const DAYS = ['Sunday', 'Monday', 'Tuesday', 'Wednesday', 'Thursday', 'Friday', 'Saturday'];
const MONTHS = ['January', 'February', 'March', 'April', 'May', 'June', 'July', 'August', 'September', 'October', 'November', 'December'];

/** A cron expression in words, if it is one of the usual forms; seconds may stand first. */
export function cronWords(cron) {
  const fields = cron.trim().split(/\s+/);
  const [second, minute, hour, day, month, weekday] = fields.length === 5 ? ['0', ...fields] : fields;
  const name = (names, from) => (word) => names[/^\d+$/.test(word) ? (Number(word) - from) % names.length : names.findIndex((long) => long.slice(0, 3).toLowerCase() === word.toLowerCase())];
  const named = (text, names, from) => {
    const said = text.split(',').map((item) => item.split('-').map(name(names, from)));
    return said.flat().every(Boolean) && said.every((range) => range.length < 3) ? said.map((range) => range.join(' to ')).join(', ') : null;
  };
  const fixed = (text) => /^\d+$/.test(text);
  const two = (text) => text.padStart(2, '0');
  let at;
  const step = (text) => /^(?:\*|0)\/(\d+)$/.exec(text)?.[1];
  if (fixed(second) && fixed(minute) && fixed(hour)) at = `at ${two(hour)}:${two(minute)}${second === '0' ? '' : `:${two(second)}`}`;
  else if (second === '0' && fixed(minute) && hour === '*') at = minute === '0' ? 'every hour' : `every hour at :${two(minute)}`;
  else if (second === '0' && minute === '0' && step(hour)) at = `every ${step(hour)} hours`;
  else if (second === '0' && hour === '*' && (minute === '*' || step(minute))) at = minute === '*' ? 'every minute' : `every ${step(minute)} minutes`;
  else return undefined;
  const plain = [day, weekday].map((text) => text === '*' || text === '?');
  const days = plain[1] ? '' : named(weekday, DAYS, 0);
  const dates = plain[0] ? '' : fixed(day) && `day ${day} of the month`;
  const months = month === '*' ? '' : named(month, MONTHS, 1);
  if ([days, dates, months].some((part) => part === null || part === false) || (days && dates)) return undefined;
  const on = [days || dates, months && `in ${months}`].filter(Boolean).join(' ');
  return on ? `${at}, ${on}` : fixed(hour) ? `${at}, every day` : at;
}
