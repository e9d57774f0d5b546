// What a waiting Node worker loads and calls once before it is given a function; see `rehearse`.
export default {
  async fetch(request) {
    return new Response(request.method, { headers: { 'content-type': 'text/plain' } });
  },
};
