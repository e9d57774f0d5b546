// The worker: handles frames from the engine, calls the function, and sends its answers.
//
// Start reading at `onData`, `start` and `answer`.

import { AsyncLocalStorage } from 'node:async_hooks';
import fs from 'node:fs';
import nodeModule from 'node:module';

import { Prepared } from './adapters.mjs';
import { Incoming } from './bodies.mjs';
import { LightResponse } from './fetch.mjs';
import { headerBlock, standardPairs } from './headers.mjs';
import { Invocation } from './invocation.mjs';
import { loadFunction, parseLoad } from './loading.mjs';
import { endLines, leave, partials } from './output.mjs';
import { isReal } from './platform.mjs';
import { Requests } from './services.mjs';
import {
  BYTES, BadReply, CHUNK_MAX, CONCURRENCY, Cancelled, END, INLINE_MAX, JSON_TYPE, Kind, ProtocolError, TEXT, clock,
  learnClock, nowNs, splitFrames,
} from './wire.mjs';
import { FrameWriter } from './writer.mjs';

/** One connection to the engine and the function behind it. */
export class Worker extends FrameWriter {
  constructor(fd, folder) {
    super(fd, folder);
    this.kept = null; // start of a frame that is not complete
    this.waiting = [];
    this.running = new Map(); // stream to Invocation
    this.incoming = new Map();
    this.background = 0;
    this.draining = false;
    this.spec = null;
    this.limit = CONCURRENCY;
    this.call = null;
    this.offersSockets = false; // the function has a fetch handler
    this.starting = false; // inside the loop of `end`
    this.now = null; // Invocation whose handler is on the stack
    this.socketCode = null; // what serves WebSockets, once the function makes one
    this.eventCode = null; // what is known about CloudEvents, once the function asks
    this.services = null; // what the function asks of its node, once it does
    this.storage = null; // AsyncLocalStorage once invocations have to be told apart
    this.untracked = null; // Invocation that ran before that
    this.file = ''; // of the function
    this.mentionsLines = null; // whether that file does, once it matters
    this.onFrame = this.onFrame.bind(this);
    this.enter = this.enter.bind(this);
  }

  // Frames in

  /** Bytes from the engine. If they are not `owned`, the caller reuses them afterwards. */
  onData(data, length, owned = false) {
    if (this.kept) {
      data = Buffer.concat([this.kept, data.subarray(0, length)]);
      length = data.length;
      this.kept = null;
    } else if (!owned) {
      // Functions keep parts of the data across awaits.
      data = Buffer.from(data.subarray(0, length));
    }
    try {
      const used = splitFrames(data, length, this.onFrame);
      if (used < length) this.kept = data.subarray(used);
    } catch (error) {
      if (!(error instanceof ProtocolError)) throw error;
      fs.writeSync(2, `mote_shim: protocol violation: ${error.message}\n`);
      leave(65);
    }
  }

  onFrame(kind, flags, stream, data, start, end) {
    if (kind === Kind.INVOKE) {
      if (!this.call) throw new ProtocolError('INVOKE before READY');
      const invocation = new Invocation(stream, data, start, end);
      if (!clock.isKnown) learnClock(invocation.sentNs);
      if (!flags) {
        invocation.asksSocket = invocation.header('upgrade') === 'websocket';
        if (this.offersSockets || !invocation.asksSocket) {
          invocation.incoming = new Incoming(this, stream, invocation.body);
          this.incoming.set(stream, invocation);
        }
      }
      if (this.running.size < this.limit) this.start(invocation);
      else this.waiting.push(invocation);
      return;
    }
    switch (kind) {
      case Kind.BODY: {
        if (end - start > CHUNK_MAX) throw new ProtocolError('BODY chunk above 64 KiB');
        // Without an entry, this frame has crossed our END, and the stream is already over here.
        const { incoming } = this.incoming.get(stream) ?? {};
        if (flags) this.incoming.delete(stream);
        incoming?.add(data.subarray(start, end), flags === END);
        this.maybeLeave();
        return;
      }
      case Kind.CREDIT: {
        if (end - start !== 4) throw new ProtocolError('CREDIT is not 4 bytes');
        const output = this.outputs.get(stream);
        if (output) {
          output.window += data.readUInt32LE(start);
          output.pump();
          this.maybeLeave();
        }
        return;
      }
      case Kind.RESPONSE:
        if (end - start < 8 || !this.services) throw new ProtocolError('RESPONSE too short, or to nothing');
        return this.services.file(data.subarray(start, end));
      case Kind.CANCEL: return this.cancel(stream);
      case Kind.DRAIN:
        this.draining = true;
        return this.maybeLeave();
      case Kind.LOAD:
        if (!this.spec) {
          this.spec = parseLoad(data.utf8Slice(start, end));
          this.load();
          return;
        }
    }
    throw new ProtocolError(`frame kind ${kind} is not for a worker now`);
  }

