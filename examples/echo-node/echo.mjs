// Answers with what it was sent; /inspect describes the request instead.
export default {
  async fetch(request, ctx) {
    const { pathname, search } = new URL(request.url);
    if (pathname === '/inspect') {
      return Response.json({
        method: request.method,
        path: pathname,
        query: search.slice(1),
        headers: Object.fromEntries(request.headers),
        trigger: ctx.trigger,
        id: ctx.id,
      });
    }
    return new Response(request.body, {
      headers: { 'content-type': request.headers.get('content-type') ?? 'application/octet-stream' },
    });
  },
};
