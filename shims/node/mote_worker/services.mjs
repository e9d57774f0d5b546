// The requests of a function to its node: `ctx.kv`, `ctx.call`, `ctx.callAsync`, `ctx.notify` and
// `ctx.publish`.
//
// `Requests` sends REQUEST frames and settles a promise for each RESPONSE. `Kv` and `Calls` know
// what the requests mean.

import { headerBlock, headerPairs } from './headers.mjs';
import { Cancelled, Kind, NOTHING } from './wire.mjs';

const Service = { STATE: 1, FUNCTIONS: 2, NOTIFY: 3, PUBLISH: 4 };
const OFFERS = { functions: 'calls of functions', notify: 'notices to observers', publish: 'publishing' };
const Operation = { GET: 1, PUT: 2, DELETE: 3, LIST: 4, INCREMENT: 5, CALL: 1, ACCEPT: 2, PUBLISH: 1, ASK: 2 };
const Flag = { NOT_DURABLE: 1, CONDITION: 2, KEYS_ONLY: 4, QUERY: 1 };
const Status = { DONE: 0, NOT_FOUND: 1, CONFLICT: 2, CANCELLED: 7, FAILED: 8 };
const WORDS = { 3: 'full', 4: 'invalid', 5: 'denied', 6: 'unavailable', 8: 'failed' };
const UNDER_WAY_MAX = 256;
const REQUEST_BYTES_MAX = 4 << 20;
const CALL_BODY_MAX = 960 << 10;
const NOTICE_BODY_MAX = 256 << 10;

/** A request that the node did not do. `code` is a word: full, invalid, denied, unavailable, failed or
 *  conflict. A conflict has the `version` of the entry, a failed call the `status` that a caller over
 *  HTTP would get. */
class NodeError extends Error {
  constructor(code, message, more) {
    super(message);
    this.name = 'NodeError';
    this.code = code;
    Object.assign(this, more);
  }
}

/** The requests of one worker that are under way. */
export class Requests {
  constructor(worker) {
    this.worker = worker;
    this.nextId = 0;
    this.bytes = 0;
    this.waiting = new Map(); // id to { settle, invocation, size }
    this.queue = []; // of those that wait until fewer are under way
  }

  /** Sends the parts of a request, the first of which begins with room for its id. */
  ask(invocation, service, parts, read) {
    const { worker } = this;
    const announced = worker.spec.services ?? [];
    if (!announced.includes(service)) throw new Error(`this node offers no ${OFFERS[service] ?? service}`);
    const data = Buffer.concat(parts);
    this.nextId = (this.nextId + 1) >>> 0;
    data.writeUInt32LE(this.nextId, 0);
    return new Promise((resolve, reject) => {
      const settle = (status, payload) => {
        try {
          if (status === Status.CANCELLED) throw new Cancelled('the caller is gone');
          resolve(read(status, payload));
        } catch (error) {
          reject(error);
        }
      };
      this.queue.push({ id: this.nextId, data, settle, invocation });
      this.send();
    });
  }

  send() {
    while (this.queue.length) {
      const { id, data, settle, invocation } = this.queue[0];
      if (this.waiting.size >= UNDER_WAY_MAX || this.bytes + data.length > REQUEST_BYTES_MAX) return;
      this.queue.shift();
      this.waiting.set(id, { settle, invocation, size: data.length });
      this.bytes += data.length;
      // For the engine, an invocation whose answer was sent is over.
      this.worker.putLong(Kind.REQUEST, invocation && !invocation.done ? invocation.stream : 0, data);
    }
  }

  /** A RESPONSE frame. */
  file(payload) {
    const id = payload.readUInt32LE(0);
    const found = this.waiting.get(id);
    if (!found) return;
    this.waiting.delete(id);
    this.bytes -= found.size;
    this.send();
    found.settle(payload[4], payload);
  }

  /** The caller no longer waits for this invocation, so its requests end at once. */
  cancelled(invocation) {
    for (const one of this.waiting.values()) if (one.invocation === invocation) one.settle(Status.CANCELLED, NOTHING);
  }
}

