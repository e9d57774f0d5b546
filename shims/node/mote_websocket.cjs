'use strict';
// WebSockets of `fetch` handlers, in the form of Cloudflare's Workers: `new WebSocketPair()` makes two
// ends. The handler keeps one, accepts it, and returns the other in a Response with status 101.
//
// The node reads and writes the frames. The bodies of the invocation carry records, whose layout is in
// docs/reference/worker-protocol.md. The worker loads this file with the first pair.

const TEXT = 1;
const BINARY = 2;
const CLOSE = 8;
const MORE = 1;
const HEAD_BYTES = 8;
const REASON_MAX = 123;
const Code = { NORMAL: 1000, NONE: 1005, ABNORMAL: 1006, FAILED: 1011 };
const State = { CONNECTING: 0, OPEN: 1, CLOSING: 2, CLOSED: 3 };

const NOTHING = Buffer.alloc(0);

class SocketEvent extends Event {
  constructor(type, members) {
    super(type);
    Object.assign(this, members);
  }
}

function record(kind, content) {
  const data = Buffer.allocUnsafe(HEAD_BYTES + content.length);
  data.writeUInt32LE(kind, 0);
  data.writeUInt32LE(content.length, 4);
  data.set(content, HEAD_BYTES);
  return data;
}

function closeContent(code, reason) {
  const text = Buffer.from(reason);
  const content = Buffer.allocUnsafe(2 + text.length);
  content.writeUInt16BE(code);
  content.set(text, 2);
  return content;
}

/** The content of a message, as bytes. */
function bytesOf(data) {
  if (data instanceof Uint8Array) return data;
  if (data instanceof ArrayBuffer) return new Uint8Array(data);
  if (ArrayBuffer.isView(data)) return new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
  throw new TypeError('a message of a WebSocket is a string, an ArrayBuffer or a view of one');
}

/** The end that a handler keeps. It has the members of a standard WebSocket, and `accept`. */
class ServerSocket {
  static CONNECTING = State.CONNECTING;
  static OPEN = State.OPEN;
  static CLOSING = State.CLOSING;
  static CLOSED = State.CLOSED;
  #worker = null;
  #invocation = null;
  #state = State.CONNECTING;
  #accepted = false;
  #listeners = new Map(); // type to [listener, once]
  #data = []; // chunks that are not read yet
  #length = 0;
  #begun = NOTHING; // holds the parts of a message; a list would cost more per small part
  #begunLength = 0;
  #early = []; // records that were sent before the handler returned
  #isReading = false;
  onmessage = null;
  onclose = null;
  onerror = null;

