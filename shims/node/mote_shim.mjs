// The Node worker of mote: loads one function and answers its invocations over fd 3.
//
// The contract is docs/reference/worker-protocol.md. Standard library only, Node 18 or newer.
// Where to start reading: `main` at the end, then `onData`, `start`, `answer`.
//
// Constructing the platform's own Request and Response costs several microseconds each, more than
// everything else here together. So a function sees light objects that keep what the frame holds
// and become real ones only where a function uses a part that needs it.

import { AsyncLocalStorage } from 'node:async_hooks';
import fs from 'node:fs';
import module from 'node:module';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { Writable } from 'node:stream';
import { pathToFileURL } from 'node:url';

export const VERSION = 1;
export const Kind = {
  HELLO: 1, LOAD: 2, READY: 3, INVOKE: 4, BODY: 5, RESULT: 6, ERROR: 7, CANCEL: 8, CREDIT: 9, LOG: 10, DRAIN: 11,
};
const END = 1;
const HEADER_BYTES = 12;
const PAYLOAD_MAX = 1 << 20;
const INLINE_MAX = 64 << 10;
const CHUNK_MAX = 64 << 10;
const WINDOW = 256 << 10;
const HEADERS_MAX = 64 << 10;
const LINE_MAX = 16 << 10;
const CAUSES_MAX = 5; // of an error, in its trace
const BLOCKS_KEPT = 64; // of heads and of fields; some 400 KiB at most
const BLOCK_KEPT_BYTES = 1 << 10;
const HEAD_LENGTHS_AT = 28; // of INVOKE: trigger and lengths, of so many bytes, then what they tell of
const HEAD_LENGTHS = 12;
const NOTHING = Buffer.alloc(0);
const CONCURRENCY = 256;
const REHEARSE_MS = 20; // a worker that is not loaded by then waits
const REHEARSALS = 4;
// Answers leave at the end of a turn of the loop, or sooner once this much time or room is used.
const FLUSH_MS = 0.2;
const FLUSH_BYTES = 64 << 10;
const OUT_BYTES = 256 << 10;
const TRIGGERS = ['unknown', 'http', 'coap', 'admin'];

// Header blocks; those that stay the same as bytes, which are written in a third of the time.
const TEXT = Buffer.from('content-type\ntext/plain; charset=utf-8\n');
const WEB_TEXT = 'content-type\ntext/plain;charset=UTF-8\n'; // what the Fetch standard gives a string
const WEB_TEXT_BYTES = Buffer.from(WEB_TEXT);
const BYTES = Buffer.from('content-type\napplication/octet-stream\n');
const JSON_TYPE = 'content-type\napplication/json\n';
// The front frames the answer; a function's own idea of it would contradict the bytes sent.
const FRAMING = new Set(
  ['connection', 'content-length', 'keep-alive', 'proxy-connection', 'te', 'trailer', 'transfer-encoding', 'upgrade']);
const TOKEN = /^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$/;
const BAD_VALUE = /[\r\n\0]/;

// performance.now() is the monotonic clock minus a start; a bigint per reading would cost more.
// The first readings are slow; the smallest of a few differences is the true one.
const CLOCK_OFFSET = Math.min(...Array.from({ length: 8 }, () => {
  const start = performance.now();
  return Number(process.hrtime.bigint()) - start * 1e6;
}));
const nowNs = () => CLOCK_OFFSET + performance.now() * 1e6;

const LETTERS = '0123456789ABCDEFGHJKMNPQRSTVWXYZ';

/** An answer that is one already: status, header block (text or bytes), and text or bytes. What
 * adapters return. */
export class Prepared {
  constructor(status, block, body) {
    this.status = status;
    this.block = block;
    this.body = body;
  }
}

export class ProtocolError extends Error {}
class BadReply extends Error {}
class Cancelled extends Error {}

const real = {
  Request: globalThis.Request, Response: globalThis.Response, Headers: globalThis.Headers, fetch: globalThis.fetch,
};

// Frames in --------------------------------------------------------------------------------------

/** Calls `onFrame(kind, flags, stream, data, start, end)` for each whole frame; returns the bytes used. */
export function splitFrames(data, length, onFrame) {
  const view = new DataView(data.buffer, data.byteOffset, length);
  let at = 0;
  while (length - at >= HEADER_BYTES) {
    const size = view.getUint32(at, true);
    const kind = data[at + 4];
    const flags = data[at + 5];
    if (size > PAYLOAD_MAX || kind < 1 || kind > 11 || flags > END || data[at + 6] || data[at + 7]) {
      throw new ProtocolError(`frame header ${Buffer.from(data.subarray(at, at + 12)).toString('hex')}`);
    }
    const start = at + HEADER_BYTES;
    if (start + size > length) break;
    onFrame(kind, flags, view.getUint32(at + 8, true), data, start, start + size);
    at = start + size;
  }
  return at;
}

// A client asks for much the same with every call: what was read of heads and fields is kept.
const KNOWN_HEADS = new Map();
const KNOWN_FIELDS = new Map();
let lastText = '';
let lastHead = null;

function keep(known, text, read) {
  if (text.length > BLOCK_KEPT_BYTES) return;
  if (known.size >= BLOCKS_KEPT) known.clear();
  known.set(text, read);
}

function fieldsIn(block) {
  const known = KNOWN_FIELDS.get(block);
  if (known !== undefined) return known;
  const fields = Object.create(null); // a field may be called __proto__
  const parts = block.split('\n');
  for (let i = 0; i + 1 < parts.length; i += 2) {
    const name = parts[i];
    fields[name] = name in fields ? `${fields[name]}, ${parts[i + 1]}` : parts[i + 1];
  }
  const read = { ...fields }; // quicker to copy than an object without a prototype
  keep(KNOWN_FIELDS, block, read);
  return read;
}

/** What a call asks for. Shared between calls that ask for the same, so not to be changed. */
class Head {
  constructor(text, methodEnd, pathEnd, queryEnd) {
    this.method = text.slice(HEAD_LENGTHS, methodEnd);
    this.path = text.slice(methodEnd, pathEnd);
    this.query = text.slice(pathEnd, queryEnd);
    this.fields = fieldsIn(text.slice(queryEnd)); // by name, duplicates joined by ", "
    this.mediaType = (this.fields['content-type'] ?? '').split(';')[0].trim().toLowerCase();
    this.made = null; // what an adapter keeps with it
  }
}

/** Lets the shim put what `promise` resolves to through `next`, which returns the answer or a promise
 * of it: one promise less than `promise.then(next)`. Returns `promise`. For adapters. */
export const later = (event, promise, next) => Event.later(event, promise, next);

/** Method, path, query, fields and media type of an event; shared, so not to be changed. For adapters. */
export const headOf = (event) => Event.head(event);

