import type { Fetcher } from './mote.d.ts';

export default {
  fetch(request) {
    const name = new URL(request.url).searchParams.get('name') ?? 'world';
    return Response.json({ message: `Hello, ${name}!` });
  },
} satisfies Fetcher;
