// Tests how WebSocket messages are assembled from records.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import v8 from 'node:v8';
import vm from 'node:vm';

import sockets from './mote_websocket.cjs';

const { WebSocketPair, socketOf } = sockets;

v8.setFlagsFromString('--expose-gc');
const collect = vm.runInNewContext('gc');

const [TEXT, BINARY, CLOSE, MORE] = [1, 2, 8, 1];

function record(kind, flags, content) {
  const head = Buffer.alloc(8);
  head.writeUInt8(kind, 0);
  head.writeUInt8(flags, 1);
  head.writeUInt32LE(content.length, 4);
  return Buffer.concat([head, Buffer.from(content)]);
}

/** Lets a WebSocket read these chunks; resolves with what its listeners heard. */
function read(chunks) {
  const [client, server] = Object.values(new WebSocketPair());
  const heard = [];
  server.addEventListener('message', ({ data }) => heard.push(data));
  const rest = chunks[Symbol.iterator]();
  const incoming = { next: async () => rest.next().value ?? null };
  const closed = new Promise((resolve) => {
    server.addEventListener('close', ({ code }) => resolve([...heard, code]));
  });
  server.accept();
  socketOf(client).open({ end() {} }, { incoming, output: { push() {}, queue: [] } });
  return closed;
}

test('parts are joined', async () => {
  const data = Buffer.concat([
    record(TEXT, MORE, 'a'), record(TEXT, MORE, ''), record(TEXT, 0, 'bc'),
    record(BINARY, 0, [255]), record(TEXT, 0, ''), record(BINARY, MORE, [1, 2, 3]), record(BINARY, 0, []),
    record(BINARY, MORE, 'lost'), record(CLOSE, 0, [3, 232]),
  ]);
  const expected = ['abc', new Uint8Array([255]).buffer, '', new Uint8Array([1, 2, 3]).buffer, 1000];
  for (const size of [1, 7, data.length]) {
    const chunks = [];
    for (let at = 0; at < data.length; at += size) chunks.push(data.subarray(at, at + size));
    assert.deepEqual(await read(chunks), expected);
  }
});

test('a message of small parts takes about its length', async () => {
  const count = 200_000;
  const chunk = Buffer.concat(new Array(500).fill(record(BINARY, MORE, 'xyz')));
  const used = () => {
    collect();
    const { heapUsed, external } = process.memoryUsage();
    return heapUsed + external;
  };
  let held;
  function* chunks() {
    const before = used();
    // Each chunk has its own memory, as in a worker.
    for (let left = count; left > 0; left -= 500) yield Buffer.from(chunk);
    held = used() - before;
    yield record(BINARY, 0, '!');
    yield record(CLOSE, 0, [3, 232]);
  }
  const [message, code] = await read(chunks());
  assert.deepEqual([message.byteLength, code], [3 * count + 1, 1000]);
  assert.ok(held < 5 * 3 * count, `${held} bytes are held`);
});