/** One invocation: where its parts lie in the bytes it came with. */
export class Invocation {
  constructor(stream, data, start, end) {
    const size = end - start;
    if (size < 40) throw new ProtocolError('INVOKE too short');
    this.stream = stream;
    this.data = data;
    this.start = start;
    this.methodEnd = start + 40 + data[start + 29];
    this.pathEnd = this.methodEnd + (data[start + 30] | (data[start + 31] << 8));
    this.queryEnd = this.pathEnd + (data[start + 32] | (data[start + 33] << 8));
    this.headersEnd = this.queryEnd + data.readUInt32LE(start + 36);
    if (this.headersEnd > end || stream === 0) throw new ProtocolError('INVOKE lengths pass its end');
    this.end = end;
    this.incoming = null; // Incoming while the body is not inside this frame
    this.output = null; // Output once the answer streams
    this.cancelled = false;
    this.done = false;
    this.controller = null;
    this.enteredNs = 0;
    this.next = null; // what makes an answer of what the handler resolves to, see `later`
  }
  /** One call into the runtime for all of it, and a look at what is known. */
  get head() {
    const from = this.start + HEAD_LENGTHS_AT;
    const text = this.data.latin1Slice(from, this.headersEnd);
    if (text === lastText) return lastHead; // quicker than a hash of it
    let head = KNOWN_HEADS.get(text);
    if (head === undefined) {
      head = new Head(text, this.methodEnd - from, this.pathEnd - from, this.queryEnd - from);
      keep(KNOWN_HEADS, text, head);
    }
    lastText = text;
    lastHead = head;
    return head;
  }
  get method() { return this.data.latin1Slice(this.start + 40, this.methodEnd); }
  get path() { return this.data.latin1Slice(this.methodEnd, this.pathEnd); }
  get query() { return this.data.latin1Slice(this.pathEnd, this.queryEnd); }
  get body() { return this.headersEnd === this.end ? NOTHING : this.data.subarray(this.headersEnd, this.end); }
  get trigger() { return TRIGGERS[this.data[this.start + 28]] ?? 'unknown'; }
  get deadlineNs() {
    const at = this.start;
    const sent = this.data.readUInt32LE(at) + this.data.readUInt32LE(at + 4) * 2 ** 32;
    return sent + this.data.readUInt32LE(at + 24) * 1e6;
  }
  /** 26 letters: the 128-bit id in Crockford's base 32. */
  get id() {
    let text = '';
    let held = 0;
    let bits = 2; // 26 letters hold two bits more than there are
    for (let at = this.start + 8; at < this.start + 24; at++) {
      held = (held << 8) | this.data[at];
      for (bits += 8; bits >= 5;) {
        bits -= 5;
        text += LETTERS[(held >> bits) & 31];
      }
      held &= (1 << bits) - 1;
    }
    return text;
  }
  pairs() {
    const parts = this.data.latin1Slice(this.queryEnd, this.headersEnd).split('\n');
    const pairs = [];
    for (let i = 0; i + 1 < parts.length; i += 2) pairs.push([parts[i], parts[i + 1]]);
    return pairs;
  }
  header(name) {
    for (const [key, value] of this.pairs()) if (key === name) return value;
    return null;
  }
  get signal() {
    if (!this.controller) {
      this.controller = new AbortController();
      if (this.cancelled) this.controller.abort();
    }
    return this.controller.signal;
  }
}

/** The body of one request on its way in. */
class Incoming {
  constructor(worker, stream, first) {
    this.worker = worker;
    this.stream = stream;
    this.chunks = first.length ? [[first, 0]] : [];
    this.ended = false;
    this.error = null;
    this.owed = 0;
    this.wake = null;
  }
  add(chunk, ended) {
    if (chunk.length) this.chunks.push([chunk, chunk.length]);
    this.ended = ended;
    this.wake?.();
  }
  consumed(size) {
    // One CREDIT for a quarter of the window: the sender never runs dry, and small chunks do not
    // cost a frame each.
    this.owed += size;
    if (this.owed >= CHUNK_MAX && !this.ended) {
      const payload = Buffer.allocUnsafe(4);
      payload.writeUInt32LE(this.owed);
      this.worker.put(Kind.CREDIT, 0, this.stream, payload);
      this.owed = 0;
    }
  }
  /** The next chunk, or null at the end. */
  async next() {
    while (!this.chunks.length) {
      if (this.error) throw this.error;
      if (this.ended) return null;
      await new Promise((resolve) => { this.wake = resolve; });
    }
    const [chunk, size] = this.chunks.shift();
    if (size) this.consumed(size);
    return chunk;
  }
  async all() {
    const chunks = [];
    for (let chunk; (chunk = await this.next()) !== null;) chunks.push(chunk);
    return Buffer.concat(chunks);
  }
}

/** The body of one answer on its way out, as far as the engine's credit reaches. */
class Output {
  constructor(worker, invocation) {
    this.worker = worker;
    this.invocation = invocation;
    this.window = WINDOW;
    this.queue = [];
    this.last = false;
    this.wake = null;
    worker.outputs.set(invocation.stream, this);
  }
  push(chunk, last = false) {
    if (chunk.length) this.queue.push(chunk);
    this.last ||= last;
    if (last && !this.queue.length) {
      this.worker.put(Kind.BODY, END, this.invocation.stream, chunk);
      this.close();
    } else {
      this.pump();
    }
  }
  pump() {
    while (this.queue.length && this.window) {
      const chunk = this.queue[0];
      const size = Math.min(chunk.length, CHUNK_MAX, this.window);
      if (size === chunk.length) this.queue.shift();
      else this.queue[0] = chunk.subarray(size);
      this.window -= size;
      const end = this.last && !this.queue.length;
      this.worker.put(Kind.BODY, end ? END : 0, this.invocation.stream, chunk.subarray(0, size));
      if (end) return this.close();
    }
    if (!this.queue.length) this.wake?.();
  }
  async drained() {
    while (this.queue.length && !this.invocation.cancelled) {
      await new Promise((resolve) => { this.wake = resolve; });
    }
    if (this.invocation.cancelled) throw new Cancelled('the caller is gone');
  }
  close() {
    this.queue.length = 0;
    this.worker.outputs.delete(this.invocation.stream);
    this.wake?.();
  }
}

// What a function sees ---------------------------------------------------------------------------

