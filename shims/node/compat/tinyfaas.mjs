// tinyFaaS: the package `fn` exports `(req, res)`; the body is text.
//
// The caller sees 200 and the body whatever the function set, as on that platform; with
// TINYFAAS_PASS_STATUS=1 in the environment its status and fields are passed on.

import { PLAIN, Reply, Request, exportsOf, functionOf, reply } from './http.mjs';

export async function load(file, exported) {
  const call = functionOf(await exportsOf(file), exported, file);
  const passes = process.env.TINYFAAS_PASS_STATUS === '1';
  return async (event) => {
    if (event.path !== '' && event.path !== '/') return reply(404, [], ''); // one address, nothing below it
    const response = new Reply();
    Promise.resolve(call(new Request(event, event.text()), response)).catch((error) => {
      console.error(error);
      response.status(500).type('text').send(String(error?.message ?? error));
    });
    const { status, pairs, body } = await response.finished;
    return passes ? reply(status, pairs, body) : reply(200, [['Content-Type', PLAIN]], body);
  };
}