const refused = (status, payload) => {
  throw new NodeError(WORDS[status] ?? 'unavailable', payload.toString('utf8', 8));
};
const versionOf = (payload) => Number(payload.readBigUInt64LE(8));
const written = (status, payload) => {
  if (status === Status.DONE) return versionOf(payload);
  if (status !== Status.CONFLICT) return refused(status, payload);
  const version = versionOf(payload);
  throw new NodeError('conflict', version ? `the entry has version ${version}` : 'there is no such entry', { version });
};
const milliseconds = (seconds) => (seconds === undefined || seconds === null ? 0 : Math.max(1, Math.round(seconds * 1000)));

/** The bytes of a value: text as UTF-8, everything else but bytes as JSON. */
function encoded(value) {
  if (typeof value === 'string') return Buffer.from(value);
  if (value instanceof Uint8Array) return value;
  if (value instanceof ArrayBuffer) return new Uint8Array(value);
  const text = JSON.stringify(value);
  if (text === undefined) throw new NodeError('invalid', 'a value is text, bytes or JSON');
  return Buffer.from(text);
}

/** A value of the state, with the version that a change can require. */
class Entry {
  constructor(key, value, version, expiresMs) {
    Object.assign(this, { key, value, version, expiresMs });
  }
  get text() { return this.value.toString('utf8'); }
  json() { return JSON.parse(this.value.toString('utf8')); }
}

/** The state of the function: keys and values that the node keeps. */
export class Kv {
  #requests;
  #invocation;
  #namespace;
  constructor(requests, invocation, namespace = NOTHING) {
    this.#requests = requests;
    this.#invocation = invocation;
    this.#namespace = namespace;
  }

  /** The shared namespace of this name, which the manifest must list in `[kv] shared`. */
  shared(name) { return new Kv(this.#requests, this.#invocation, Buffer.from(name)); }

  #ask(operation, key, read, { rest = NOTHING, flags = 0, limit = 0, number = 0n, ttlMs = 0, durable = true } = {}) {
    const name = Buffer.from(String(key));
    if (name.length > 0xffff || this.#namespace.length > 0xff || rest.length > 1000 << 10) {
      throw new NodeError('invalid', 'a key has at most 512 bytes, and a value at most 256 KiB');
    }
    const head = Buffer.alloc(32);
    head[4] = Service.STATE;
    head[5] = operation;
    head.writeUInt16LE(flags | (durable ? 0 : Flag.NOT_DURABLE), 6);
    head[8] = this.#namespace.length;
    head.writeUInt16LE(name.length, 10);
    head.writeUInt32LE(limit, 12);
    head.writeBigUInt64LE(BigInt.asUintN(64, number), 16);
    head.writeBigUInt64LE(BigInt(ttlMs), 24);
    return this.#requests.ask(this.#invocation, 'state', [head, this.#namespace, name, rest], read);
  }

  /** The value of a key as a Buffer; null if there is no entry. */
  async get(key) {
    return this.#ask(Operation.GET, key, (status, payload) => {
      if (status === Status.DONE) return Buffer.from(payload.subarray(24));
      return status === Status.NOT_FOUND ? null : refused(status, payload);
    });
  }

  /** The entry of a key, with its version; null if there is no entry. */
  async entry(key) {
    return this.#ask(Operation.GET, key, (status, payload) => {
      if (status === Status.NOT_FOUND) return null;
      if (status !== Status.DONE) return refused(status, payload);
      const expires = Number(payload.readBigUInt64LE(16));
      return new Entry(key, Buffer.from(payload.subarray(24)), versionOf(payload), expires || null);
    });
  }

  /** Writes a value; resolves to its version. With `ttl` it vanishes after so many seconds. With
   *  `version` the entry must have that version (0: there must be none), otherwise a conflict. */
  async put(key, value, { ttl, version, durable } = {}) {
    return this.#ask(Operation.PUT, key, written, {
      rest: encoded(value), flags: version === undefined ? 0 : Flag.CONDITION, number: BigInt(version ?? 0), ttlMs: milliseconds(ttl), durable,
    });
  }

  /** Removes a key; resolves to whether the key existed. */
  async delete(key, { version, durable } = {}) {
    const read = (status, payload) => {
      if (status === Status.NOT_FOUND) return false;
      if (status === Status.DONE) return true;
      return written(status, payload);
    };
    return this.#ask(Operation.DELETE, key, read, { flags: version === undefined ? 0 : Flag.CONDITION, number: BigInt(version ?? 0), durable });
  }

  /** The entries whose keys begin with `prefix`, in the order of their keys, after the key `after`: an
   *  array of at most 1,000 entries and about 512 KiB. Its `after` continues it; null at the end. */
  async list(prefix = '', { limit = 0, after = '', values = true } = {}) {
    return this.#ask(Operation.LIST, prefix, (status, payload) => {
      if (status !== Status.DONE) return refused(status, payload);
      const found = [];
      let at = 16;
      for (let left = payload.readUInt32LE(12); left > 0; left--) {
        const version = Number(payload.readBigUInt64LE(at));
        const valueAt = at + 16 + payload.readUInt32LE(at + 12);
        const end = valueAt + payload.readUInt32LE(at + 8);
        found.push(new Entry(payload.toString('utf8', at + 16, valueAt), Buffer.from(payload.subarray(valueAt, end)), version, null));
        at = end;
      }
      found.after = payload[8] ? found.at(-1).key : null;
      return found;
    }, { rest: Buffer.from(after ?? ''), flags: values ? 0 : Flag.KEYS_ONLY, limit });
  }

  /** Adds to a whole number, which is 0 without an entry; resolves to the sum, a bigint where a number
   *  would not be exact. */
  async increment(key, by = 1, { ttl, durable } = {}) {
    return this.#ask(Operation.INCREMENT, key, (status, payload) => {
      if (status !== Status.DONE) return refused(status, payload);
      const sum = payload.readBigInt64LE(16);
      return Number.isSafeInteger(Number(sum)) ? Number(sum) : sum;
    }, { number: BigInt(by), ttlMs: milliseconds(ttl), durable });
  }
}

