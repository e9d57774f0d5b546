// Fission: `module.exports = async (context)`, or with a callback `(context, callback)`; the answer
// is `{ status, body, headers }`.

import { Reply, Request, exportsOf, functionOf, parsedBody, reply } from './http.mjs';

export async function load(file, exported) {
  const call = functionOf(await exportsOf(file), exported, file);
  return async (event) => {
    const context = { request: new Request(event, parsedBody(event)), response: new Reply() };
    const value = await new Promise((resolve, reject) => {
      const callback = (status, body, headers) => resolve({ status, body, headers });
      Promise.resolve(call(context, callback)).then((result) => {
        if (result !== undefined || call.length < 2) resolve(result);
      }, reject);
    });
    if (context.response.headersSent) {
      const { status, pairs, body } = await context.response.finished;
      return reply(status, pairs, body);
    }
    const { response } = context;
    response.status(value?.status ?? 200).set(value?.headers ?? {}).send(value?.body);
    const { status, pairs, body } = await response.finished;
    return reply(status, pairs, body);
  };
}
