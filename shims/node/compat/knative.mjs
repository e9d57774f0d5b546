// Knative: `exports.handle = async (context, body)`, or with a CloudEvent in place of the body.
//
// `init`, `shutdown`, `liveness` and `readiness`, if exported as well, are called as on the
// platform. An undefined, null or empty result is answered with 204. An event in the answer is sent
// in binary mode.

import fs from 'node:fs';

import * as cloudevents from './cloudevents.mjs';
import { Reply, Request, exportsOf, mediaType, namedOrWhole, parameters, parsedBody, reply, showing } from './http.mjs';
import { Prepared, headOf, keptBlockOf, later } from '../mote_shim.mjs';

const DEFAULTS = {
  'content-type': 'application/json; charset=utf8',
  'access-control-allow-methods': 'OPTIONS, GET, DELETE, POST, PUT, HEAD, PATCH',
  'access-control-allow-origin': '*',
};
const PAIRS = Object.entries(DEFAULTS);
const TEXT = 'text/plain; charset=utf8';
const TEXT_PAIRS = PAIRS.map(([name, value]) => [name, name === 'content-type' ? TEXT : value]);
const TEXT_BLOCK = keptBlockOf(TEXT_PAIRS);
const JSON_BLOCK = keptBlockOf(PAIRS);
const SCOPE = Object.freeze({});
/** Whether an object without a body is answered without its `statusCode` and `headers`. */
let takesOut = false;

const print = (write) => (...words) => write(...words);
const log = {
  trace: print(console.debug), debug: print(console.debug), info: print(console.info),
  warn: print(console.warn), error: print(console.error), fatal: print(console.error),
  child() { return log; },
};

/** An answer to an event, filled by calls in a row. */
class EventResponse {
  #response;
  constructor(response) {
    this.#response = response;
    this.#response.headers = { ...response.headers };
  }
  #set(name, value) { this.#response.headers[`ce-${name}`] = value; return this; }
  version(value) { return this.#set('specversion', value); }
  id(value) { return this.#set('id', value); }
  type(value) { return this.#set('type', value); }
  source(value) { return this.#set('source', value); }
  response() { return this.#response; }
}

/** The context of a call. Parts are made when first used. */
class Context {
  #event;
  constructor(event, body, cloudevent) {
    this.#event = event;
    this.body = body;
    if (cloudevent) this.cloudevent = cloudevent;
  }
  get method() { return this.#event.method; }
  get headers() { return this.#keep('headers', { ...headOf(this.#event).fields }); }
  get query() { return this.#keep('query', parameters(this.#event.query)); }
  get path() { return this.#event.path; }
  get rawBody() { return this.#event.body; }
  get contentType() { return mediaType(this.#event); }
  get httpVersion() { return '1.1'; }
  get httpVersionMajor() { return 1; }
  get httpVersionMinor() { return 1; }
  get log() { return log; }
  cloudEventResponse(response) { return new EventResponse(response); }
  #keep(name, value) {
    Object.defineProperty(this, name, { value, writable: true, enumerable: true });
    return value;
  }
}

showing(Context, ['body', 'query', 'headers', 'method', 'httpVersion', 'httpVersionMajor', 'httpVersionMinor', 'contentType', 'rawBody']);

export async function load(file, exported, spec, init) {
  const module = await exportsOf(file);
  const call = namedOrWhole(module, exported ?? 'handle', file).bind(SCOPE);
  const needsEvent = spec.template === 'cloudevents';
  takesOut = asksForOld(spec.code_dir);
  if (typeof module.init === 'function') init(() => module.init());
  if (typeof module.shutdown === 'function') process.once('exit', () => module.shutdown());
  const health = new Map([
    [module.liveness?.path ?? process.env.LIVENESS_URL ?? '/health/liveness', module.liveness],
    [module.readiness?.path ?? process.env.READINESS_URL ?? '/health/readiness', module.readiness],
  ]);
  return (event) => {
    const { method, path, fields } = headOf(event);
    if (path.length > 1 && method === 'GET' && health.has(path)) return healthy(event, health.get(path));
    let context;
    let argument;
    try {
      if (cloudevents.isEvent(fields)) {
        argument = cloudevents.read(event);
        context = new Context(event, argument.data, argument);
      } else if (needsEvent) {
        return refused('this function takes CloudEvents');
      } else {
        argument = event.body.length ? parsedBody(event, 'application/octet-stream') : undefined;
        context = new Context(event, argument);
      }
    } catch (error) {
      return refused(error instanceof SyntaxError ? 'the body is not JSON' : error.message);
    }
    const value = call(context, argument);
    return typeof value?.then === 'function' ? later(event, value, answer) : answer(value);
  };
}

/** Whether a function was written for faas-js-runtime before 0.9.5, which took them out. */
function asksForOld(folder) {
  try {
    const { dependencies } = JSON.parse(fs.readFileSync(`${folder}/package.json`, 'utf8'));
    return /^[\^~=v\s]*0\.[0-8](\.|$)/.test(dependencies['faas-js-runtime']);
  } catch {
    return false; // it names no version
  }
}

const refused = (text) => reply(400, TEXT_PAIRS, text);

async function healthy(event, check) {
  if (typeof check !== 'function') return reply(200, [['content-type', TEXT]], 'OK');
  const response = new Reply();
  const returned = Promise.resolve(check(new Request(event), response)).then((value) => {
    if (!response.headersSent) response.type(TEXT).send(value === undefined ? 'OK' : value);
    return response.sent;
  });
  return response.sent ?? Promise.race([response.finished, returned]);
}

const isEventObject = (value) => value instanceof cloudevents.CloudEvent || value.constructor?.name === 'CloudEvent';

function answer(value) {
  if (!value) return reply(204, TEXT_PAIRS, '');
  if (typeof value === 'string') return new Prepared(200, TEXT_BLOCK, value);
  if (isEventObject(value)) {
    const [fields, body] = cloudevents.write(value);
    return reply(200, Object.entries({ ...DEFAULTS, ...fields }), body);
  }
  if (value instanceof Uint8Array || typeof value !== 'object') return whole(200, {}, value);
  if (!('statusCode' in value || 'headers' in value || 'body' in value) || Array.isArray(value)) {
    return new Prepared(200, JSON_BLOCK, JSON.stringify(value));
  }
  const status = Number(value.statusCode || 200);
  const headers = typeof value.headers === 'object' ? value.headers ?? {} : {};
  if (value.body !== undefined) return whole(status, headers, value.body);
  // An object without a body is itself the answer, with all its members, and is always sent as
  // JSON.
  if (takesOut) {
    value = { ...value };
    delete value.statusCode;
    delete value.headers;
  }
  return whole(status, { ...lowered(headers), 'content-type': DEFAULTS['content-type'] }, value);
}

const lowered = (headers) => Object.fromEntries(Object.entries(headers).map(([name, value]) => [name.toLowerCase(), value]));

function whole(status, headers, body) {
  const fields = { ...DEFAULTS };
  if (body instanceof Uint8Array) fields['content-type'] = 'application/octet-stream';
  else if (typeof body === 'string' || body === null) fields['content-type'] = TEXT;
  else body = JSON.stringify(body);
  Object.assign(fields, lowered(headers));
  const pairs = Object.entries(fields).flatMap(([name, value]) => [].concat(value).map((one) => [name, String(one)]));
  return reply(status, pairs, body ?? '');
}
