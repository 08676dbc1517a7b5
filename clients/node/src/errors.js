// What a handler throws to say how its attempt ends, and what it becomes in the reply.

/** As the contract writes a duration; a number is seconds, to the millisecond, and above zero. */
function duration(value) {
  if (typeof value === 'string') return value;
  const milliseconds = Math.round(value * 1000);
  if (!(milliseconds >= 1)) throw new RangeError(`a duration must be above zero, not ${value}`);
  return `${milliseconds}ms`;
}

class Said extends Error {
  constructor(message) {
    super(message);
    this.name = new.target.name;
  }
}

export class Permanent extends Said {}

export class Retry extends Said {
  constructor(after, message = 'tried again later') {
    super(message);
    this.after = duration(after);
  }
}

export class Snooze extends Said {
  constructor(wait) {
    super('snoozed');
    this.wait = duration(wait);
  }
}

export class Detach extends Said {
  constructor(lasts) {
    super('detached');
    this.lasts = duration(lasts);
  }
}

export class Cancelled extends Said {}

/** The reply's headers for a handler that threw this. */
export function headersOf(error) {
  if (error instanceof Snooze) return { 'Longshore-Snooze': error.wait };
  if (error instanceof Detach) return { 'Longshore-Detach': error.lasts };
  const code = error instanceof Permanent ? '422' : error instanceof Retry ? '503' : '500';
  const own = error instanceof Said && error.message;
  const text = (own ? error.message : String(error)).split(/\s+/).join(' ').trim();
  const headers = { 'Nats-Service-Error-Code': code, 'Nats-Service-Error': text.slice(0, 1000) };
  if (error instanceof Retry) headers['Longshore-Retry-After'] = error.after;
  return headers;
}
