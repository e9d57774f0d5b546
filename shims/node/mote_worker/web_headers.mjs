// Header fields in the form of the Fetch standard, for requests and answers that do not need the
// platform's classes.
//
// `LightHeaders` behaves like the platform's `Headers`, which takes long to load. This part does
// not know requests or answers.

import { TOKEN } from './headers.mjs';

const AROUND = /^[\t\n\r ]+|[\t\n\r ]+$/g;
const BAD_VALUE = /[\r\n\0]/;
const COOKIES = 'set-cookie';

function checkedField(name) {
  const text = `${name}`;
  if (!TOKEN.test(text)) throw new TypeError(`Headers: ${JSON.stringify(text)} is an invalid header name.`);
  return text.toLowerCase();
}

function checkedValue(value) {
  const text = `${value}`.replace(AROUND, '');
  for (let at = 0; at < text.length; at++) {
    if (text.charCodeAt(at) > 255) throw new TypeError(`Headers: the character at index ${at} has a value greater than 255.`);
  }
  if (BAD_VALUE.test(text)) throw new TypeError(`Headers: ${JSON.stringify(text)} is an invalid header value.`);
  return text;
}

export class LightHeaders {
  static name = 'Headers';
  #values = new Map(); // by name; fields of one name are joined
  #cookies = []; // of set-cookie, which cannot be joined

  /** `pairs` have names in small letters, and both parts are checked. */
  constructor(pairs) {
    for (const [name, value] of pairs) this.#add(name, value);
  }

  #add(name, value) {
    if (name === COOKIES) {
      this.#cookies.push(value);
      return;
    }
    const held = this.#values.get(name);
    this.#values.set(name, held === undefined ? value : `${held}${name === 'cookie' ? '; ' : ', '}${value}`);
  }

  append(name, value) { this.#add(checkedField(name), checkedValue(value)); }
  set(name, value) {
    const field = checkedField(name);
    const text = checkedValue(value);
    if (field === COOKIES) this.#cookies = [text];
    else this.#values.set(field, text);
  }
  delete(name) {
    const field = checkedField(name);
    if (field === COOKIES) this.#cookies = [];
    else this.#values.delete(field);
  }
  get(name) {
    const field = checkedField(name);
    if (field === COOKIES) return this.#cookies.length ? this.#cookies.join(', ') : null;
    return this.#values.get(field) ?? null;
  }
  has(name) {
    const field = checkedField(name);
    return field === COOKIES ? this.#cookies.length > 0 : this.#values.has(field);
  }
  getSetCookie() { return [...this.#cookies]; }

  /** [name, value] pairs, sorted by name. */
  #pairs() {
    const pairs = [...this.#values];
    for (const value of this.#cookies) pairs.push([COOKIES, value]);
    return pairs.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0));
  }
  * entries() { yield* this.#pairs(); }
  * keys() { for (const [name] of this.#pairs()) yield name; }
  * values() { for (const [, value] of this.#pairs()) yield value; }
  [Symbol.iterator]() { return this.entries(); }
  forEach(callback, self) {
    if (typeof callback !== 'function') throw new TypeError('Headers.forEach: the callback is not a function.');
    for (const [name, value] of this.#pairs()) callback.call(self, value, name, this);
  }
  get [Symbol.toStringTag]() { return 'Headers'; }
  [Symbol.for('nodejs.util.inspect.custom')](depth, options, inspect) {
    return `Headers ${inspect(Object.fromEntries(this.#pairs()), options)}`;
  }
}