/** The answer of a called function. */
class Reply {
  constructor(status, headers, body) {
    Object.assign(this, { status, headers, body });
  }
  get ok() { return this.status < 400; }
  get text() { return this.body.toString('utf8'); }
  json() { return JSON.parse(this.body.toString('utf8')); }
}

function notCalled(status, payload) {
  if (status !== Status.FAILED) return refused(status, payload);
  throw new NodeError('failed', payload.toString('utf8', 10), { status: payload.readUInt16LE(8) });
}

function answered(status, payload) {
  if (status !== Status.DONE) return notCalled(status, payload);
  const end = 16 + payload.readUInt32LE(12);
  const headers = Object.create(null);
  const parts = payload.latin1Slice(16, end).split('\n');
  for (let i = 0; i + 1 < parts.length; i += 2) {
    headers[parts[i]] = parts[i] in headers ? `${headers[parts[i]]}, ${parts[i + 1]}` : parts[i + 1];
  }
  return new Reply(payload.readUInt16LE(8), headers, Buffer.from(payload.subarray(end)));
}

const acceptedId = (status, payload) => (status === Status.DONE ? payload.toString('utf8', 8) : notCalled(status, payload));

function typeOf(body) {
  if (typeof body === 'string') return 'text/plain; charset=utf-8';
  return body instanceof Uint8Array || body instanceof ArrayBuffer ? 'application/octet-stream' : 'application/json';
}

/** Sends a call of another function; resolves to its answer or, with `later`, to its id. */
export async function callFunction(requests, invocation, name, body, options = {}, later = false) {
  const { method = 'POST', path = '/', query = '', headers, timeout, delay, key = '', order = '' } = options;
  const pairs = headerPairs(headers) ?? [];
  const none = body === undefined || body === null;
  if (!none && !pairs.some(([field]) => field === 'content-type')) pairs.unshift(['content-type', typeOf(body)]);
  const content = none ? NOTHING : encoded(body);
  if (content.length > CALL_BODY_MAX) throw new NodeError('invalid', 'the body of a call has at most 960 KiB');
  const block = Buffer.from(headerBlock(pairs), 'latin1');
  const parts = [name, method, path, query, key, order].map((text) => Buffer.from(String(text)));
  if (parts.some((part) => part.length > 8 << 10) || parts[0].length > 0xff || parts[1].length > 0xff) {
    throw new NodeError('invalid', 'the name, the path or another part of the call is too long');
  }
  const head = Buffer.alloc(40);
  head[4] = Service.FUNCTIONS;
  head[5] = later ? Operation.ACCEPT : Operation.CALL;
  head.writeUInt32LE(later ? 0 : Math.min(milliseconds(timeout), 0xffffffff), 8);
  head[12] = parts[0].length;
  head[13] = parts[1].length;
  head.writeUInt16LE(parts[2].length, 14);
  head.writeUInt16LE(parts[3].length, 16);
  head.writeUInt16LE(parts[4].length, 18);
  head.writeUInt32LE(block.length, 20);
  head.writeBigUInt64LE(BigInt(later && delay ? milliseconds(delay) : 0), 24);
  head.writeUInt16LE(parts[5].length, 32);
  return requests.ask(invocation, 'functions', [head, ...parts, block, content], later ? acceptedId : answered);
}