  get readyState() { return this.#state; }
  get binaryType() { return 'arraybuffer'; }
  get bufferedAmount() {
    return (this.#invocation?.output?.queue ?? this.#early).reduce((sum, chunk) => sum + chunk.length, 0);
  }

  /** Messages arrive from now on. */
  accept() {
    this.#accepted = true;
    this.#read();
  }

  addEventListener(type, listener, options) {
    if (typeof listener !== 'function' && typeof listener?.handleEvent !== 'function') return;
    const known = this.#listeners.get(type) ?? [];
    if (!known.some(([one]) => one === listener)) known.push([listener, Boolean(options?.once)]);
    this.#listeners.set(type, known);
  }
  removeEventListener(type, listener) {
    this.#listeners.set(type, (this.#listeners.get(type) ?? []).filter(([one]) => one !== listener));
  }

  send(data) {
    if (this.#state === State.CLOSING || this.#state === State.CLOSED) throw new Error('the WebSocket is closed');
    const message = typeof data === 'string' ? record(TEXT, Buffer.from(data)) : record(BINARY, bytesOf(data));
    if (this.#invocation) this.#invocation.output.push(message);
    else this.#early.push(message);
  }

  close(code, reason = '') {
    if (code !== undefined && code !== Code.NORMAL && !(code >= 3000 && code <= 4999)) {
      throw new RangeError('a WebSocket is closed with the code 1000, or one from 3000 to 4999');
    }
    if (Buffer.byteLength(reason) > REASON_MAX) throw new RangeError('the reason has at most 123 bytes');
    this.#finish(code ?? Code.NORMAL, reason, true);
  }

  /** The handler has returned the other end. */
  open(worker, invocation) {
    if (this.#worker) throw new Error('the WebSocket was returned twice');
    this.#worker = worker;
    this.#invocation = invocation;
    for (const message of this.#early.splice(0)) invocation.output.push(message);
    if (this.#state === State.CLOSING) return this.#end();
    this.#state = State.OPEN;
    this.#read();
  }

  /** Sends a close record unless the connection is gone, and ends. */
  #finish(code, reason, isClean) {
    if (this.#state === State.CLOSING || this.#state === State.CLOSED) return;
    this.#state = State.CLOSING;
    const message = isClean ? record(CLOSE, code === Code.NONE ? Buffer.alloc(0) : closeContent(code, reason)) : null;
    this.closed = { code, reason, wasClean: isClean };
    if (message) (this.#invocation?.output ?? this.#early).push(message);
    if (this.#invocation) this.#end();
  }

  #end() {
    const worker = this.#worker;
    const invocation = this.#invocation;
    const { closed } = this;
    delete this.closed;
    // As in browsers, the event is dispatched as a separate task.
    setImmediate(() => {
      this.#state = State.CLOSED;
      if (!closed.wasClean) this.#dispatch('error', {});
      this.#dispatch('close', closed);
      if (invocation.done) return;
      if (invocation.cancelled) return worker.fail(invocation, new Error('cancelled'));
      invocation.output.push(Buffer.alloc(0), true);
      worker.end(invocation);
    });
  }

  async #read() {
    if (!this.#accepted || !this.#invocation || this.#isReading) return;
    this.#isReading = true;
    const { incoming } = this.#invocation;
    try {
      while (this.#state === State.OPEN) {
        const chunk = await incoming.next();
        if (chunk === null) break;
        this.#data.push(chunk);
        this.#length += chunk.length;
        while (this.#state === State.OPEN && this.#take());
      }
    } catch {
      // Nobody waits for the invocation any longer.
    }
    this.#finish(Code.ABNORMAL, '', false);
  }

  /** Reads a record if it is complete; returns whether it was. */
  #take() {
    if (this.#length < HEAD_BYTES) return false;
    if (this.#data[0].length < HEAD_BYTES) this.#data = [Buffer.concat(this.#data)];
    const [kind, flags] = this.#data[0];
    const end = HEAD_BYTES + this.#data[0].readUInt32LE(4);
    if (this.#length < end) return false;
    const all = this.#data.length === 1 ? this.#data[0] : Buffer.concat(this.#data);
    const content = all.subarray(HEAD_BYTES, end);
    this.#data = all.length > end ? [all.subarray(end)] : [];
    this.#length -= end;
    if (kind === CLOSE) {
      const code = content.length >= 2 ? content.readUInt16BE(0) : Code.NONE;
      this.#finish(code, content.toString('utf8', 2), code !== Code.ABNORMAL);
      return false;
    }
    const message = this.#join(content, flags & MORE);
    if (message === null) return true;
    const data = kind === TEXT ? message.toString('utf8')
      : message.buffer.slice(message.byteOffset, message.byteOffset + message.length);
    this.#dispatch('message', { data });
    return true;
  }

  /** The message that ends with this part, or null. */
  #join(part, more) {
    if (!more && this.#begunLength === 0) return part;
    const length = this.#begunLength + part.length;
    if (length > this.#begun.length) {
      const larger = Buffer.allocUnsafeSlow(Math.max(length, Math.min(2 * this.#begun.length, 1 << 30)));
      this.#begun.copy(larger, 0, 0, this.#begunLength);
      this.#begun = larger;
    }
    part.copy(this.#begun, this.#begunLength);
    this.#begunLength = length;
    if (more) return null;
    const message = this.#begun.subarray(0, length);
    this.#begun = NOTHING;
    this.#begunLength = 0;
    return message;
  }

  #dispatch(type, members) {
    const event = new SocketEvent(type, members);
    const listeners = [...this.#listeners.get(type) ?? []];
    const property = this[`on${type}`];
    if (typeof property === 'function') listeners.push([property, false]);
    for (const [listener, once] of listeners) {
      if (once) this.removeEventListener(type, listener);
      this.#call(listener, event);
    }
  }

  /** Calls a listener. If the listener throws, its WebSocket ends, but not the worker. */
  #call(listener, event) {
    const worker = this.#worker;
    const failed = (error) => {
      console.error(error);
      this.#finish(Code.FAILED, '', true);
    };
    const call = () => (typeof listener === 'function' ? listener.call(this, event) : listener.handleEvent(event));
    worker.now = this.#invocation;
    try {
      const result = worker.storage ? worker.storage.run(this.#invocation, call) : call();
      if (typeof result?.then === 'function') result.then(null, failed);
    } catch (error) {
      failed(error);
    }
    worker.now = null;
  }
}

/** The end that a handler returns. */
class ClientEnd {
  #server;
  constructor(server) { this.#server = server; }
  static serverOf(end) {
    if (typeof end !== 'object' || end === null || !(#server in end)) throw new TypeError('webSocket: one end of a WebSocketPair');
    return end.#server;
  }
}

/** `const [client, server] = Object.values(new WebSocketPair())`. */
class WebSocketPair {
  constructor() {
    this[1] = new ServerSocket();
    this[0] = new ClientEnd(this[1]);
  }
}

module.exports = { WebSocketPair, socketOf: (end) => ClientEnd.serverOf(end) };
