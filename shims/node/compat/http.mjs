// Code that the adapters for other platforms share: a request and a response with the members of
// Express that functions use, and their conversion to the shim's answers.
//
// An adapter exports `load(file, exported, spec, init)`, which imports the function and resolves to
// a handler `(event, ctx)` in the shim's own form. It is loaded only for functions that ask for it.
// `mote_worker/adapters.mjs` lists the parts of the shim that adapters may use.

import { EventEmitter } from 'node:events';
import { STATUS_CODES } from 'node:http';
import { pathToFileURL } from 'node:url';
import { inspect } from 'node:util';

import { Prepared, blockOf, headOf, keptBlockOf } from '../mote_shim.mjs';

export const HTML = 'text/html; charset=utf-8';
export const PLAIN = 'text/plain; charset=utf-8';
export const JSON_TYPE = 'application/json; charset=utf-8';

/** A path without its percent-encoding, for platforms whose servers decode it. */
export function decodedPath(path) {
  if (!path.includes('%')) return path;
  try {
    return decodeURIComponent(path);
  } catch { // it is no UTF-8
    return path;
  }
}

/** What a module exports: `module.exports`, or the module itself. */
export async function exportsOf(file) {
  const loaded = await import(pathToFileURL(file).href);
  return loaded.default ?? loaded;
}

/** One export that must be a function. */
export function functionOf(module, name, file) {
  const found = name ? module[name] : module;
  if (typeof found !== 'function') throw new Error(`${file} exports no function${name ? ` ${name}` : ''}`);
  return found;
}

/** The export of this name, or the module itself if it is a function without such an export. */
export function namedOrWhole(module, name, file) {
  return typeof module === 'function' && typeof module[name] !== 'function' ? module : functionOf(module, name, file);
}

/** Parameters of a query or form; several values of one name become an array. */
export function parameters(text) {
  const found = {};
  if (!text) return found;
  for (const [name, value] of new URLSearchParams(text)) {
    found[name] = Object.hasOwn(found, name) ? [].concat(found[name], value) : value;
  }
  return found;
}

export const mediaType = (event) => headOf(event).mediaType;

/** The body as Express's parsers would leave it: JSON, form, text, else bytes. */
export function parsedBody(event, untyped = 'text/plain') {
  const type = mediaType(event) || untyped;
  if (type === 'application/json' || type.endsWith('+json')) return event.body.length ? event.json() : {};
  if (type === 'application/x-www-form-urlencoded') return parameters(event.text());
  if (type.startsWith('text/')) return event.text();
  return event.body;
}

const TYPES = {
  json: JSON_TYPE, html: HTML, text: PLAIN, txt: PLAIN, xml: 'application/xml', bin: 'application/octet-stream',
};
const BODILESS = new Set([204, 205, 304]);

/** The answer of the shim with this status, [name, value] pairs and body. */
export function reply(status, pairs, body) {
  if (!Number.isInteger(status) || status < 200 || status > 599) throw new RangeError(`status ${status} is not 200 to 599`);
  return new Prepared(status, blockOf([...pairs]), BODILESS.has(status) ? '' : body ?? '');
}

const BLOCKS = new Map();

/** The same answer with one of a few media types and no other field. */
export function typed(body, type, status = 200) {
  let block = BLOCKS.get(type);
  if (block === undefined) {
    block = keptBlockOf([['content-type', type]]);
    if (BLOCKS.size < 64) BLOCKS.set(type, block);
  }
  return new Prepared(status, block, body);
}

/** Makes objects whose parts are made when first used look like the plain ones of their platform in
 * JSON and in logs. */
export function showing(kind, names) {
  const plain = (object) => Object.fromEntries(names.map((name) => [name, object[name]]));
  Object.defineProperties(kind.prototype, {
    toJSON: { value() { return plain(this); }, configurable: true, writable: true },
    [inspect.custom]: { value() { return plain(this); }, configurable: true, writable: true },
  });
}

