// The engine's side of the worker protocol for tests: a codec and a worker process on fd 3.

import { spawn } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';

export const KINDS = ['HELLO', 'LOAD', 'READY', 'INVOKE', 'BODY', 'RESULT', 'ERROR', 'CANCEL', 'CREDIT', 'LOG', 'DRAIN',
  'REQUEST', 'RESPONSE'];
const CONFORMANCE = new URL('../conformance/', import.meta.url);
export const FUNCTIONS = new URL('functions', CONFORMANCE).pathname;
// MOTE_SHIM names a built shim, whose parts are joined into one file.
const SHIMS = process.env.MOTE_SHIM ?? new URL('.', import.meta.url).pathname;
const COMMANDS = {
  node: [process.execPath, 'mote_shim.mjs'],
  bun: ['bun', '--no-install', 'mote_bun.mjs'],
  deno: ['deno', 'run', '--allow-all', '--no-config', '--no-lock', '--no-remote', '--node-modules-dir=manual', '--unstable-detect-cjs', 'mote_deno.mjs'],
};
/** The interpreter under test. */
export const INTERPRETER = process.env.MOTE_INTERPRETER ?? 'node';

export const fixtures = (name) => JSON.parse(fs.readFileSync(new URL(`${name}.json`, CONFORMANCE)))[name];

const pairs = (block) => {
  const parts = block.toString('latin1').split('\n');
  return Array.from({ length: parts.length >> 1 }, (_, i) => [parts[2 * i], parts[2 * i + 1]]);
};

/** Encodes a frame described as in the fixtures. */
export function encode(frame) {
  if (frame.hex) return Buffer.from(frame.hex, 'hex');
  let payload = frame.repeat ? Buffer.alloc(frame.repeat[1], frame.repeat[0]) : Buffer.from(frame.body ?? '');
  if (frame.kind === 'INVOKE') {
    const parts = [frame.method ?? 'POST', frame.path ?? '/', frame.query ?? '',
      (frame.headers ?? []).map(([name, value]) => `${name}\n${value}\n`).join('')].map((text) => Buffer.from(text, 'latin1'));
    const fixed = Buffer.alloc(40);
    fixed.writeBigUInt64LE(BigInt(frame.sent_ns ?? 1), 0);
    fixed[23] = frame.id ?? 1;
    fixed.writeUInt32LE(frame.remaining_ms ?? 10000, 24);
    fixed[28] = frame.trigger ?? 1;
    fixed[29] = parts[0].length;
    fixed.writeUInt16LE(parts[1].length, 30);
    fixed.writeUInt16LE(parts[2].length, 32);
    fixed.writeUInt32LE(parts[3].length, 36);
    payload = Buffer.concat([fixed, ...parts, payload]);
  } else if (frame.kind === 'CREDIT') {
    payload = Buffer.alloc(4);
    payload.writeUInt32LE(frame.credit);
  } else if (frame.kind === 'RESPONSE') {
    payload = Buffer.alloc(8);
    payload.writeUInt32LE(frame.number);
    payload[4] = frame.status;
    payload = Buffer.concat([payload, Buffer.from(frame.content ?? '', 'hex')]);
  } else if (frame.json) {
    payload = Buffer.from(JSON.stringify(frame.json));
  }
  const header = Buffer.alloc(12);
  header.writeUInt32LE(payload.length, 0);
  header[4] = KINDS.indexOf(frame.kind) + 1;
  header[5] = frame.end ? 1 : 0;
  header.writeUInt32LE(frame.stream, 8);
  return Buffer.concat([header, payload]);
}

/** [frame as in the fixtures, bytes used] of frames a worker sends; null if incomplete. */
export function decode(data) {
  if (data.length < 12) return null;
  const size = data.readUInt32LE(0);
  if (size > 1 << 20) throw new Error('too long');
  const kind = KINDS[data[4] - 1];
  if (!kind) throw new Error('unknown kind');
  if (data[5] > 1 || data[6] || data[7]) throw new Error('reserved');
  if (data.length < 12 + size) return null;
  const payload = data.subarray(12, 12 + size);
  const frame = { kind, end: data[5] === 1, stream: data.readUInt32LE(8), payload };
  if (kind === 'HELLO') Object.assign(frame, { version: payload.readUInt16LE(0), shim: payload.toString('utf8', 2) });
  else if (['LOAD', 'READY', 'ERROR'].includes(kind)) frame.json = JSON.parse(payload);
  else if (kind === 'RESULT') {
    if (size < 24) throw new Error('malformed');
    if (payload.readUInt16LE(18)) throw new Error('reserved');
    frame.entered_ns = Number(payload.readBigUInt64LE(0));
    frame.returned_ns = Number(payload.readBigUInt64LE(8));
    frame.status = payload.readUInt16LE(16);
    const length = payload.readUInt32LE(20);
    if (length > size - 24 || frame.status < 200 || frame.status > 599) throw new Error('malformed');
    frame.headers = pairs(payload.subarray(24, 24 + length));
    frame.body = payload.subarray(24 + length);
  } else if (kind === 'REQUEST' || kind === 'RESPONSE') {
    if (size < 8) throw new Error('malformed');
    frame.number = payload.readUInt32LE(0);
    if (kind === 'RESPONSE') frame.status = payload[4];
    else [frame.service, frame.operation] = payload.subarray(4);
    if (frame.service === 1 && size < 32 + payload[8] + payload.readUInt16LE(10)) throw new Error('malformed');
  } else if (kind === 'CREDIT') frame.credit = payload.readUInt32LE(0);
  else if (kind === 'LOG') Object.assign(frame, { source: payload[0], level: payload[1], text: payload.toString('utf8', 2) });
  return [frame, 12 + size];
}

