// The function to which the dialogues talk; `shapes.py` is its twin.

let release;
let released = new Promise((resolve) => { release = resolve; });

async function* stream() {
  yield 'a';
  yield Buffer.from('b');
}

export default {
  async fetch(request, env, ctx) {
    switch (new URL(request.url).pathname) {
      case '/hello': return 'mote';
      case '/kv': return ctx.kv.get('k');
      case '/kv-put': return String(await ctx.kv.shared('site').put('key', 'value', { ttl: 60, version: 5, durable: false }));
      case '/kv-increment': return String(await ctx.kv.increment('n', -2));
      case '/notify': return String(await ctx.notify('/t', '21.5', { maxAge: 60 }));
      case '/notify-ask': return ctx.notify('/t?unit=k').catch((error) => `${error.code} ${error.message}`);
      case '/call': {
        const reply = await ctx.call('other', 'body', { path: '/x', query: 'a=b', headers: { 'x-a': '1' }, timeout: 0.25 });
        return `${reply.status} ${reply.headers['x-b']} ${reply.text}`;
      }
      case '/publish':
        try {
          await ctx.publish('a/b', 'body', { qos: 2, retain: true, responseTopic: 'r', correlation: 'c', user: { k: 'v' } });
        } catch (error) {
          return `${error.code} ${error.message}`;
        }
        return 'published';
      case '/none': return undefined;
      case '/wait':
        await released;
        return 'waited';
      case '/release':
        release();
        released = new Promise((resolve) => { release = resolve; });
        return 'released';
      case '/big': return Buffer.alloc((64 + 320) * 1024, 'x');
      case '/echo': return new Response(await request.bytes(), {
        status: 201,
        headers: { 'content-type': request.headers.get('content-type') ?? 'none', 'X-Seen': request.headers.get('x-twice') },
      });
      case '/size': return String((await request.arrayBuffer()).byteLength);
      case '/fail': throw new RangeError('boom');
      case '/bad-header': return new Response('x', { headers: { 'x-bad': 'a\nb' } });
      case '/bad-status': return new Response('x', { status: 199 });
      case '/log':
        console.log('one');
        await null;
        process.stdout.write('two');
        return 'logged';
      case '/hang': return new Promise((_, reject) => {
        request.signal.addEventListener('abort', () => reject(request.signal.reason));
      });
      case '/stream': return stream();
      default: return new Response('no such path', { status: 404 });
    }
  },
};
