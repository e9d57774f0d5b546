// tinyFaaS: the package `fn` exports `(req, res)`. The body is text.
//
// As on that platform, the caller sees 200 and the body whatever the function has set. With
// TINYFAAS_PASS_STATUS=1 in the environment, the function's status and fields are passed on.

import { PLAIN, Reply, Request, exportsOf, functionOf, reply, typed } from './http.mjs';

const textOf = (event) => event.text();

export async function load(file, exported) {
  const call = functionOf(await exportsOf(file), exported, file);
  const passes = process.env.TINYFAAS_PASS_STATUS === '1';
  const answer = (sent) => (passes ? sent : typed(sent.body, PLAIN));
  return (event) => {
    const { path } = event;
    if (path !== '' && path !== '/') return reply(404, [], ''); // one address, nothing below it
    const response = new Reply();
    const failed = (error) => {
      console.error(error);
      response.status(500).type('text').send(String(error?.message ?? error));
    };
    try {
      const value = call(new Request(event, textOf), response);
      if (typeof value?.then === 'function') value.then(undefined, failed);
    } catch (error) {
      failed(error);
    }
    return response.sent ? answer(response.sent) : response.finished.then(answer);
  };
}
