// Replays the fixtures in shims/conformance: frames through the codec, dialogues against a worker.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { decode, Engine, fixtures, FUNCTIONS, KINDS } from './engine_double.mjs';
import { Invocation } from './mote_worker/invocation.mjs';
import { ProtocolError, splitFrames } from './mote_worker/wire.mjs';

const LIMIT = { timeout: 60_000 };

for (const { name, hex, ok, error, incomplete } of fixtures('frames')) {
  const data = Buffer.from(hex, 'hex');
  test(`frame for a worker: ${name}`, () => {
    const frames = [];
    const split = () => splitFrames(data, data.length, (kind, flags, stream, bytes, start, end) => {
      if (KINDS[kind - 1] === 'INVOKE') frames.push({ kind, flags, stream, invocation: new Invocation(stream, bytes, start, end) });
      else frames.push({ kind, flags, stream, payload: bytes.subarray(start, end) });
    });
    if (error) {
      if (!/^(result|request|response)/.test(name)) assert.throws(split, ProtocolError);
      return;
    }
    assert.equal(split(), incomplete ? 0 : data.length);
    if (incomplete) return;
    const [{ kind, flags, stream, payload, invocation }] = frames;
    assert.deepEqual([KINDS[kind - 1], flags === 1, stream], [ok.kind, ok.end, ok.stream]);
    if (ok.payload !== undefined) assert.equal(payload.toString('hex'), ok.payload);
    if (!invocation) return;
    const words = ['unknown', 'http', 'coap', 'admin'];
    assert.deepEqual(
      [invocation.id, invocation.trigger, invocation.method, invocation.path, invocation.query, invocation.pairs(), invocation.body.toString('hex')],
      [ok.id, words[ok.trigger], ok.method, ok.path, ok.query, ok.headers, ok.body]);
    assert.equal(invocation.deadlineNs, ok.sent_ns + ok.remaining_ms * 1e6);
  });

  test(`frame of a worker: ${name}`, () => {
    if (error) {
      if (!name.startsWith('invoke')) assert.throws(() => decode(data), new RegExp(error));
      return;
    }
    const found = decode(data);
    if (incomplete) return assert.equal(found, null);
    assert.equal(found[1], data.length);
    if (ok.kind === 'INVOKE') return;
    for (const [field, value] of Object.entries(ok)) {
      const seen = found[0][field];
      assert.deepEqual(Buffer.isBuffer(seen) ? seen.toString('hex') : seen, value, field);
    }
  });
}

for (const dialogue of fixtures('dialogues')) {
  test(`dialogue: ${dialogue.name}`, LIMIT, async () => {
    const { entry, load, ready = true, concurrency = null } = dialogue;
    const engine = await Engine.open(FUNCTIONS, `${entry}.mjs`, { load, ready, concurrency, services: ['state', 'functions', 'notify', 'publish'] });
    try {
      assert.deepEqual([engine.hello.kind, engine.hello.version], ['HELLO', 1]);
      if (load && ready) assert.equal(engine.ready.kind, 'READY', JSON.stringify(engine.ready));
      for (const step of dialogue.steps) await replay(engine, step);
    } finally {
      await engine.close();
    }
  });
}

async function replay(engine, step) {
  if (step.send) engine.send(...step.send);
  else if (step.expect) {
    const wanted = [...step.expect];
    const logs = wanted.some((frame) => frame.kind === 'LOG');
    while (wanted.length) {
      const frame = await engine.read(logs);
      if (frame.kind === 'CREDIT') continue;
      const at = step.any_order ? wanted.findIndex((one) => one.stream === frame.stream) : 0;
      compare(frame, wanted.splice(at, 1)[0]);
    }
  } else if (step.expect_bytes) {
    let seen = 0;
    let end = false;
    while (seen < step.expect_bytes) {
      const frame = await engine.read();
      assert.deepEqual([frame.kind, frame.stream, end], ['BODY', step.stream, false]);
      seen += frame.payload.length;
      end = frame.end;
    }
    assert.deepEqual([seen, end], [step.expect_bytes, step.end ?? false]);
  } else if (step.expect_credit) {
    for (let seen = 0; seen < step.expect_credit;) {
      const frame = await engine.read();
      assert.deepEqual([frame.kind, frame.stream], ['CREDIT', step.stream]);
      seen += frame.credit;
    }
  } else if (step.close) engine.socket.destroy();
  else if (step.exit !== undefined) assert.equal(await engine.exited, step.exit);
}

function compare(frame, wanted) {
  for (const [name, value] of Object.entries(wanted)) {
    if (name === 'json') {
      for (const key of Object.keys(value)) assert.deepEqual(frame.json[key], value[key]);
    } else if (name === 'headers_sorted') assert.deepEqual([...frame.headers].sort(), value);
    else if (name === 'payload_hex') assert.equal(frame.payload.toString('hex'), value);
    else if (name === 'body_bytes') assert.equal(frame.body.length, value);
    else {
      const seen = frame[name];
      assert.deepEqual(Buffer.isBuffer(seen) ? seen.toString() : seen, value, `${name} of ${frame.kind} ${frame.json?.message ?? ''}`);
    }
  }
}
