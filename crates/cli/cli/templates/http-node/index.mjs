/** @type {import('./mote.d.ts').Fetcher} */
export default {
  fetch(request) {
    const name = new URL(request.url).searchParams.get('name') ?? 'world';
    return Response.json({ message: `Hello, ${name}!` });
  },
};
