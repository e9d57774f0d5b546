// The classes of the Fetch standard that a function sees: `Request` and `Response`.
//
// Constructing the platform's own Request and Response costs several microseconds each, more than
// everything else in the shim together. A function therefore sees light objects that keep the
// content of the frame. They become real objects only if the function uses a part that needs this.
// This part does not know the connection: `LightResponse.emit` hands the parts of an answer to its
// caller.

import { headerBlock, headerPairs, standardPairs } from './headers.mjs';
import { isLoaded, real, whenLoaded } from './platform.mjs';
import { LightHeaders } from './web_headers.mjs';
import { BadReply, JSON_TYPE, WEB_TEXT, WEB_TEXT_BYTES } from './wire.mjs';

/** Behaves like a standard Request; holds only the invocation until something needs more. */
export class LightRequest {
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
    return (this.#headers ??= new LightHeaders(this.#invocation.pairs()));
  }
  get signal() { return this.#invocation.signal; }
  get bodyUsed() { return this.#real ? this.#real.bodyUsed : this.#used || (this.#stream?.locked ?? false); }
  get body() {
    if (this.#real) return this.#real.body;
    const invocation = this.#invocation;
    const incoming = this.#incoming;
    if (!incoming && invocation.headersEnd === invocation.end) return null;
    return (this.#stream ??= new ReadableStream({
      type: 'bytes',
      async pull(controller) {
        const chunk = incoming ? await incoming.next() : invocation.body;
        if (chunk === null) {
          controller.close();
          controller.byobRequest?.respond(0);
          return;
        }
        controller.enqueue(new Uint8Array(chunk));
        if (!incoming) controller.close();
      },
    }, { highWaterMark: 0 }));
  }
  /** The body that arrives; the messages of a WebSocket are not a body. */
  get #incoming() { return this.#invocation.asksSocket ? null : this.#invocation.incoming; }
  /** All bytes of the body, once. */
  async #bytes() {
    if (this.bodyUsed) throw new TypeError('Body is unusable: Body has already been read');
    if (this.#stream) return Buffer.from(await new real.Response(this.#stream).arrayBuffer());
    this.#used = true;
    return this.#incoming ? this.#incoming.all() : this.#invocation.body;
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
    if (this.#real || this.#stream || this.#incoming) return this.toReal().clone();
    const copy = new LightRequest(this.#invocation);
    if (this.#headers) copy.#headers = new LightHeaders(this.#headers);
    return copy;
  }
  /** The same request as an object of the platform; from then on it holds the body. */
  toReal() {
    if (!this.#real) {
      const bodiless = this.method === 'GET' || this.method === 'HEAD';
      const init = { method: this.method, headers: [...this.headers], signal: this.signal };
      if (!bodiless && !this.#used) {
        const body = this.body;
        if (body) Object.assign(init, { body, duplex: 'half' });
      }
      this.#real = new real.Request(this.url, init);
    }
    return this.#real;
  }
}

/** Whether `value` inherits from the platform's class. */
function inheritsFrom(standard, value) { return Function.prototype[Symbol.hasInstance].call(standard, value); }

/** The class that a function knows as `Request`. */
function requestClass() {
  const Platform = real.Request;
  return class Request extends Platform {
    constructor(input, init) { super(LightRequest.is(input) ? input.toReal() : input, init); }
    static [Symbol.hasInstance](value) { return inheritsFrom(Platform, value); }
  };
}

const FORM = 'content-type\napplication/x-www-form-urlencoded;charset=UTF-8\n';
const UNREADABLE = 'a Response with a WebSocket has no body, and its fields cannot be read';

/** A Response that costs nothing until something besides its body and status is used. */
export class LightResponse {
  #body; // string, Buffer or null
  #type; // header block that goes with the body
  #pairs = null;
  #status = 200;
  #statusText = '';
  #headers = null;
  #real = null;
  #socket = null; // one end of a WebSocketPair, with status 101

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
    } else if (body instanceof URLSearchParams) {
      this.#body = `${body}`;
      this.#type = FORM;
    } else {
      this.#real = new real.Response(body, LightResponse.is(init) ? init.toReal() : init);
      this.#body = undefined;
      return;
    }
    if (init !== undefined && init !== null) {
      if (init.status !== undefined) {
        this.#status = init.status | 0;
        this.#socket = this.#status === 101 ? init.webSocket ?? null : null;
        if ((this.#status < 200 && this.#socket === null) || this.#status > 599) {
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
  static [Symbol.hasInstance](value) { return isLoaded() ? inheritsFrom(real.Response, value) : LightResponse.is(value); }
  static json(data, init) {
    const text = JSON.stringify(data);
    if (text === undefined) throw new TypeError('Value is not JSON serializable');
    const response = new LightResponse(text, init);
    response.#type = JSON_TYPE;
    return response;
  }
  static redirect(url, status) { return real.Response.redirect(url, status); }
  static error() { return real.Response.error(); }

  get webSocket() { return this.#socket; }
  get status() { return this.#real ? this.#real.status : this.#status; }
  get statusText() { return this.#real ? this.#real.statusText : this.#statusText; }
  get ok() { return this.status >= 200 && this.status <= 299; }
  get type() { return 'default'; }
  get url() { return ''; }
  get redirected() { return false; }
  get headers() {
    if (this.#real && !this.#headers) return this.#real.headers;
    return (this.#headers ??= new LightHeaders(this.#fields()));
  }
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
    if (this.#socket) throw new TypeError(UNREADABLE);
    if (!this.#real) {
      const headers = [...(this.#headers ?? this.#fields())];
      this.#real = new real.Response(this.#body, { status: this.#status, statusText: this.#statusText, headers });
    }
    if (this.#headers) {
      // The function may have changed the headers since then.
      const { headers } = this.#real;
      for (const name of [...headers.keys()]) headers.delete(name);
      for (const [name, value] of this.#headers) headers.append(name, value);
    }
    return this.#real;
  }
  /** [name, value] pairs, with the one of the body's type. */
  #fields() {
    if (this.#socket) throw new TypeError(UNREADABLE);
    const pairs = this.#pairs ?? [];
    if (!this.#type || pairs.some(([name]) => name === 'content-type')) return pairs;
    return [...pairs, ['content-type', this.#type.split('\n')[1]]];
  }
  /** The header block of an answer that accepts a WebSocket. */
  socketBlock() { return headerBlock(this.#pairs ?? []); }
  /** Hands the parts to `put(status, headerBlock, body)`, or returns false for a body that streams. */
  emit(put) {
    if (this.#body === undefined) return false;
    if (this.#real) {
      if (this.#real.bodyUsed || this.#real.body?.locked) throw new BadReply('the body of the Response was already read');
      put(this.#real.status, headerBlock(standardPairs(this.headers)), this.#body ?? '');
    } else if (this.#headers !== null) {
      put(this.#status, headerBlock(this.#headers), this.#body ?? '');
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

/** The properties of a Request that the light one does not define itself. */
const OF_REQUESTS = [
  'destination', 'referrer', 'referrerPolicy', 'mode', 'credentials', 'cache', 'redirect', 'integrity', 'keepalive',
  'isReloadNavigation', 'isHistoryNavigation', 'duplex',
];

function askReal(light, name) {
  Object.defineProperty(light.prototype, name, { configurable: true, get() { return this.toReal()[name]; } });
}

/** Makes the light objects instances of the platform's class. Whatever it has besides is asked of the real object. */
function completeFrom(light, standard) {
  for (const name of Object.getOwnPropertyNames(standard.prototype)) {
    if (name in light.prototype) continue;
    const { value } = Object.getOwnPropertyDescriptor(standard.prototype, name);
    if (typeof value !== 'function') {
      askReal(light, name);
      continue;
    }
    Object.defineProperty(light.prototype, name, {
      configurable: true, writable: true, value(...args) { return this.toReal()[name](...args); },
    });
  }
  Object.setPrototypeOf(light.prototype, standard.prototype);
}

/** `loadSockets` loads what few functions use. */
export function installWebClasses(loadSockets) {
  for (const name of OF_REQUESTS) askReal(LightRequest, name);
  for (const [light, name] of [[LightRequest, 'Request'], [LightResponse, 'Response']]) {
    Object.defineProperty(light.prototype, Symbol.toStringTag, { value: name, configurable: true });
  }
  whenLoaded(({ Request, Response, Headers }) => {
    completeFrom(LightRequest, Request);
    completeFrom(LightResponse, Response);
    completeFrom(LightHeaders, Headers);
  });
  Object.defineProperty(LightResponse, 'name', { value: 'Response' });
  const define = (name, value) => Object.defineProperty(globalThis, name, { value, writable: true, configurable: true });
  const defineLate = (name, make) => Object.defineProperty(globalThis, name, {
    configurable: true,
    get: () => {
      const value = make();
      define(name, value);
      return value;
    },
    set: (value) => define(name, value),
  });
  define('Response', LightResponse);
  defineLate('Request', requestClass);
  defineLate('Headers', () => real.Headers);
  defineLate('WebSocketPair', () => loadSockets().WebSocketPair);
  define('fetch', (input, init) => real.fetch(LightRequest.is(input) ? input.toReal() : input, init));
}