/** Publishes the state of a resource; resolves to the number of its observers. */
export async function notifyObservers(requests, invocation, path, body, { contentType, maxAge, headers } = {}) {
  const pairs = headerPairs(headers) ?? [];
  const none = body === undefined || body === null;
  if (contentType !== undefined) pairs.unshift(['content-type', contentType]);
  else if (!none && !pairs.some(([field]) => field === 'content-type')) pairs.unshift(['content-type', typeOf(body)]);
  if (maxAge !== undefined) pairs.push(['cache-control', `max-age=${Math.round(maxAge)}`]);
  const content = none ? NOTHING : encoded(body);
  if (content.length > NOTICE_BODY_MAX) throw new NodeError('invalid', 'the body of a notice has at most 256 KiB');
  const at = path.indexOf('?');
  const parts = [at < 0 ? path : path.slice(0, at), at < 0 ? '' : path.slice(at + 1)].map((text) => Buffer.from(text));
  if (parts.some((part) => part.length > 8 << 10)) throw new NodeError('invalid', 'the path of a notice is too long');
  const block = Buffer.from(headerBlock(pairs), 'latin1');
  const head = Buffer.alloc(16);
  head[4] = Service.NOTIFY;
  head[5] = none ? Operation.ASK : Operation.PUBLISH;
  head.writeUInt16LE(at < 0 ? 0 : Flag.QUERY, 6);
  head.writeUInt16LE(parts[0].length, 8);
  head.writeUInt16LE(parts[1].length, 10);
  head.writeUInt32LE(block.length, 12);
  const read = (status, payload) => (status === Status.DONE ? payload.readUInt32LE(8) : refused(status, payload));
  return requests.ask(invocation, 'notify', [head, ...parts, block, content], read);
}

/** Publishes a message at the function's MQTT broker; settles once the broker has received it. */
export async function publishMessage(requests, invocation, topic, body, options = {}) {
  const { qos = 1, retain = false, responseTopic = '', correlation = NOTHING, user = [] } = options;
  const none = body === undefined || body === null;
  const isBytes = body instanceof Uint8Array || body instanceof ArrayBuffer;
  const kind = options.contentType ?? (none || isBytes ? '' : typeOf(body));
  const content = none ? NOTHING : encoded(body);
  const pairs = user[Symbol.iterator] ? [...user] : Object.entries(user);
  if (pairs.flat().some((text) => String(text).includes('\n'))) throw new NodeError('invalid', 'a user property holds a line break');
  const block = pairs.map(([name, value]) => `${name}\n${value}\n`).join('');
  const parts = [topic, kind, responseTopic].map((text) => Buffer.from(String(text)));
  parts.push(encoded(correlation), Buffer.from(block));
  if (parts.some((part) => part.length > 0xffff) || content.length > CALL_BODY_MAX) {
    throw new NodeError('invalid', 'a message has at most 960 KiB, and its topic and properties a few KiB');
  }
  if (![0, 1, 2].includes(qos)) throw new NodeError('invalid', 'the QoS is 0, 1 or 2');
  const head = Buffer.alloc(24);
  head[4] = Service.PUBLISH;
  head[5] = Operation.PUBLISH;
  head[8] = qos;
  head[9] = retain ? 1 : 0;
  parts.forEach((part, at) => head.writeUInt16LE(part.length, 10 + 2 * at));
  return requests.ask(invocation, 'publish', [head, ...parts, content], (status, payload) => {
    if (status !== Status.DONE) refused(status, payload);
  });
}