export class Engine {
  constructor() {
    const [program, ...options] = COMMANDS[INTERPRETER];
    const file = path.join(SHIMS, options.pop());
    this.process = spawn(program, [...options, file], { stdio: ['ignore', 'pipe', 'pipe', 'pipe'] });
    this.stdout = '';
    this.stderr = '';
    this.process.stdout.on('data', (data) => { this.stdout += data; });
    this.process.stderr.on('data', (data) => { this.stderr += data; });
    this.exited = new Promise((resolve) => this.process.on('close', (code, signal) => resolve(code ?? signal)));
    this.socket = this.process.stdio[3];
    this.logs = [];
    this.alive = [];
    this.frames = [];
    this.data = Buffer.alloc(0);
    this.ended = false;
    this.wake = () => {};
    this.nextStream = 1;
    this.socket.on('data', (data) => {
      this.data = Buffer.concat([this.data, data]);
      for (let found; (found = decode(this.data)); ) {
        this.frames.push(found[0]);
        this.data = this.data.subarray(found[1]);
      }
      this.wake();
    });
    this.socket.on('error', () => {});
    this.socket.on('close', () => { this.ended = true; this.wake(); });
  }

  static async open(codeDir, entry, { load = true, ready = true, concurrency = null, env = {}, packages = null, ...more } = {}) {
    const engine = new Engine();
    engine.hello = await engine.read();
    if (load) {
      engine.send({ kind: 'LOAD', stream: 0, json: {
        function: 'fn', revision: 3, code_dir: codeDir, packages_dir: packages, entry, concurrency, env, ...more } });
      if (ready) engine.ready = await engine.read();
    }
    return engine;
  }

  close() {
    this.socket.destroy();
    this.process.kill('SIGKILL');
    return this.exited;
  }

  send(...frames) { this.socket.write(Buffer.concat(frames.map(encode))); }

  /** The next frame; LOG frames are set aside unless asked for, and answers to CANCEL always. */
  async read(logs = false) {
    for (;;) {
      while (!this.frames.length) {
        if (this.ended) throw new Error(`the worker closed the connection: ${this.stderr}`);
        await new Promise((resolve) => { this.wake = resolve; });
      }
      const frame = this.frames.shift();
      if (frame.kind === 'CREDIT' && frame.credit === 0) {
        this.alive.push(frame.stream);
        continue;
      }
      if (frame.kind !== 'LOG' || logs) return frame;
      this.logs.push(frame);
    }
  }

  /** One invocation from start to end: the RESULT or ERROR frame with its complete body. */
  async invoke(path = '/', body = '', fields = {}) {
    const stream = ++this.nextStream;
    let rest = Buffer.from(body);
    const first = rest.subarray(0, 64 << 10);
    rest = rest.subarray(64 << 10);
    this.send({ kind: 'INVOKE', stream, end: !rest.length, path, body: first, ...fields });
    let window = 256 << 10;
    let head = null;
    for (;;) {
      while (rest.length && window >= Math.min(rest.length, 64 << 10)) {
        const chunk = rest.subarray(0, 64 << 10);
        rest = rest.subarray(64 << 10);
        window -= chunk.length;
        this.send({ kind: 'BODY', stream, end: !rest.length, body: chunk });
      }
      const frame = await this.read();
      if (frame.stream !== stream) throw new Error(`frame of stream ${frame.stream}`);
      if (frame.kind === 'CREDIT') window += frame.credit;
      else if (frame.kind === 'RESULT') head = frame;
      else if (frame.kind === 'BODY') {
        head.body = Buffer.concat([head.body, frame.payload]);
        this.send({ kind: 'CREDIT', stream, credit: frame.payload.length });
      } else return frame;
      if (frame.end && head) return head;
    }
  }
}
