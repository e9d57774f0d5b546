// Kubeless: `module.exports = { f: (event, context) }`; text, an object or a promise.

import { JSON_TYPE, PLAIN, Reply, Request, exportsOf, functionOf, mediaType, reply } from './http.mjs';

const CORS = [
  ['Access-Control-Allow-Origin', '*'],
  ['Access-Control-Allow-Methods', 'GET, POST, PUT, PATCH, DELETE, OPTIONS'],
  ['Access-Control-Allow-Headers', 'Content-Type, Authorization'],
];

export async function load(file, exported) {
  const call = functionOf(await exportsOf(file), exported, file);
  const context = {
    'function-name': process.env.FUNC_HANDLER ?? exported, timeout: process.env.FUNC_TIMEOUT ?? '180',
    runtime: process.env.FUNC_RUNTIME ?? 'nodejs', 'memory-limit': process.env.FUNC_MEMORY_LIMIT ?? '',
  };
  return async (event) => {
    if (event.method === 'OPTIONS') return reply(200, CORS, '');
    const json = mediaType(event) === 'application/json';
    const data = json ? (event.body.length ? event.json() : {}) : event.text();
    const response = new Reply();
    for (const [name, value] of CORS) response.set(name, value);
    const { headers } = event;
    const value = call({
      data, 'event-id': headers['event-id'], 'event-type': headers['event-type'], 'event-time': headers['event-time'],
      'event-namespace': headers['event-namespace'], extensions: { request: new Request(event, data), response },
    }, context);
    // A function may answer through extensions.response and never settle.
    const returned = Promise.resolve(value).then((result) => {
      if (response.headersSent) return response.finished;
      if (result instanceof Uint8Array) return response.send(result).finished;
      if (result !== null && typeof result === 'object') return response.type(JSON_TYPE).end(JSON.stringify(result)).finished;
      if (!response.getHeader('content-type')) response.type(PLAIN);
      return response.end(result === undefined ? '' : String(result)).finished;
    });
    const { status, pairs, body } = await Promise.race([returned, response.finished]);
    return reply(status, pairs, body);
  };
}