  cancel(stream) {
    const at = this.waiting.findIndex((one) => one.stream === stream);
    if (at >= 0) {
      const [invocation] = this.waiting.splice(at, 1);
      this.incoming.delete(stream);
      this.putError(invocation, new Cancelled('the caller is gone'));
      return this.maybeLeave();
    }
    const invocation = this.running.get(stream);
    if (invocation) {
      // Shows the engine that the worker still reads, even if the function continues.
      this.put(Kind.CREDIT, 0, stream, Buffer.alloc(4));
      invocation.cancelled = true;
      invocation.controller?.abort();
      this.services?.cancelled(invocation);
      if (this.incoming.delete(stream)) {
        invocation.incoming.error = new Cancelled('the caller is gone');
        invocation.incoming.wake?.();
      }
      this.outputs.get(stream)?.wake?.();
      return;
    }
    const output = this.outputs.get(stream);
    if (output) {
      // The handler has returned. Only bytes are left, and nobody wants them.
      this.putError(output.invocation, new Cancelled('the caller is gone'));
      this.maybeLeave();
    }
  }

  /** The services of the node. */
  node() {
    this.services ??= new Requests(this);
    return this.services;
  }

  /** What reads and writes CloudEvents. Few functions use it, so it is loaded here. */
  cloudevents() {
    this.eventCode ??= nodeModule.createRequire(this.folder)(new URL('mote_cloudevents.cjs', this.folder).pathname);
    return this.eventCode;
  }

  /** What serves WebSockets, loaded in the same way. */
  webSockets() {
    this.socketCode ??= nodeModule.createRequire(this.folder)(new URL('mote_websocket.cjs', this.folder).pathname);
    return this.socketCode;
  }

  cloudeventsOf(invocation) {
    const { incoming } = invocation;
    return this.cloudevents().received(invocation.pairs(), invocation.trigger === 'mqtt', () => {
      if (incoming && !incoming.collected) throw new Error('the body is still arriving: export `handle` instead of `fetch`');
      return incoming ? incoming.collected : invocation.body;
    });
  }

  maybeLeave() {
    if (!this.draining || this.running.size || this.waiting.length || this.outputs.size || this.background) return;
    endLines(0);
    this.flush();
    if (this.backlog) this.link.end(() => leave(0));
    else leave(0);
  }

  // Invocations

  start(invocation) {
    // A second call begins while another one runs, so from now on the code of both can be on its way.
    if (this.storage === null && this.running.size && this.mayWrite()) this.tellApart();
    this.running.set(invocation.stream, invocation);
    invocation.enteredNs = nowNs();
    // The answer is made in here as well, because a generator or `toJSON` is code of the function.
    if (this.storage === null) this.enter(invocation);
    else this.storage.run(invocation, this.enter, invocation);
  }

  enter(invocation) {
    this.now = invocation;
    let value;
    try {
      value = this.call(invocation);
    } catch (error) {
      this.now = null;
      return this.fail(invocation, error);
    }
    this.now = null;
    if (typeof value === 'object' && value !== null && typeof value.then === 'function') {
      value.then((result) => this.resolved(invocation, result), (error) => this.fail(invocation, error));
    } else {
      this.answer(invocation, value);
    }
  }

  /** Whether the function's file mentions what writes lines. Following invocations costs half a
   * microsecond of each, which functions without lines need not pay. */
  mayWrite() {
    this.mentionsLines ??= /\b(console|stdout|stderr)\b/.test(fs.readFileSync(this.file, 'latin1'));
    return this.mentionsLines;
  }

  /** Follows each invocation that begins from now on across its promises. An invocation that has
   * already begun cannot be followed: it is the only one whose code runs without a store. */
  tellApart() {
    this.storage = new AsyncLocalStorage();
    this.untracked = this.running.values().next().value ?? null;
  }

  resolved(invocation, value) {
    const { next } = invocation;
    if (next === null) return this.answer(invocation, value);
    invocation.next = null;
    let answer;
    try { answer = next(value); } catch (error) { return this.fail(invocation, error); }
    if (typeof answer?.then !== 'function') return this.answer(invocation, answer);
    answer.then((result) => this.answer(invocation, result), (error) => this.fail(invocation, error));
  }

  end(invocation) {
    invocation.done = true;
    if (this.untracked === invocation) this.untracked = null;
    this.running.delete(invocation.stream);
    if (invocation.incoming) this.incoming.delete(invocation.stream);
    if (this.waiting.length && !this.starting) {
      // This is a loop and not a recursion, because a synchronous handler ends inside `start`.
      this.starting = true;
      while (this.waiting.length && this.running.size < this.limit) this.start(this.waiting.shift());
      this.starting = false;
    }
    if (this.draining) this.maybeLeave();
  }

  fail(invocation, error) {
    endLines(invocation.stream);
    if (error?.moteAnswer && !invocation.output && !invocation.cancelled) {
      const [text, status] = error.moteAnswer;
      this.putResult(invocation, performance.now(), status, TEXT, text);
      return this.end(invocation);
    }
    // A handler that stops because of its signal counts as cancelled, whatever it throws.
    const cause = invocation.cancelled ? new Cancelled('the caller is gone') : error;
    this.putError(invocation, cause, nowNs());
    this.end(invocation);
  }

