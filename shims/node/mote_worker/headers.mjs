// Makes header blocks from the header fields that a function returns.
//
// This part checks names and values. It does not know requests or answers.

import { isReal } from './platform.mjs';
import { BadReply, HEADERS_MAX } from './wire.mjs';

// The front frames the answer. A function's own framing fields could contradict the bytes that are
// sent.
const FRAMING = new Set(
  ['connection', 'content-length', 'keep-alive', 'proxy-connection', 'te', 'trailer', 'transfer-encoding', 'upgrade']);
export const TOKEN = /^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$/;
const LINE_BREAK = /[\r\n\0]/;

/** [name, value] pairs of Headers. The platform's in some builds of Node 18 join cookies with ", ",
 * which no client reads back: they are taken apart where the next one begins. */
export function standardPairs(headers) {
  if (typeof headers.getSetCookie === 'function') return [...headers];
  return [...headers].flatMap(([name, value]) => (name === 'set-cookie'
    ? value.split(/, (?=[^\s;,=]+=)/).map((cookie) => [name, cookie])
    : [[name, value]]));
}

/** Checked [name, value] pairs of a HeadersInit, null for none. */
export function headerPairs(headers) {
  if (headers === undefined || headers === null) return null;
  const pairs = isReal('Headers', headers) ? standardPairs(headers)
    : typeof headers[Symbol.iterator] === 'function' ? [...headers] : Object.entries(headers);
  for (let i = 0; i < pairs.length; i++) {
    const [name, value] = pairs[i];
    const text = `${value}`;
    if (!TOKEN.test(name)) throw new TypeError(`header name ${JSON.stringify(name)} is not a token`);
    if (LINE_BREAK.test(text)) throw new TypeError(`header ${name} holds a line break or NUL`);
    pairs[i] = [name.toLowerCase(), text.trim()];
  }
  return pairs;
}

/** A header block from checked or standard pairs. */
export function headerBlock(pairs) {
  let block = '';
  for (const [name, value] of pairs) {
    if (!FRAMING.has(name)) block += `${name}\n${value}\n`;
  }
  if (block.length > HEADERS_MAX) throw new BadReply(`headers of ${block.length} bytes, at most 64 KiB are allowed`);
  return block;
}
