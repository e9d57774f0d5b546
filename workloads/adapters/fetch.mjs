// A workload in JavaScript as a handler of fetch events, which Deno, Bun and workerd serve alike.
import { run } from './workload.mjs';

const environment = globalThis.process?.env ?? {};

export default {
  // Only Bun reads these two.
  port: Number(environment.PORT || 0),
  hostname: '127.0.0.1',
  async fetch(request) {
    const query = Object.fromEntries(new URL(request.url).searchParams);
    const { text } = await run(query, environment);
    return new Response(text, { headers: { 'content-type': 'text/plain' } });
  },
};
