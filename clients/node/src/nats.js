// What both sides need of the NATS client.

import { connect as open, headers as newHeaders } from '@nats-io/transport-node';

/** Connects to servers (an array, or text with commas), else to NATS_URL; a login and TLS may stand in the addresses. */
export function connect(servers, options) {
  const given = servers ?? process.env.NATS_URL ?? 'nats://127.0.0.1:4222';
  const addresses = (Array.isArray(given) ? given : given.split(',')).map((address) => {
    const text = address.trim();
    return new URL(text.includes('://') ? text : `nats://${text}`);
  });
  const said = {};
  for (const { username, password, protocol } of addresses) {
    if (username && password) Object.assign(said, { user: decodeURIComponent(username), pass: decodeURIComponent(password) });
    else if (username) said.token = decodeURIComponent(username);
    if (protocol === 'tls:') said.tls = {};
  }
  return open({ servers: addresses.map(({ host }) => host), ...said, ...options });
}

/** Headers of the client, of plain ones. */
export function headersFrom(plain) {
  const all = newHeaders();
  for (const [name, text] of Object.entries(plain ?? {})) all.append(name, String(text));
  return all;
}

/** Plain headers, of the client's. */
export function plainHeaders(all) {
  return Object.fromEntries([...(all ?? [])].map(([name, texts]) => [name, texts[0]]));
}
