// Fission: `module.exports = async (context)`, or with a callback `(context, callback)`; the answer
// is `{ status, body, headers }`.

import { HTML, Reply, Request, exportsOf, functionOf, mediaType, parsedBody, typed } from './http.mjs';
import { Prepared, keptBlockOf, later } from '../mote_shim.mjs';

const bodyOf = (event) => parsedBody(event);

const HTML_BLOCK = keptBlockOf([['content-type', HTML]]);

/** The context of a call. Parts are made when first used. */
class Context {
  #event;
  #request = null;
  #response = null;
  constructor(event) { this.#event = event; }
  get request() { return (this.#request ??= new Request(this.#event, bodyOf)); }
  get response() { return (this.#response ??= new Reply()); }
  static touched(context) { return context.#response; }
}

export async function load(file, exported) {
  const call = functionOf(await exportsOf(file), exported, file);
  return (event) => {
    const context = new Context(event);
    if (event.body.length && mediaType(event) === 'application/json') {
      // As on the platform, the request is refused before the function is called, so the function
      // need not catch anything.
      try { context.request.body = bodyOf(event); } catch { return typed('Bad Request', HTML, 400); }
    }
    const value = call.length < 2 ? call(context) : new Promise((resolve, reject) => {
      const callback = (status, body, headers) => resolve({ status, body, headers });
      Promise.resolve(call(context, callback)).then((result) => { if (result !== undefined) resolve(result); }, reject);
    });
    return typeof value?.then === 'function' ? later(event, value, (result) => answer(context, result)) : answer(context, value);
  };
}

function answer(context, value) {
  const touched = Context.touched(context);
  if (touched?.sent) return touched.sent;
  if (!touched && typeof value?.body === 'string' && !value.headers && (value.status ?? 200) === 200) return new Prepared(200, HTML_BLOCK, value.body);
  const { response } = context;
  response.status(value?.status ?? 200).set(value?.headers ?? {}).send(value?.body);
  return response.sent ?? response.finished;
}
