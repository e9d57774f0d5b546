// OpenFaaS, templates node12 to node22: `async (event, context)` or `(event, context, callback)`; and
// the oldest, node: `(context, callback)`, where `context` is the body.

import fs from 'node:fs';

import { HTML, JSON_TYPE, exportsOf, functionOf, parameters, parsedBody, reply, showing, typed } from './http.mjs';
import { headOf } from '../mote_shim.mjs';

// The current folder in the platform's images, which have the code in its subfolder `function`.
const HOME = '/home/app';
const NO_FIELDS = Object.freeze({});
const HIDDEN = 'Internal Server Error';

/** The context of a call; the first call of `succeed` or `fail` gives the answer. */
class Context {
  #answer = null;
  #resolve = null;
  constructor() {
    this.statusCode = 200;
    this.headerValues = NO_FIELDS;
    this.cbCalled = 0;
  }
  status(code) {
    if (code === undefined) return this.statusCode;
    this.statusCode = code;
    return this;
  }
  headers(values) {
    if (values === undefined) return this.headerValues;
    this.headerValues = values;
    return this;
  }
  succeed(value) {
    this.cbCalled++;
    this.#settle(() => answer(this, value));
    return this;
  }
  fail(error) {
    const text = error === undefined || error === null ? HIDDEN : String(error);
    return this.#fail(error ?? new Error('the function failed'), text);
  }
  /** Handles what the function threw: the text of an exception is not meant for the caller. */
  static threw(context, error) {
    if (error !== undefined && error !== null && !(error instanceof Error)) return context.fail(error);
    return context.#fail(error ?? new Error('the function failed'), HIDDEN);
  }
  #fail(error, text) {
    this.cbCalled++;
    if (this.statusCode === 200) this.statusCode = 500;
    this.#settle(() => failure(this, error, text));
    return this;
  }
  #settle(answered) {
    if (this.#answer) return;
    try { this.#answer = answered(); } catch (bad) { this.#answer = Promise.reject(bad); }
    this.#resolve?.(this.#answer);
  }
  /** The answer, or a promise of it. */
  static outcome(context) {
    return context.#answer ?? new Promise((resolve) => { context.#resolve = resolve; });
  }
}

const size = (text) => {
  const found = /^(\d+)\s*(b|kb|mb)?$/i.exec(text ?? '');
  return found ? Number(found[1]) * { b: 1, kb: 1 << 10, mb: 1 << 20 }[(found[2] ?? 'b').toLowerCase()] : Infinity;
};

/** The request. Parts are made when first used. */
class Request {
  #event;
  #body;
  constructor(event, body) {
    this.#event = event;
    this.#body = body;
  }
  get body() { return (this.#body ??= parsedBody(this.#event)); }
  set body(value) { this.#keep('body', value); }
  get headers() { return this.#keep('headers', { ...headOf(this.#event).fields }); }
  get query() { return this.#keep('query', parameters(this.#event.query)); }
  get method() { return this.#event.method; }
  get path() { return this.#event.path; }
  #keep(name, value) {
    Object.defineProperty(this, name, { value, writable: true, enumerable: true });
    return value;
  }
}

showing(Request, ['body', 'headers', 'method', 'query', 'path']);

export async function load(file, exported, spec) {
  if (fs.existsSync(`${HOME}/function`)) process.chdir(HOME);
  const call = functionOf(await exportsOf(file), exported, file);
  if (spec.template === 'node' && parametersOf(call)[0] !== 'event') return classic(call);
  const raw = process.env.RAW_BODY === 'true';
  const limit = size(raw ? process.env.MAX_RAW_SIZE : process.env.MAX_JSON_SIZE);
  return (event) => {
    if (event.body.length > limit) return reply(413, [['Content-Type', HTML]], 'request entity too large');
    let body; // without one there is nothing to read yet
    try { body = raw ? event.body : event.body.length ? parsedBody(event) : undefined; } catch { return reply(400, [['Content-Type', HTML]], 'Bad Request'); }
    const context = new Context();
    const callback = (error, value) => (error ? context.fail(error) : context.succeed(value));
    let value;
    try { value = call(new Request(event, body), context, callback); } catch (error) { return Context.outcome(Context.threw(context, error)); }
    if (!context.cbCalled) {
      if (typeof value?.then === 'function') value.then((result) => returned(context, result), (error) => Context.threw(context, error));
      else returned(context, value);
    }
    return Context.outcome(context);
  };

  /** Older handlers return at once and call back later. */
  function returned(context, value) {
    if (!context.cbCalled && (value !== undefined || call.length < 3)) context.succeed(value);
  }
}

/** The names of a function's parameters, as far as its text shows them. */
function parametersOf(call) {
  const [, list] = /^(?:async\s+)?(?:function\s*[\w$]*\s*)?\(?([^)=]*)/.exec(String(call)) ?? [];
  return (list ?? '').split(',').map((name) => name.trim());
}

/** `(context, callback)`: what the callback or a promise gives is the answer, an error is status 500. */
function classic(call) {
  return async (event) => {
    const value = await new Promise((resolve, reject) => {
      const callback = (error, result) => (error ? reject(error instanceof Error ? error : new Error(String(error))) : resolve(result));
      const result = call(event.text(), callback);
      if (typeof result?.then === 'function') result.then(resolve, reject);
    });
    if (value === undefined || value === null) return '';
    return typeof value === 'string' || value instanceof Uint8Array ? value : reply(200, [['Content-Type', JSON_TYPE]], JSON.stringify(value));
  };
}

/** Status and fields that the function set, and what adds a type where it set none. */
function started(context) {
  const pairs = Object.entries(context.headerValues ?? {}).flatMap(([name, one]) => [].concat(one).map((text) => [name, String(text)]));
  const hasType = pairs.some(([name]) => name.toLowerCase() === 'content-type');
  const type = (kind) => { if (!hasType) pairs.push(['Content-Type', kind]); };
  return { status: Number(context.statusCode), pairs, type };
}

/** The answer after a failure: what the function passed to `fail` or the callback, an error too, is meant for the caller. */
function failure(context, error, text) {
  console.error(error);
  const { status, pairs, type } = started(context);
  type(HTML);
  return reply(status, pairs, text);
}

function answer(context, value) {
  if (typeof value === 'string' && context.statusCode === 200 && context.headerValues === NO_FIELDS) return typed(value, HTML);
  const { status, pairs, type } = started(context);
  if (value instanceof Uint8Array) {
    type('application/octet-stream');
    return reply(status, pairs, value);
  }
  if (value === context || value === undefined || value === null) return reply(status, pairs, '');
  if (typeof value === 'string') {
    type(HTML);
    return reply(status, pairs, value);
  }
  type(JSON_TYPE);
  return reply(status, pairs, JSON.stringify(value));
}
