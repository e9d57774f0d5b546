// Bodies that do not fit into one frame: `Incoming` of a request, `Output` of an answer.
//
// Both count the credit of their streams. They do not know what the bytes mean.

import { Cancelled, CHUNK_MAX, END, Kind, WINDOW } from './wire.mjs';

/** The body of one request on its way in. */
export class Incoming {
  constructor(worker, stream, first) {
    this.worker = worker;
    this.stream = stream;
    this.chunks = first.length ? [[first, 0]] : [];
    this.ended = false;
    this.error = null;
    this.owed = 0;
    this.wake = null;
    this.collected = null; // all of it, after `all`
  }
  add(chunk, ended) {
    if (chunk.length) this.chunks.push([chunk, chunk.length]);
    this.ended = ended;
    this.wake?.();
  }
  consumed(size) {
    // One CREDIT is sent for each quarter of the window, so that the sender never runs out of
    // credit and small chunks do not cost a frame each.
    this.owed += size;
    if (this.owed >= CHUNK_MAX && !this.ended) {
      const payload = Buffer.allocUnsafe(4);
      payload.writeUInt32LE(this.owed);
      this.worker.put(Kind.CREDIT, 0, this.stream, payload);
      this.owed = 0;
    }
  }
  /** The next chunk, or null at the end. */
  async next() {
    while (!this.chunks.length) {
      if (this.error) throw this.error;
      if (this.ended) return null;
      await new Promise((resolve) => { this.wake = resolve; });
    }
    const [chunk, size] = this.chunks.shift();
    if (size) this.consumed(size);
    return chunk;
  }
  async all() {
    const chunks = [];
    for (let chunk; (chunk = await this.next()) !== null;) chunks.push(chunk);
    this.collected = Buffer.concat(chunks);
    return this.collected;
  }
}

/** The body of one answer on its way out, as far as the engine's credit reaches. */
export class Output {
  constructor(worker, invocation) {
    this.worker = worker;
    this.invocation = invocation;
    this.window = WINDOW;
    this.queue = [];
    this.last = false;
    this.wake = null;
    worker.outputs.set(invocation.stream, this);
  }
  push(chunk, last = false) {
    if (chunk.length) this.queue.push(chunk);
    this.last ||= last;
    if (last && !this.queue.length) {
      this.worker.put(Kind.BODY, END, this.invocation.stream, chunk);
      this.close();
    } else {
      this.pump();
    }
  }
  pump() {
    while (this.queue.length && this.window) {
      const chunk = this.queue[0];
      const size = Math.min(chunk.length, CHUNK_MAX, this.window);
      if (size === chunk.length) this.queue.shift();
      else this.queue[0] = chunk.subarray(size);
      this.window -= size;
      const end = this.last && !this.queue.length;
      this.worker.put(Kind.BODY, end ? END : 0, this.invocation.stream, chunk.subarray(0, size));
      if (end) return this.close();
    }
    if (!this.queue.length) this.wake?.();
  }
  async drained() {
    while (this.queue.length && !this.invocation.cancelled) {
      await new Promise((resolve) => { this.wake = resolve; });
    }
    if (this.invocation.cancelled) throw new Cancelled('the caller is gone');
  }
  close() {
    this.queue.length = 0;
    this.worker.outputs.delete(this.invocation.stream);
    this.wake?.();
  }
}
