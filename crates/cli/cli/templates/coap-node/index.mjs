/**
 * @param {import('./mote.d.ts').Event} event
 * @param {import('./mote.d.ts').Context} ctx
 */
export async function handle(event, ctx) {
  if (event.method === 'PUT' || event.method === 'POST') {
    await ctx.kv.put('celsius', event.text());
    await ctx.notify('/', event.text()); // to the clients that observe this resource
    return null;
  }
  return String((await ctx.kv.get('celsius')) ?? 'unknown');
}
