// Nuclio: `exports.handler = (context, event)`, answered with context.callback, and
// `exports.initContext`.

import { format } from 'node:util';

import { exportsOf, functionOf, mediaType, reply } from './http.mjs';

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
  if (typeof module.initContext === 'function') init(() => module.initContext(shared));
  return (event) => new Promise((resolve, reject) => {
    // The callback is this call's own; everything else of the context is the instance's.
    const context = Object.assign(Object.create(shared), { callback: (value) => resolve(value) });
    Promise.resolve(handler(context, eventOf(event))).then((value) => {
      if (value !== undefined) resolve(value);
    }, reject);
  }).then(answer);
}

function eventOf(event) {
  let body = event.body;
  if (mediaType(event) === 'application/json' && body.length) body = event.json();
  return {
    body, content_type: event.headers['content-type'] ?? '', contentType: event.headers['content-type'] ?? '',
    trigger: { kind: event.trigger, name: `default-${event.trigger}` },
    fields: event.args, headers: { ...event.headers }, id: event.id, method: event.method, path: event.path,
    size: event.body.length, timestamp: new Date(), url: event.path + (event.query ? `?${event.query}` : ''),
    shard_id: 0, num_shards: 1, type: '', type_version: '', version: '', offset: 0, topic: '',
  };
}