/** What surrounds an invocation. */
class Context {
  #worker;
  #invocation;
  constructor(worker, invocation) {
    this.#worker = worker;
    this.#invocation = invocation;
  }
  get function() { return this.#worker.spec.function; }
  get revision() { return this.#worker.spec.revision; }
  get env() { return process.env; }
  get id() { return this.#invocation?.id ?? null; }
  get trigger() { return this.#invocation?.trigger ?? null; }
  get log() { return console; }
  get signal() { return this.#invocation?.signal ?? null; }
  get cancelled() { return this.#invocation?.cancelled ?? false; }
  /** Milliseconds until the deadline, at least 0; null inside init. */
  remainingMs() {
    return this.#invocation ? Math.max(0, Math.floor((this.#invocation.deadlineNs - nowNs()) / 1e6)) : null;
  }
  /** Part of `fetch(request, env, ctx)` elsewhere: there is no origin server to pass a request to. */
  passThroughOnException() {}
  /** Work that may go on after the answer; a drain waits for it. */
  waitUntil(promise) {
    const worker = this.#worker;
    worker.background++;
    Promise.resolve(promise).catch((error) => console.error(error)).finally(() => {
      worker.background--;
      worker.maybeLeave();
    });
  }
}

/** The event of `handle(event, ctx)`. */
class Event {
  #invocation;
  #body;
  constructor(invocation, body) {
    this.#invocation = invocation;
    this.#body = body;
  }
  get body() { return this.#body; }
  text() { return this.#body.length ? this.#body.toString('utf8') : ''; }
  json() { return JSON.parse(this.#body.toString('utf8')); }
  get method() { return this.#invocation.method; }
  get path() { return this.#invocation.path; }
  get query() { return this.#invocation.query; }
  get args() { return Object.fromEntries(new URLSearchParams(this.#invocation.query)); }
  get trigger() { return this.#invocation.trigger; }
  get id() { return this.#invocation.id; }
  get headers() {
    const headers = Object.assign(Object.create(null), this.#invocation.head.fields);
    Object.defineProperty(this, 'headers', { value: headers });
    return headers;
  }
  static head(event) { return event.#invocation.head; }
  static later(event, promise, next) {
    event.#invocation.next = next;
    return promise;
  }
}

/** Behaves as a standard Request; holds only the invocation until something needs more. */
class LightRequest {
  #invocation;
  #headers = null;
  #used = false;
  #real = null;
  #stream = null;
  constructor(invocation) { this.#invocation = invocation; }
  static is(value) { return typeof value === 'object' && value !== null && #invocation in value; }

  get method() { return this.#invocation.method; }
  get url() {
    const { path, query } = this.#invocation;
    const host = this.#invocation.header('host') ?? 'localhost';
    const scheme = this.#invocation.header('x-forwarded-proto') === 'https' ? 'https' : 'http';
    const text = `${scheme}://${host}${path}${query ? `?${query}` : ''}`;
    const url = URL.canParse?.(text) === false ? `http://localhost${path}${query ? `?${query}` : ''}` : new URL(text).href;
    Object.defineProperty(this, 'url', { value: url });
    return url;
  }
  get headers() {
    if (this.#real) return this.#real.headers;
    return (this.#headers ??= new real.Headers(this.#invocation.pairs()));
  }
  get signal() { return this.#invocation.signal; }
  get bodyUsed() { return this.#real ? this.#real.bodyUsed : this.#used || (this.#stream?.locked ?? false); }
  get body() {
    if (this.#real) return this.#real.body;
    const invocation = this.#invocation;
    if (!invocation.incoming && invocation.headersEnd === invocation.end) return null;
    return (this.#stream ??= new ReadableStream({
      type: 'bytes',
      async pull(controller) {
        const chunk = invocation.incoming ? await invocation.incoming.next() : invocation.body;
        if (chunk === null) {
          controller.close();
          controller.byobRequest?.respond(0);
          return;
        }
        controller.enqueue(new Uint8Array(chunk));
        if (!invocation.incoming) controller.close();
      },
    }, { highWaterMark: 0 }));
  }
  /** All bytes of the body, once. */
  async #bytes() {
    if (this.bodyUsed) throw new TypeError('Body is unusable: Body has already been read');
    if (this.#stream) return Buffer.from(await new real.Response(this.#stream).arrayBuffer());
    this.#used = true;
    return this.#invocation.incoming ? this.#invocation.incoming.all() : this.#invocation.body;
  }
  async text() {
    if (this.#real) return this.#real.text();
    const bytes = await this.#bytes();
    const mark = bytes[0] === 0xef && bytes[1] === 0xbb && bytes[2] === 0xbf ? 3 : 0;
    return bytes.utf8Slice(mark, bytes.length);
  }
  async json() { return JSON.parse(await this.text()); }
  async bytes() { return new Uint8Array(await this.arrayBuffer()); }
  async arrayBuffer() {
    if (this.#real) return this.#real.arrayBuffer();
    const bytes = await this.#bytes();
    return bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
  }
  async blob() {
    const type = this.headers.get('content-type') ?? '';
    return new Blob([await this.arrayBuffer()], { type });
  }
  formData() { return this.toReal().formData(); }
  clone() {
    if (this.bodyUsed) throw new TypeError('Request.clone: Body has already been consumed.');
    if (this.#real || this.#stream || this.#invocation.incoming) return this.toReal().clone();
    const copy = new LightRequest(this.#invocation);
    if (this.#headers) copy.#headers = new real.Headers(this.#headers);
    return copy;
  }
  /** The same request as an object of the platform; from then on it holds the body. */
  toReal() {
    if (!this.#real) {
      const bodiless = this.method === 'GET' || this.method === 'HEAD';
      const init = { method: this.method, headers: this.headers, signal: this.signal };
      if (!bodiless && !this.#used) {
        const body = this.body;
        if (body) Object.assign(init, { body, duplex: 'half' });
      }
      this.#real = new real.Request(this.url, init);
    }
    return this.#real;
  }
}

class StandardRequest extends real.Request {
  constructor(input, init) { super(LightRequest.is(input) ? input.toReal() : input, init); }
  static [Symbol.hasInstance](value) { return Function.prototype[Symbol.hasInstance].call(real.Request, value); }
}

const stringifyBody = (body) => (typeof body === 'string' ? body.toWellFormed?.() ?? body : body);

const JOINS_COOKIES = typeof real.Headers.prototype.getSetCookie !== 'function';

/** [name, value] pairs of the platform's Headers. Those of some builds of Node 18 join cookies with
 * ", ", which no client reads back: they are taken apart where the next one begins. */
function standardPairs(headers) {
  if (!JOINS_COOKIES) return [...headers];
  return [...headers].flatMap(([name, value]) => (name === 'set-cookie'
    ? value.split(/, (?=[^\s;,=]+=)/).map((cookie) => [name, cookie])
    : [[name, value]]));
}

/** A checked header block of [name, value] pairs. */
export const blockOf = (pairs) => headerBlock(headerPairs(pairs));

/** The same as bytes, for one that is used again. */
export const keptBlockOf = (pairs) => Buffer.from(blockOf(pairs), 'latin1');

/** Checked [name, value] pairs of a HeadersInit, null for none. */
function headerPairs(headers) {
  if (headers === undefined || headers === null) return null;
  const pairs = headers instanceof real.Headers ? standardPairs(headers)
    : typeof headers[Symbol.iterator] === 'function' ? [...headers] : Object.entries(headers);
  for (let i = 0; i < pairs.length; i++) {
    const [name, value] = pairs[i];
    const text = `${value}`;
    if (!TOKEN.test(name)) throw new TypeError(`header name ${JSON.stringify(name)} is not a token`);
    if (BAD_VALUE.test(text)) throw new TypeError(`header ${name} holds a line break or NUL`);
    pairs[i] = [name.toLowerCase(), text.trim()];
  }
  return pairs;
}

/** A Response that costs nothing until something besides its body and status is used. */
class LightResponse {
  #body; // string, Buffer or null
  #type; // header block that goes with the body
  #pairs = null;
  #status = 200;
  #statusText = '';
  #real = null;

  constructor(body, init) {
    if (typeof body === 'string') {
      this.#body = body;
      this.#type = WEB_TEXT;
    } else if (body === null || body === undefined) {
      this.#body = null;
      this.#type = '';
    } else if (body instanceof Uint8Array) {
      this.#body = Buffer.from(body); // a copy, as the standard has it: the caller may reuse its own
      this.#type = '';
    } else {
      this.#real = new real.Response(body, LightResponse.is(init) ? init.toReal() : init);
      this.#body = undefined;
      return;
    }
    if (init !== undefined && init !== null) {
      if (init.status !== undefined) {
        this.#status = init.status | 0;
        if (this.#status < 200 || this.#status > 599) {
          throw new RangeError('init["status"] must be in the range of 200 to 599, inclusive.');
        }
        if (this.#body !== null && (this.#status === 204 || this.#status === 205 || this.#status === 304)) {
          throw new TypeError(`Response constructor: Invalid response status code ${this.#status}`);
        }
      }
      if (init.statusText !== undefined) this.#statusText = `${init.statusText}`;
      if (init.headers) this.#pairs = headerPairs(init.headers);
    }
  }
  static is(value) { return typeof value === 'object' && value !== null && #body in value; }
  static [Symbol.hasInstance](value) { return Function.prototype[Symbol.hasInstance].call(real.Response, value); }
  static json(data, init) {
    const text = JSON.stringify(data);
    if (text === undefined) throw new TypeError('Value is not JSON serializable');
    const response = new LightResponse(text, init);
    response.#type = JSON_TYPE;
    return response;
  }
  static redirect(url, status) { return real.Response.redirect(url, status); }
  static error() { return real.Response.error(); }

  get status() { return this.#real ? this.#real.status : this.#status; }
  get statusText() { return this.#real ? this.#real.statusText : this.#statusText; }
  get ok() { return this.status >= 200 && this.status <= 299; }
  get type() { return 'default'; }
  get url() { return ''; }
  get redirected() { return false; }
  get headers() { return this.toReal().headers; }
  get body() { return this.#body === null ? null : this.toReal().body; }
  get bodyUsed() { return this.#real ? this.#real.bodyUsed : false; }
  text() { return this.toReal().text(); }
  json() { return this.toReal().json(); }
  arrayBuffer() { return this.toReal().arrayBuffer(); }
  async bytes() { return new Uint8Array(await this.arrayBuffer()); }
  blob() { return this.toReal().blob(); }
  formData() { return this.toReal().formData(); }
  clone() { return this.toReal().clone(); }
  toReal() {
    if (!this.#real) {
      const headers = new real.Headers(this.#pairs ?? []);
      if (this.#type && !headers.has('content-type')) headers.set('content-type', this.#type.split('\n')[1]);
      this.#real = new real.Response(this.#body, { status: this.#status, statusText: this.#statusText, headers });
    }
    return this.#real;
  }
  /** Hands the parts to `put(status, headerBlock, body)`, or returns false for a body that streams. */
  emit(put) {
    if (this.#body === undefined) return false;
    if (this.#real) {
      if (this.#real.bodyUsed || this.#real.body?.locked) throw new BadReply('the body of the Response was already read');
      put(this.#real.status, headerBlock(standardPairs(this.#real.headers)), this.#body ?? '');
    } else if (this.#pairs === null) {
      put(this.#status, this.#type === WEB_TEXT ? WEB_TEXT_BYTES : this.#type, this.#body ?? '');
    } else {
      let block = headerBlock(this.#pairs);
      if (this.#type && !this.#pairs.some(([name]) => name === 'content-type')) block = this.#type + block;
      put(this.#status, block, this.#body ?? '');
    }
    return true;
  }
}

/** Whatever the light classes do not define themselves is asked of the real object. */
function completeFrom(light, standard) {
  for (const name of Object.getOwnPropertyNames(standard.prototype)) {
    if (name in light.prototype) continue;
    const { value } = Object.getOwnPropertyDescriptor(standard.prototype, name);
    Object.defineProperty(light.prototype, name, typeof value === 'function'
      ? { configurable: true, writable: true, value(...args) { return this.toReal()[name](...args); } }
      : { configurable: true, get() { return this.toReal()[name]; } });
  }
  Object.defineProperty(light.prototype, Symbol.toStringTag, { value: standard.name, configurable: true });
}

function installWebClasses() {
  completeFrom(LightRequest, real.Request);
  completeFrom(LightResponse, real.Response);
  Object.setPrototypeOf(LightRequest.prototype, real.Request.prototype);
  Object.setPrototypeOf(LightResponse.prototype, real.Response.prototype);
  Object.defineProperty(LightResponse, 'name', { value: 'Response' });
  Object.defineProperty(StandardRequest, 'name', { value: 'Request' });
  const define = (name, value) => Object.defineProperty(globalThis, name, { value, writable: true, configurable: true });
  define('Request', StandardRequest);
  define('Response', LightResponse);
  define('fetch', (input, init) => real.fetch(LightRequest.is(input) ? input.toReal() : input, init));
}

/**
 * What `os` reads from files and sockets that a sandbox does not have: as many processors as the function
 * may use, and loopback as the only interface. Once a function is loaded, its own limit is all of the memory.
 */
function installSystemFacts() {
  const { cpus, networkInterfaces, totalmem, freemem } = os;
  os.totalmem = () => worker.spec?.memory_bytes ?? totalmem();
  os.freemem = () => {
    const limit = worker.spec?.memory_bytes;
    return limit ? Math.max(0, limit - process.memoryUsage.rss()) : freemem();
  };
  const processor = () => ({ model: '', speed: 0, times: { user: 0, nice: 0, sys: 0, idle: 0, irq: 0 } });
  os.cpus = () => {
    const found = cpus();
    return found.length ? found : Array.from({ length: os.availableParallelism?.() ?? 1 }, processor);
  };
  os.networkInterfaces = () => {
    try { return networkInterfaces(); } catch {
      return { lo: [{ address: '127.0.0.1', netmask: '255.0.0.0', family: 'IPv4', mac: '00:00:00:00:00:00', internal: true, cidr: '127.0.0.1/8' }] };
    }
  };
  module.syncBuiltinESMExports();
}

/** A header block from checked or standard pairs. */
function headerBlock(pairs) {
  let block = '';
  for (const [name, value] of pairs) {
    if (!FRAMING.has(name)) block += `${name}\n${value}\n`;
  }
  if (block.length > HEADERS_MAX) throw new BadReply(`headers of ${block.length} bytes, at most 64 KiB are allowed`);
  return block;
}

// The worker -------------------------------------------------------------------------------------

class Worker {
  constructor(fd) {
    this.fd = fd;
    this.out = Buffer.allocUnsafeSlow(OUT_BYTES);
    this.outView = new DataView(this.out.buffer);
    this.used = 0;
    this.flushed = 0; // performance.now() of the last flush
    this.flushing = false;
    this.backlog = 0; // bytes the socket took into its own queue because the kernel's was full
    this.kept = null; // start of a frame that is not complete
    this.waiting = [];
    this.running = new Map(); // stream to Invocation
    this.incoming = new Map();
    this.outputs = new Map();
    this.background = 0;
    this.draining = false;
    this.spec = null;
    this.limit = CONCURRENCY;
    this.call = null;
    this.starting = false; // inside the loop of `end`
    this.now = null; // Invocation whose handler is on the stack
    this.storage = null; // AsyncLocalStorage once a line was written after an await
    this.flush = this.flush.bind(this);
    this.onFrame = this.onFrame.bind(this);
  }

  // Frames out

  reserve(bytes) {
    if (this.used + bytes > OUT_BYTES) this.flush();
  }
  header(size, kind, flags, stream) {
    const at = this.used;
    this.outView.setUint32(at, size, true);
    this.outView.setUint32(at + 4, kind | (flags << 8), true);
    this.outView.setUint32(at + 8, stream, true);
    this.used = at + HEADER_BYTES;
  }
  put(kind, flags, stream, payload) {
    this.reserve(HEADER_BYTES + payload.length);
    this.header(payload.length, kind, flags, stream);
    this.out.set(payload, this.used);
    this.used += payload.length;
    this.flushSoon();
  }
  putJson(kind, flags, stream, value) { this.put(kind, flags, stream, Buffer.from(JSON.stringify(value))); }

  /** RESULT, with `headers` and `body` (each string or Buffer), the latter as far as it is inline. */
  putResult(invocation, returnedMs, status, headers, body, streams = false) {
    const { stream } = invocation;
    // Room for the worst case of UTF-8; longer text is encoded first.
    if (typeof body === 'string' && body.length > INLINE_MAX / 3) body = Buffer.from(body);
    const text = typeof body === 'string';
    const inline = text ? null : body.length > INLINE_MAX ? body.subarray(0, INLINE_MAX) : body;
    const whole = !streams && (text || inline === body);
    this.reserve(HEADER_BYTES + 24 + headers.length + (text ? body.length * 3 : inline.length));
    const start = this.used;
    const view = this.outView;
    let at = start + HEADER_BYTES + 24;
    if (typeof headers !== 'string') this.out.set(headers, at);
    else if (headers.length) this.out.latin1Write(headers, at);
    at += headers.length;
    if (!text) {
      this.out.set(inline, at);
      at += inline.length;
    } else if (body.length < 24) {
      // A short ASCII text is quicker byte by byte than through a call into the runtime.
      let i = 0;
      for (; i < body.length; i++) {
        const code = body.charCodeAt(i);
        if (code > 127) break;
        this.out[at + i] = code;
      }
      at += i === body.length ? i : this.out.utf8Write(body, at);
    } else {
      at += this.out.utf8Write(body, at);
    }
    view.setUint32(start, at - start - HEADER_BYTES, true);
    view.setUint32(start + 4, Kind.RESULT | (whole ? END << 8 : 0), true);
    view.setUint32(start + 8, stream, true);
    const entered = invocation.enteredNs;
    const returned = CLOCK_OFFSET + returnedMs * 1e6;
    let high = Math.floor(entered / 2 ** 32);
    view.setUint32(start + 12, entered - high * 2 ** 32, true);
    view.setUint32(start + 16, high, true);
    high = Math.floor(returned / 2 ** 32);
    view.setUint32(start + 20, returned - high * 2 ** 32, true);
    view.setUint32(start + 24, high, true);
    view.setUint32(start + 28, status, true); // and two zero bytes
    view.setUint32(start + 32, headers.length, true);
    this.used = at;
    if (at > FLUSH_BYTES || returnedMs - this.flushed > FLUSH_MS) this.flush();
    else this.flushSoon();
    if (!whole) {
      invocation.output = new Output(this, invocation);
      if (!streams) invocation.output.push(body.subarray(INLINE_MAX), true);
    }
  }

  putError(invocation, error, returnedNs = 0) {
    if (invocation?.output) invocation.output.close();
    const kind = error instanceof Cancelled ? 'Cancelled' : error instanceof BadReply ? 'BadReply'
      : String(error?.name ?? error?.constructor?.name ?? typeof error);
    let message;
    try { message = String(error?.message ?? error); } catch { message = '(no text)'; }
    const plain = error instanceof Cancelled || error instanceof BadReply;
    this.putJson(Kind.ERROR, END, invocation?.stream ?? 0, {
      kind: kind.slice(0, 200), message: message.slice(0, 4096), trace: plain ? '' : trimmed(error),
      entered_ns: Math.floor(invocation?.enteredNs ?? 0), returned_ns: Math.floor(returnedNs),
    });
  }

  flushSoon() {
    if (this.flushing) return;
    this.flushing = true;
    // The check phase follows the reads of this turn and every promise they settled: one write
    // carries all of it, and nothing waits longer.
    setImmediate(this.flush);
  }

  flush() {
    this.flushing = false;
    this.flushed = performance.now();
    const length = this.used;
    if (!length) return;
    this.used = 0;
    let done = 0;
    if (!this.backlog) {
      try {
        done = fs.writeSync(this.fd, this.out, 0, length);
      } catch (error) {
        if (error.code !== 'EAGAIN') leave(1); // the engine is gone
      }
    }
    if (done === length) return;
    const rest = Buffer.from(this.out.subarray(done, length));
    this.backlog++;
    this.socket.write(rest, () => { this.backlog--; });
  }

  // Frames in

  onData(data, length) {
    if (this.kept) {
      data = Buffer.concat([this.kept, data.subarray(0, length)]);
      length = data.length;
      this.kept = null;
    } else {
      // Functions keep parts of it across awaits, the socket reuses its buffer.
      data = Buffer.from(data.subarray(0, length));
    }
    try {
      const used = splitFrames(data, length, this.onFrame);
      if (used < length) this.kept = data.subarray(used);
    } catch (error) {
      if (!(error instanceof ProtocolError)) throw error;
      fs.writeSync(2, `mote_shim: protocol violation: ${error.message}\n`);
      leave(65);
    }
  }

  onFrame(kind, flags, stream, data, start, end) {
    if (kind === Kind.INVOKE) {
      if (!this.call) throw new ProtocolError('INVOKE before READY');
      const invocation = new Invocation(stream, data, start, end);
      if (!flags) {
        invocation.incoming = new Incoming(this, stream, invocation.body);
        this.incoming.set(stream, invocation);
      }
      if (this.running.size < this.limit) this.start(invocation);
      else this.waiting.push(invocation);
      return;
    }
    switch (kind) {
      case Kind.BODY: {
        if (end - start > CHUNK_MAX) throw new ProtocolError('BODY chunk above 64 KiB');
        // Without an entry it crossed our END on its way: the stream is over for us.
        const { incoming } = this.incoming.get(stream) ?? {};
        if (flags) this.incoming.delete(stream);
        incoming?.add(data.subarray(start, end), flags === END);
        this.maybeLeave();
        return;
      }
      case Kind.CREDIT: {
        if (end - start !== 4) throw new ProtocolError('CREDIT is not 4 bytes');
        const output = this.outputs.get(stream);
        if (output) {
          output.window += data.readUInt32LE(start);
          output.pump();
          this.maybeLeave();
        }
        return;
      }
      case Kind.CANCEL: return this.cancel(stream);
      case Kind.DRAIN:
        this.draining = true;
        return this.maybeLeave();
      case Kind.LOAD:
        if (!this.spec) {
          this.spec = parseLoad(data.utf8Slice(start, end));
          this.load();
          return;
        }
    }
    throw new ProtocolError(`frame kind ${kind} is not for a worker now`);
  }

  cancel(stream) {
    const at = this.waiting.findIndex((one) => one.stream === stream);
    if (at >= 0) {
      const [invocation] = this.waiting.splice(at, 1);
      this.incoming.delete(stream);
      this.putError(invocation, new Cancelled('the caller is gone'));
      return this.maybeLeave();
    }
    const invocation = this.running.get(stream);
    if (invocation) {
      invocation.cancelled = true;
      invocation.controller?.abort();
      if (this.incoming.delete(stream)) {
        invocation.incoming.error = new Cancelled('the caller is gone');
        invocation.incoming.wake?.();
      }
      this.outputs.get(stream)?.wake?.();
      return;
    }
    const output = this.outputs.get(stream);
    if (output) {
      // The handler has returned; only bytes are left, and nobody wants them.
      this.putError(output.invocation, new Cancelled('the caller is gone'));
      this.maybeLeave();
    }
  }

  maybeLeave() {
    if (!this.draining || this.running.size || this.waiting.length || this.outputs.size || this.background) return;
    endLines(0);
    this.flush();
    if (this.backlog) this.socket.end(() => leave(0));
    else leave(0);
  }

  // Invocations

  start(invocation) {
    this.running.set(invocation.stream, invocation);
    invocation.enteredNs = nowNs();
    this.now = invocation;
    let value;
    try {
      value = this.storage ? this.storage.run(invocation, this.call, invocation) : this.call(invocation);
    } catch (error) {
      this.now = null;
      return this.fail(invocation, error);
    }
    this.now = null;
    if (typeof value === 'object' && value !== null && typeof value.then === 'function') {
      value.then((result) => this.resolved(invocation, result), (error) => this.fail(invocation, error));
    } else {
      this.answer(invocation, value);
    }
  }

  resolved(invocation, value) {
    const { next } = invocation;
    if (next === null) return this.answer(invocation, value);
    invocation.next = null;
    let answer;
    try { answer = next(value); } catch (error) { return this.fail(invocation, error); }
    if (typeof answer?.then !== 'function') return this.answer(invocation, answer);
    answer.then((result) => this.answer(invocation, result), (error) => this.fail(invocation, error));
  }

  end(invocation) {
    invocation.done = true;
    this.running.delete(invocation.stream);
    if (invocation.incoming) this.incoming.delete(invocation.stream);
    if (this.waiting.length && !this.starting) {
      // A loop and not a call from call: a synchronous handler ends inside `start`.
      this.starting = true;
      while (this.waiting.length && this.running.size < this.limit) this.start(this.waiting.shift());
      this.starting = false;
    }
    if (this.draining) this.maybeLeave();
  }

  fail(invocation, error) {
    endLines(invocation.stream);
    // A handler that stops because of its signal was cancelled, whatever it throws.
    const cause = invocation.cancelled ? new Cancelled('the caller is gone') : error;
    this.putError(invocation, cause, nowNs());
    this.end(invocation);
  }

  answer(invocation, value) {
    const returnedMs = performance.now();
    try {
      if (partials.size) endLines(invocation.stream);
      if (typeof value === 'string') {
        this.putResult(invocation, returnedMs, 200, TEXT, value);
      } else if (value instanceof Prepared) {
        this.putResult(invocation, returnedMs, value.status, value.block, value.body);
      } else if (LightResponse.is(value)) {
        if (!value.emit((status, headers, body) => this.putResult(invocation, returnedMs, status, headers, body))) {
          return void this.streamResponse(invocation, value.toReal());
        }
      } else if (value === undefined || value === null) {
        this.putResult(invocation, returnedMs, 204, '', '');
      } else if (value instanceof Uint8Array) {
        this.putResult(invocation, returnedMs, 200, BYTES, value);
      } else if (value instanceof ArrayBuffer) {
        this.putResult(invocation, returnedMs, 200, BYTES, new Uint8Array(value));
      } else if (value instanceof real.Response) {
        return void this.streamResponse(invocation, value);
      } else if (typeof value === 'function' || typeof value === 'symbol') {
        throw new BadReply(`cannot turn a ${typeof value} into an answer`);
      } else if (typeof value === 'object' && (value[Symbol.asyncIterator] || typeof value.next === 'function')) {
        return void this.streamOut(invocation, 200, BYTES, value);
      } else {
        let text;
        try { text = JSON.stringify(value); } catch (error) { throw new BadReply(`answer is not JSON: ${error.message}`); }
        if (text === undefined) throw new BadReply('answer is not JSON');
        this.putResult(invocation, returnedMs, 200, JSON_TYPE, text);
      }
    } catch (error) {
      return this.fail(invocation, error);
    }
    this.end(invocation);
  }

  async streamResponse(invocation, response) {
    let block;
    try {
      if (response.status < 200 || response.status > 599) throw new BadReply(`status ${response.status} is not 200 to 599`);
      if (response.bodyUsed || response.body?.locked) throw new BadReply('the body of the Response was already read');
      // What fetch() decoded is no longer encoded.
      const pairs = standardPairs(response.headers).filter(([name]) => !(response.url && name === 'content-encoding'));
      block = headerBlock(pairs);
    } catch (error) {
      return this.fail(invocation, error);
    }
    await this.streamOut(invocation, response.status, block, response.body ?? []);
  }

  /** Sends what an iterable yields. The first chunk is awaited before the head leaves, so one that
   *  fails at once is an error and not a torn answer. */
  async streamOut(invocation, status, headers, chunks) {
    try {
      for await (const chunk of iterable(chunks)) {
        let bytes = chunkBytes(chunk);
        if (!invocation.output) {
          this.putResult(invocation, performance.now(), status, headers, bytes.subarray(0, INLINE_MAX), true);
          bytes = bytes.subarray(INLINE_MAX);
        }
        invocation.output.push(bytes);
        await invocation.output.drained();
      }
      endLines(invocation.stream);
      if (invocation.output) invocation.output.push(Buffer.alloc(0), true);
      else this.putResult(invocation, performance.now(), status, headers, '');
    } catch (error) {
      return this.fail(invocation, error);
    }
    this.end(invocation);
  }

  // Loading

  async load() {
    const started = performance.now();
    try {
      const shape = await loadFunction(this);
      endLines(0);
      this.putJson(Kind.READY, 0, 0, {
        init_ns: Math.round((performance.now() - started) * 1e6), concurrency: this.limit, shape, whole_bodies: shape !== 'fetch',
      });
    } catch (error) {
      endLines(0);
      this.putError(null, error);
      this.flush();
      leave(1);
    }
  }
}

function iterable(chunks) {
  if (chunks[Symbol.asyncIterator] || chunks[Symbol.iterator]) return chunks;
  return { [Symbol.iterator]: () => chunks };
}

function chunkBytes(chunk) {
  if (typeof chunk === 'string') return Buffer.from(chunk);
  if (chunk instanceof Uint8Array) return chunk;
  if (chunk instanceof ArrayBuffer) return new Uint8Array(chunk);
  throw new BadReply(`a stream yields strings or bytes, not ${typeof chunk}`);
}

// The stack without the shim's own frames, then those of its causes: `fetch failed` says nothing, its
// cause does.
function trimmed(error) {
  const parts = [];
  try {
    if (!error?.stack) return '';
    for (let at = error; at !== undefined && at !== null && parts.length < CAUSES_MAX; at = at.cause) {
      parts.push(trimmedOne(at));
    }
  } catch { /* a getter of the function's that throws: what is there must do */ }
  return parts.join('\ncaused by ').slice(0, LINE_MAX);
}

function trimmedOne(error) {
  const lines = String(error.stack ?? error).split('\n')
    .filter((line) => !line.includes(import.meta.url) && !line.includes('node:internal'));
  // Several addresses were tried, for instance; the whole has no text of its own then.
  const errors = Array.isArray(error.errors) ? error.errors.slice(0, CAUSES_MAX) : [];
  return [...lines, ...errors.map((one) => `    of ${String(one?.stack ?? one).split('\n')[0]}`)].join('\n');
}

// Output of the function -------------------------------------------------------------------------

let worker = null;
let leaving = false; // the shim itself ends the process
const partials = new Map(); // "stream source" to the start of a line
let level = 2;

function currentInvocation() {
  if (!worker) return null;
  if (worker.now) return worker.now;
  const stored = worker.storage?.getStore();
  if (stored) return stored.done ? null : stored;
  if (!worker.storage && worker.running.size) {
    // Following promises costs every invocation; it begins with the first line that needs it.
    worker.storage = new AsyncLocalStorage();
  }
  // That first line: with one invocation running there is no doubt whose it is.
  return worker.running.size === 1 ? worker.running.values().next().value : null;
}

function writeLog(source, text) {
  const stream = currentInvocation()?.stream ?? 0;
  const key = `${stream} ${source}`;
  const lines = ((partials.get(key) ?? '') + text).split('\n');
  const rest = lines.pop();
  partials.delete(key);
  if (rest.length > LINE_MAX) lines.push(rest);
  else if (rest) partials.set(key, rest);
  for (const line of lines) putLog(stream, source, line);
}

function putLog(stream, source, line) {
  const bytes = Buffer.from(line);
  for (let start = 0; start === 0 || start < bytes.length; start += LINE_MAX) {
    worker.put(Kind.LOG, 0, stream, Buffer.concat([Buffer.of(source, level), bytes.subarray(start, start + LINE_MAX)]));
  }
  worker.flush(); // at once: a line must not wait for a slow handler or be lost in a crash
}

function endLines(stream) {
  for (const source of [1, 2]) {
    const key = `${stream} ${source}`;
    const rest = partials.get(key);
    if (rest !== undefined) {
      partials.delete(key);
      putLog(stream, source, rest);
    }
  }
}

class LineStream extends Writable {
  constructor(source) {
    super({ decodeStrings: false });
    this.fd = source;
    this.isTTY = false;
  }
  write(chunk, encoding, callback) {
    writeLog(this.fd, typeof chunk === 'string' ? chunk : Buffer.from(chunk).toString('utf8'));
    const done = typeof encoding === 'function' ? encoding : callback;
    if (done) process.nextTick(done);
    return true;
  }
}

/** Ends the process for a reason of the shim's own, of which the engine knows. */
function leave(code) {
  leaving = true;
  process.exit(code);
}

function captureOutput() {
  for (const [name, source] of [['stdout', 1], ['stderr', 2]]) {
    let stream;
    Object.defineProperty(process, name, { configurable: true, get: () => (stream ??= new LineStream(source)) });
  }
  for (const [name, number] of [['debug', 1], ['warn', 3], ['error', 4], ['trace', 4]]) {
    const plain = console[name];
    console[name] = (...args) => {
      level = number;
      try { plain(...args); } finally { level = 2; }
    };
  }
  process.on('unhandledRejection', (reason) => console.error('unhandled rejection:', reason));
  process.on('uncaughtException', (error) => {
    // The stack that threw is gone and with it whatever it was about to settle: nobody can say
    // which invocations will still answer, so all of them fail and a fresh worker takes over.
    console.error('uncaught exception:', error);
    for (const invocation of worker.running.values()) worker.putError(invocation, error, nowNs());
    worker.putError(null, error); // what was not begun may run elsewhere
    worker.running.clear();
    worker.flush();
    leave(1);
  });
  process.on('exit', (code) => {
    const error = Object.assign(new Error(`the function called process.exit(${code})`), { name: 'Exit' });
    for (const invocation of worker.running.values()) worker.putError(invocation, error, nowNs());
    if (worker.call && !leaving) worker.putError(null, error);
    worker.flush();
  });
}

// Loading ----------------------------------------------------------------------------------------

function parseLoad(text) {
  let spec;
  try { spec = JSON.parse(text); } catch (error) { throw new ProtocolError(`LOAD: ${error.message}`); }
  for (const name of ['function', 'revision', 'code_dir', 'entry']) {
    if (spec?.[name] === undefined) throw new ProtocolError(`LOAD without ${name}`);
  }
  return spec;
}

function findFile(directory, entry) {
  const [name, exported] = entry.split(':');
  for (const ending of ['', '.mjs', '.js', '.cjs', '.ts', '.mts', '.cts', '/index.mjs', '/index.js']) {
    const file = path.resolve(directory, name + ending);
    if (fs.statSync(file, { throwIfNoEntry: false })?.isFile()) return [fs.realpathSync.native(file), exported];
  }
  throw new Error(`no such file: ${entry}`);
}

/** Makes packages outside the code's own folder importable. */
function usePackages(directory) {
  const root = path.basename(directory) === 'node_modules' ? path.dirname(directory) : directory;
  process.env.NODE_PATH = [path.join(root, 'node_modules'), process.env.NODE_PATH].filter(Boolean).join(path.delimiter);
  module.Module._initPaths(); // the way `require` learns of NODE_PATH after the start
  const parent = pathToFileURL(path.join(root, 'from-packages.mjs')).href;
  const missing = (error, name) => error.code === 'ERR_MODULE_NOT_FOUND' && !/^[./]|^[a-z]+:/.test(name);
  if (module.registerHooks) {
    module.registerHooks({
      resolve(name, context, next) {
        try { return next(name, context); } catch (error) {
          if (!missing(error, name)) throw error;
          return next(name, { ...context, parentURL: parent });
        }
      },
    });
  } else if (module.register) {
    const source = `export async function resolve(name, context, next) {
      try { return await next(name, context); } catch (error) {
        if (error.code !== 'ERR_MODULE_NOT_FOUND' || /^[./]|^[a-z]+:/.test(name)) throw error;
        return next(name, { ...context, parentURL: ${JSON.stringify(parent)} });
      } }`;
    module.register(`data:text/javascript,${encodeURIComponent(source)}`);
  }
}

async function loadFunction(worker) {
  const { spec } = worker;
  Object.assign(process.env, spec.env ?? {});
  process.chdir(spec.code_dir);
  if (spec.packages_dir) usePackages(spec.packages_dir);
  const [file, exported] = findFile(spec.code_dir, spec.entry);
  if (/\.[mc]?ts$/.test(file) && !process.features.typescript) {
    throw new Error(`${spec.entry}: TypeScript needs Node 22.18 or newer (this is ${process.version}); compile it to JavaScript`);
  }
  if (spec.compat) return loadAdapted(worker, file, exported);
  const loaded = await import(pathToFileURL(file).href);
  const isCommonJs = module.Module._cache[file] !== undefined;
  const [shape, handler] = exported ? namedExport(loaded, exported, isCommonJs) : findHandler(loaded, isCommonJs);
  const init = loaded.init ?? loaded.default?.init;
  if (typeof init === 'function') await init(new Context(worker, null));
  worker.limit = spec.concurrency ?? CONCURRENCY;
  worker.call = shape === 'fetch' ? callWithRequest(worker, handler) : callWithEvent(worker, handler);
  return shape;
}

/** `fetch(request, ctx)`, or `fetch(request, env, ctx)` for a handler with three parameters. */
function callWithRequest(worker, handler) {
  if (handler.length >= 3) {
    return (invocation) => handler(new LightRequest(invocation), process.env, new Context(worker, invocation));
  }
  return (invocation) => handler(new LightRequest(invocation), new Context(worker, invocation));
}

function callWithEvent(worker, handler) {
  return (invocation) => (invocation.incoming
    ? invocation.incoming.all().then((body) => handler(new Event(invocation, body), new Context(worker, invocation)))
    : handler(new Event(invocation, invocation.body), new Context(worker, invocation)));
}

/** Loads a function written for another platform through its adapter. */
async function loadAdapted(worker, file, exported) {
  const { spec } = worker;
  const adapter = new URL(`./compat/${spec.compat}.mjs`, import.meta.url);
  if (!fs.existsSync(adapter)) throw new Error(`there is no adapter for ${spec.compat}`);
  let init = () => {};
  const { load } = await import(adapter.href);
  const handler = await load(file, exported, spec, (call) => { init = call; });
  await init();
  worker.limit = spec.concurrency ?? CONCURRENCY;
  worker.call = callWithEvent(worker, handler);
  return 'handle';
}

function namedExport(loaded, name, isCommonJs) {
  const value = loaded[name] ?? loaded.default?.[name];
  if (typeof value?.fetch === 'function') return ['fetch', value.fetch.bind(value)];
  if (typeof value !== 'function') throw new Error(`export ${name} is not a function`);
  return [name === 'fetch' || (name === 'default' && !isCommonJs) ? 'fetch' : 'handle', value];
}

const WEB_SOCKETS = /^(async\s*)?(function\s*[\w$]*\s*)?\(\s*ws\s*,\s*clients\s*\)/;

/** [shape, function] of what a module exports. */
function findHandler(loaded, isCommonJs) {
  const standard = loaded.default;
  if (typeof standard?.fetch === 'function') return ['fetch', standard.fetch.bind(standard)];
  if (typeof loaded.fetch === 'function') return ['fetch', loaded.fetch];
  for (const name of ['handle', 'handler']) {
    const value = loaded[name] ?? standard?.[name];
    if (typeof value === 'function') return ['handle', value];
  }
  if (typeof standard === 'function') {
    // A contract of Fission that cannot be served: better refused here than at each call.
    if (WEB_SOCKETS.test(Function.prototype.toString.call(standard))) throw new Error('functions of WebSockets, (ws, clients), are not offered');
    return [isCommonJs ? 'handle' : 'fetch', standard];
  }
  const others = Object.entries({ ...standard, ...loaded }).filter(([, value]) => typeof value === 'function').map(([name]) => name);
  const cure = others.length ? `; it exports ${others.slice(0, 4).join(', ')}: name one in mote.toml as entry = "FILE:EXPORT", with compat if it was written for another platform` : '';
  throw new Error(`the module exports none of: default { fetch }, default function, fetch, handle, handler${cure}`);
}

/**
 * Loads and calls a function of our own, for nobody, while the worker waits: what a first load and a
 * first call need is then compiled. Answers go to /dev/null.
 */
async function rehearse() {
  if (worker.spec) return;
  try {
    const nothing = fs.openSync('/dev/null', 'w');
    const stage = new Worker(nothing);
    const here = path.dirname(new URL(import.meta.url).pathname);
    const frame = Buffer.alloc(HEADER_BYTES + 44);
    frame.writeUInt32LE(44, 0);
    frame.set([Kind.INVOKE, END], 4);
    frame.writeUInt32LE(1, 8);
    frame.set([3, 1], HEADER_BYTES + 29); // lengths of method and path
    frame.write('GET/', HEADER_BYTES + 40);
    for (const entry of ['rehearsal.mjs', 'rehearsal.mjs:handle']) {
      stage.spec = parseLoad(JSON.stringify({ function: '', revision: 0, code_dir: here, entry, env: {} }));
      stage.putJson(Kind.READY, 0, 0, { init_ns: 0, concurrency: 0, shape: await loadFunction(stage) });
      for (let i = 0; i < REHEARSALS; i++) {
        stage.onData(frame, frame.length);
        await new Promise(setImmediate);
        await new Promise(setImmediate);
      }
    }
    fs.closeSync(nothing);
  } catch { /* the first function loads as it would without */ }
}

function main() {
  worker = new Worker(3);
  captureOutput();
  installWebClasses();
  installSystemFacts();
  const buffer = Buffer.allocUnsafeSlow(OUT_BYTES);
  worker.socket = new net.Socket({
    fd: 3, readable: true, writable: true,
    onread: { buffer, callback: (size, data) => { worker.onData(data, size); return true; } },
  });
  worker.socket.on('end', () => leave(0)); // the engine closed: nobody waits for answers
  worker.socket.on('close', () => leave(0));
  worker.socket.on('error', () => leave(1));
  const hello = Buffer.from(`\0\0node/${process.version.slice(1)}`);
  hello.writeUInt16LE(VERSION);
  worker.put(Kind.HELLO, 0, 0, hello);
  worker.flush();
  worker.socket.resume();
  setTimeout(rehearse, REHEARSE_MS).unref();
}

if (process.argv[1] && fs.realpathSync(process.argv[1]) === new URL(import.meta.url).pathname) main();
