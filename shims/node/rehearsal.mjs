// The function that a waiting Node worker loads and calls before it receives its own; see
// `rehearse`.
export default {
  async fetch(request) {
    return new Response(request.method, { headers: { 'content-type': 'text/plain' } });
  },
};

export function handle(event) {
  return { body: event.path };
}
