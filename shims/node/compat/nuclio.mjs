// Nuclio: `exports.handler = (context, event)`, answered with context.callback, and
// `exports.initContext`.

import { format } from 'node:util';

import { decodedPath, exportsOf, functionOf, reply, showing, typed } from './http.mjs';
import { headOf } from '../mote_shim.mjs';

class NuclioResponse {
  constructor(body, headers, contentType, statusCode) {
    this.body = body ?? '';
    this.headers = headers ?? {};
    this.content_type = contentType ?? 'text/plain';
    this.status_code = statusCode ?? 200;
  }
}

const write = (print) => (message, ...rest) => print(format(message, ...rest));
const logger = Object.fromEntries(Object.entries({ debug: console.debug, info: console.info, warn: console.warn, error: console.error })
  .flatMap(([level, print]) => [
    [level, write(print)],
    [`${level}With`, (message, fields) => print(`${message} ${JSON.stringify(fields ?? {})}`)],
  ]));

function answer(value) {
  if (typeof value === 'string') return typed(value, 'text/plain');
  let status = 200;
  let type = 'text/plain';
  let headers = {};
  if (Array.isArray(value) && value.length === 2 && typeof value[0] === 'number') [status, value] = value;
  const whole = value !== null && typeof value === 'object'
    && ('status_code' in value || 'statusCode' in value) && 'body' in value;
  if (value instanceof NuclioResponse || whole) {
    status = value.status_code ?? value.statusCode;
    type = value.content_type ?? value.contentType ?? type;
    headers = value.headers ?? {};
    value = value.body;
  }
  if (value === undefined || value === null) value = '';
  if (typeof value !== 'string' && !(value instanceof Uint8Array)) {
    value = JSON.stringify(value);
    type = 'application/json';
  }
  const pairs = Object.entries(headers).map(([name, one]) => [name, String(one)]);
  if (!pairs.some(([name]) => name.toLowerCase() === 'content-type')) pairs.push(['Content-Type', type]);
  return reply(Number(status), pairs, value);
}

export async function load(file, exported, spec, init) {
  const module = await exportsOf(file);
  const handler = functionOf(module, exported ?? 'handler', file);
  const shared = {
    userData: {}, user_data: {}, worker_id: 0, workerId: 0, logger, Response: NuclioResponse,
    trigger: { kind: 'http', name: 'default-http' }, trigger_name: 'default-http',
  };
  // The callback belongs to one call. Everything else in the context belongs to the instance,
  // including the members that initContext adds.
  class Context {
    constructor(callback) { this.callback = callback; }
  }
  Object.assign(Context.prototype, shared);
  if (typeof module.initContext === 'function') init(() => module.initContext(Context.prototype));
  return (event) => {
    let given;
    let resolve = null;
    const callback = (value) => {
      given ??= { value };
      resolve?.(value);
    };
    const returned = handler(new Context(callback), new Event(event));
    if (given) return answer(given.value);
    return new Promise((settle, reject) => {
      resolve = settle;
      Promise.resolve(returned).then((value) => { if (value !== undefined) settle(value); }, reject);
    }).then(answer);
  };
}

/** Header fields under the names that the platform's server writes, X-Forwarded-For, and found under
 * lower-case ones too. */
function titled(fields) {
  const found = Object.create(fields);
  for (const [name, value] of Object.entries(fields)) found[name.replace(/(^|-)[a-z]/g, (letters) => letters.toUpperCase())] = value;
  return found;
}

/** The platform's event. Parts are made when first used. Its body is bytes there, of JSON too. */
class Event {
  #event;
  constructor(event) { this.#event = event; }
  get body() { return this.#keep('body', this.#event.body); }
  get content_type() { return headOf(this.#event).fields['content-type'] ?? ''; }
  get contentType() { return this.content_type; }
  get trigger() { return this.#keep('trigger', { kind: this.#event.trigger, name: `default-${this.#event.trigger}` }); }
  get fields() { return this.#keep('fields', this.#event.args); }
  get headers() { return this.#keep('headers', titled({ ...headOf(this.#event).fields })); }
  get id() { return this.#event.id; }
  get method() { return this.#event.method; }
  get path() { return decodedPath(this.#event.path); }
  get size() { return this.#event.body.length; }
  get timestamp() { return this.#keep('timestamp', new Date()); }
  get url() { return this.#event.path + (this.#event.query ? `?${this.#event.query}` : ''); }
  #keep(name, value) {
    Object.defineProperty(this, name, { value, writable: true, enumerable: true });
    return value;
  }
}
showing(Event, ['body', 'content_type', 'trigger', 'fields', 'headers', 'id', 'method', 'path', 'size', 'timestamp', 'url']);
Object.assign(Event.prototype, { shard_id: 0, num_shards: 1, type: '', type_version: '', version: '', offset: 0, topic: '' });
