// Large bodies, never held whole: /consume says what it saw, /produce?bytes=N makes one, /echo
// sends back what arrives.
import { createHash } from 'node:crypto';

const CHUNK = Buffer.alloc(64 << 10, 'mote');

async function consume(body) {
  const hash = createHash('sha256');
  let bytes = 0;
  for await (const chunk of body) {
    bytes += chunk.length;
    hash.update(chunk);
  }
  return Response.json({ bytes, sha256: hash.digest('hex') });
}

function produce(bytes) {
  let left = bytes;
  return new Response(new ReadableStream({
    pull(controller) {
      const size = Math.min(left, CHUNK.length);
      left -= size;
      if (size) controller.enqueue(CHUNK.subarray(0, size));
      if (!left) controller.close();
    },
  }));
}

export default {
  fetch(request) {
    const { pathname, searchParams } = new URL(request.url);
    if (pathname === '/consume') return consume(request.body);
    if (pathname === '/produce') return produce(Number(searchParams.get('bytes')));
    return new Response(request.body);
  },
};
