// Kubeless: `module.exports = { f: (event, context) }`, or only that function. It returns text, an
// object or a promise.

import { Prepared, headOf, keptBlockOf } from '../mote_shim.mjs';
import { JSON_TYPE, PLAIN, Reply, Request, exportsOf, namedOrWhole, reply } from './http.mjs';

const CORS = [
  ['Access-Control-Allow-Origin', '*'],
  ['Access-Control-Allow-Methods', 'GET, POST, PUT, PATCH, DELETE, OPTIONS'],
  ['Access-Control-Allow-Headers', 'Content-Type, Authorization'],
];

const WITH_TEXT = keptBlockOf([...CORS, ['Content-Type', PLAIN]]);

/** Request and response, made when first used. */
class Extensions {
  #event;
  #data;
  #response = null;
  constructor(event, data) {
    this.#event = event;
    this.#data = data;
  }
  get request() {
    const data = this.#data;
    return new Request(this.#event, () => data);
  }
  get response() {
    if (!this.#response) {
      this.#response = new Reply();
      for (const [name, value] of CORS) this.#response.set(name, value);
    }
    return this.#response;
  }
  static touched(extensions) { return extensions.#response; }
}

export async function load(file, exported) {
  const call = namedOrWhole(await exportsOf(file), exported, file);
  const context = {
    'function-name': process.env.FUNC_HANDLER ?? exported, timeout: process.env.FUNC_TIMEOUT ?? '180',
    runtime: process.env.FUNC_RUNTIME ?? 'nodejs', 'memory-limit': process.env.FUNC_MEMORY_LIMIT ?? '',
  };
  return (event) => {
    const { method, fields, mediaType } = headOf(event);
    if (method === 'OPTIONS') return reply(200, CORS, '');
    const data = mediaType === 'application/json' ? (event.body.length ? event.json() : {}) : event.text();
    const extensions = new Extensions(event, data);
    const value = call({
      data, 'event-id': fields['event-id'], 'event-type': fields['event-type'], 'event-time': fields['event-time'],
      'event-namespace': fields['event-namespace'], extensions,
    }, context);
    if (typeof value === 'string' && !Extensions.touched(extensions)) return new Prepared(200, WITH_TEXT, value);
    return settled(value, extensions.response);
  };
}

function settled(value, response) {
  const returned = Promise.resolve(value).then((result) => {
    if (response.sent) return response.sent;
    // A stream that is piped into the response ends it.
    if (result === undefined && response.isAwaited) return response.finished;
    if (result instanceof Uint8Array) return response.send(result).sent;
    if (result !== null && typeof result === 'object') return response.type(JSON_TYPE).end(JSON.stringify(result)).sent;
    if (!response.getHeader('content-type')) response.type(PLAIN);
    return response.end(result === undefined ? '' : String(result)).sent;
  });
  // A function may answer through extensions.response, and its promise may never settle.
  return response.sent ?? Promise.race([returned, response.finished]);
}