  answer(invocation, value) {
    const returnedMs = performance.now();
    try {
      if (partials.size) endLines(invocation.stream);
      if (typeof value === 'string') {
        this.putResult(invocation, returnedMs, 200, TEXT, value);
      } else if (value instanceof Prepared) {
        this.putResult(invocation, returnedMs, value.status, value.block, value.body);
      } else if (LightResponse.is(value)) {
        if (value.webSocket !== null) return this.openSocket(invocation, value);
        if (!value.emit((status, headers, body) => this.putResult(invocation, returnedMs, status, headers, body))) {
          return void this.streamResponse(invocation, value.toReal());
        }
      } else if (value === undefined || value === null) {
        this.putResult(invocation, returnedMs, 204, '', '');
      } else if (value instanceof Uint8Array) {
        this.putResult(invocation, returnedMs, 200, BYTES, value);
      } else if (value instanceof ArrayBuffer) {
        this.putResult(invocation, returnedMs, 200, BYTES, new Uint8Array(value));
      } else if (isReal('Response', value)) {
        return void this.streamResponse(invocation, value);
      } else if (typeof value === 'function' || typeof value === 'symbol') {
        throw new BadReply(`cannot turn a ${typeof value} into an answer`);
      } else if (typeof value === 'object' && (value[Symbol.asyncIterator] || typeof value.next === 'function')) {
        return void this.streamOut(invocation, 200, BYTES, value);
      } else if (this.eventCode !== null && value instanceof this.eventCode.CloudEvent) {
        const [pairs, body] = this.eventCode.binary(value);
        this.putResult(invocation, returnedMs, 200, headerBlock(pairs), body);
      } else {
        let text;
        try { text = JSON.stringify(value); } catch (error) { throw new BadReply(`answer is not JSON: ${error.message}`); }
        if (text === undefined) throw new BadReply('answer is not JSON');
        this.putResult(invocation, returnedMs, 200, JSON_TYPE, text);
      }
    } catch (error) {
      return this.fail(invocation, error);
    }
    this.end(invocation);
  }

  /** Accepts a WebSocket. The invocation runs until the WebSocket is closed. */
  openSocket(invocation, response) {
    if (!invocation.asksSocket) {
      throw new BadReply('status 101 answers only a request for a WebSocket');
    }
    const socket = this.webSockets().socketOf(response.webSocket);
    this.putResult(invocation, performance.now(), 200, `${response.socketBlock()}upgrade\nwebsocket\n`, '', true);
    socket.open(this, invocation);
  }

  async streamResponse(invocation, response) {
    let block;
    try {
      if (response.status < 200 || response.status > 599) throw new BadReply(`status ${response.status} is not 200 to 599`);
      // fetch() has already decoded the body, so the body is no longer encoded. The fields are read
      // first: Bun adds the type of the body only as long as nobody has looked at the body.
      const pairs = standardPairs(response.headers).filter(([name]) => !(response.url && name === 'content-encoding'));
      block = headerBlock(pairs);
      if (response.bodyUsed || response.body?.locked) throw new BadReply('the body of the Response was already read');
    } catch (error) {
      return this.fail(invocation, error);
    }
    await this.streamOut(invocation, response.status, block, response.body ?? []);
  }

  /** Sends what an iterable yields. The first chunk is awaited before the head leaves, so one that
   *  fails at once is an error and not a torn answer. */
  async streamOut(invocation, status, headers, chunks) {
    try {
      for await (const chunk of iterable(chunks)) {
        let bytes = chunkBytes(chunk);
        if (!invocation.output) {
          this.putResult(invocation, performance.now(), status, headers, bytes.subarray(0, INLINE_MAX), true);
          bytes = bytes.subarray(INLINE_MAX);
        }
        invocation.output.push(bytes);
        await invocation.output.drained();
      }
      endLines(invocation.stream);
      if (invocation.output) invocation.output.push(Buffer.alloc(0), true);
      else this.putResult(invocation, performance.now(), status, headers, '');
    } catch (error) {
      return this.fail(invocation, error);
    }
    this.end(invocation);
  }

  // Loading

  async load() {
    const started = performance.now();
    try {
      process.chdir(this.spec.code_dir); // not in loadFunction: a rehearsal may load at the same time
      const shape = await loadFunction(this);
      this.offersSockets = shape === 'fetch';
      endLines(0);
      this.putJson(Kind.READY, 0, 0, {
        init_ns: Math.round((performance.now() - started) * 1e6), concurrency: this.limit, shape, whole_bodies: shape !== 'fetch',
      });
    } catch (error) {
      endLines(0);
      this.putError(null, error);
      this.flush();
      leave(1);
    }
  }
}

function iterable(chunks) {
  if (chunks[Symbol.asyncIterator] || chunks[Symbol.iterator]) return chunks;
  return { [Symbol.iterator]: () => chunks };
}

function chunkBytes(chunk) {
  if (typeof chunk === 'string') return Buffer.from(chunk);
  if (chunk instanceof Uint8Array) return chunk;
  if (chunk instanceof ArrayBuffer) return new Uint8Array(chunk);
  throw new BadReply(`a stream yields strings or bytes, not ${typeof chunk}`);
}