/** A request as functions written for Express read it. Parts are made when first used. */
export class Request {
  #event;
  #readBody;
  constructor(event, readBody) {
    this.#event = event;
    this.#readBody = readBody;
  }
  get body() { return this.#keep('body', this.#readBody?.(this.#event)); }
  set body(value) { this.#keep('body', value); }
  get params() { return this.#keep('params', {}); }
  get method() { return this.#event.method; }
  get path() { return this.#event.path; }
  get url() { return this.#event.path + (this.#event.query ? `?${this.#event.query}` : ''); }
  get originalUrl() { return this.url; }
  get headers() { return this.#keep('headers', { ...headOf(this.#event).fields }); }
  get query() { return this.#keep('query', parameters(this.#event.query)); }
  get rawBody() { return this.#event.body; }
  get hostname() { return (this.headers.host ?? '').split(':')[0]; }
  get protocol() { return this.headers['x-forwarded-proto'] ?? 'http'; }
  get ip() { return this.headers['x-forwarded-for']?.split(',')[0].trim(); }
  get(name) { return this.headers[name.toLowerCase()]; }
  header(name) { return this.get(name); }
  is(type) { return mediaType(this.#event) === type && type; }
  #keep(name, value) {
    Object.defineProperty(this, name, { value, writable: true, enumerable: true });
    return value;
  }
}

// In Express, functions may assign to all of these members.
for (const [name, { get, set }] of Object.entries(Object.getOwnPropertyDescriptors(Request.prototype))) {
  if (!get || set) continue;
  Object.defineProperty(Request.prototype, name, {
    get, configurable: true,
    set(value) { Object.defineProperty(this, name, { value, writable: true, enumerable: true, configurable: true }); },
  });
}

/** A response as functions written for Express fill it; `finished` resolves to the shim's answer, and
 * `sent` is it once it is there. A stream can be piped into it. */
export class Reply {
  #type = null; // value of Content-Type, the field that most answers have alone
  #pairs = null; // lower-case name to [name, value or values], of the others
  #chunks = null;
  #settle = null;
  #reject = null;
  #emitter = null; // made by the first listener
  #failure = null;
  #piped = false;
  constructor() {
    this.statusCode = 200;
    this.sent = null;
    this.locals = {};
  }
  get headersSent() { return this.sent !== null; }
  get finished() {
    if (this.sent) return Promise.resolve(this.sent);
    if (this.#failure) return Promise.reject(this.#failure);
    return new Promise((resolve, reject) => {
      this.#settle = resolve;
      this.#reject = reject;
    });
  }
  get writable() { return !this.sent; }
  get writableEnded() { return this.sent !== null; }
  get writableFinished() { return this.sent !== null; }
  /** Whether a stream that has not ended writes here. */
  get isAwaited() { return this.#piped && !this.sent; }
  status(code) { this.statusCode = code; return this; }
  set(name, value) {
    if (typeof name === 'object') for (const [one, its] of Object.entries(name ?? {})) this.set(one, its);
    else if (name.toLowerCase() === 'content-type') this.#type = value;
    else (this.#pairs ??= new Map()).set(name.toLowerCase(), [name, value]);
    return this;
  }
  header(name, value) { return this.set(name, value); }
  setHeader(name, value) { return this.set(name, value); }
  append(name, value) {
    const known = this.getHeader(name);
    return this.set(name, known === undefined ? value : [].concat(known, value));
  }
  getHeader(name) {
    const key = name.toLowerCase();
    return key === 'content-type' ? this.#type ?? undefined : this.#pairs?.get(key)?.[1];
  }
  get(name) { return this.getHeader(name); }
  removeHeader(name) {
    const key = name.toLowerCase();
    if (key === 'content-type') this.#type = null;
    else this.#pairs?.delete(key);
  }
  type(kind) {
    this.#type = kind.includes('/') ? kind : TYPES[kind] ?? kind;
    return this;
  }
  contentType(kind) { return this.type(kind); }
  cookie(name, value, options = {}) {
    let text = `${name}=${encodeURIComponent(value)}; Path=${options.path ?? '/'}`;
    if (options.maxAge !== undefined) text += `; Max-Age=${Math.floor(options.maxAge / 1000)}`;
    if (options.httpOnly) text += '; HttpOnly';
    if (options.secure) text += '; Secure';
    if (options.sameSite) text += `; SameSite=${options.sameSite}`;
    return this.append('Set-Cookie', text);
  }
  redirect(status, url) {
    if (url === undefined) return this.redirect(302, status);
    return this.status(status).set('Location', url).type('text').send(`${STATUS_CODES[status] ?? status}. Redirecting to ${url}`);
  }
  writeHead(status, ...rest) { return this.status(status).set(Object(rest.at(-1)) === rest.at(-1) ? rest.at(-1) : {}); }
  write(chunk, encoding, written) {
    (this.#chunks ??= []).push(Buffer.from(chunk, typeof encoding === 'string' ? encoding : undefined));
    const then = typeof encoding === 'function' ? encoding : written;
    if (then) process.nextTick(then);
    return true;
  }
  flushHeaders() {}
  emit(name, ...values) {
    if (name === 'pipe') this.#piped = true;
    return this.#emitter?.emit(name, ...values) ?? false;
  }
  listenerCount(name) { return this.#emitter?.listenerCount(name) ?? 0; }
  /** The answer cannot be finished: the call fails. */
  destroy(error) {
    if (this.sent || this.#failure) return this;
    this.#failure = error ?? new Error('the response was destroyed before its end');
    this.#reject?.(this.#failure);
    this.#announce('close');
    return this;
  }
  #announce(...names) {
    if (this.#emitter) process.nextTick(() => names.forEach((name) => this.#emitter.emit(name)));
  }
  /** The methods of an emitter that take a listener. */
  static {
    for (const name of ['on', 'once', 'off', 'addListener', 'prependListener', 'prependOnceListener', 'removeListener', 'removeAllListeners']) {
      Reply.prototype[name] = function listen(...given) {
        this.#emitter ??= new EventEmitter();
        this.#emitter[name](...given);
        return this;
      };
    }
  }
  json(value) {
    this.#type ||= JSON_TYPE;
    return this.end(JSON.stringify(value));
  }
  send(value) {
    if (value instanceof Uint8Array) {
      this.#type ||= TYPES.bin;
      return this.end(value);
    }
    if (value !== null && (typeof value === 'object' || typeof value === 'boolean' || typeof value === 'number')) {
      return this.json(value);
    }
    if (typeof value === 'string') this.#type ||= HTML;
    return this.end(value ?? '');
  }
  sendStatus(code) { return this.status(code).type('text').send(STATUS_CODES[code] ?? String(code)); }
  end(chunk, encoding, ended) {
    const then = [chunk, encoding, ended].find((given) => typeof given === 'function');
    if (then) this.once('finish', then);
    if (this.sent) return this;
    if (typeof chunk === 'function') chunk = undefined;
    if (typeof chunk === 'string' && typeof encoding === 'string') chunk = Buffer.from(chunk, encoding);
    let body = chunk ?? '';
    if (this.#chunks) {
      if (chunk !== undefined && chunk !== null) this.write(chunk);
      body = Buffer.concat(this.#chunks);
    } else if (typeof body !== 'string' && !(body instanceof Uint8Array)) {
      body = Buffer.from(body);
    }
    this.sent = this.#answer(Number(this.statusCode), body);
    this.#settle?.(this.sent);
    this.#announce('finish', 'close');
    return this;
  }
  #answer(status, body) {
    if (this.#pairs === null && status === 200 && typeof this.#type === 'string') return typed(body, this.#type);
    const all = [...this.#type === null ? [] : [['Content-Type', this.#type]], ...this.#pairs?.values() ?? []];
    const pairs = all.flatMap(([name, value]) => [].concat(value).map((one) => [name, String(one)]));
    return reply(status, pairs, body);
  }
}
