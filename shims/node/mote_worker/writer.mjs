// Frames to the engine: the buffer of bytes to be sent, and the time at which it is written.
//
// This part knows RESULT and ERROR. It does not know how functions are called.

import { Output } from './bodies.mjs';
import { leave } from './output.mjs';
import { trimmed } from './traces.mjs';
import {
  BadReply, Cancelled, END, FLUSH_BYTES, FLUSH_MS, HEADER_BYTES, INLINE_MAX, Kind, OUT_BYTES, clock,
} from './wire.mjs';

/** The part of `Worker` that sends. */
export class FrameWriter {
  constructor(fd, folder) {
    this.fd = fd;
    this.folder = folder; // URL of where the shim lies, and its adapters below it
    this.out = Buffer.allocUnsafeSlow(OUT_BYTES);
    this.outView = new DataView(this.out.buffer);
    this.used = 0;
    this.flushed = 0; // performance.now() of the last flush
    this.flushing = false;
    this.link = null; // the connection, see `interpreter`
    this.backlog = 0; // writes the link took into its own queue because the kernel's was full
    this.outputs = new Map(); // stream to Output
    this.flush = this.flush.bind(this);
  }

  reserve(bytes) {
    if (this.used + bytes > OUT_BYTES) this.flush();
  }
  header(size, kind, flags, stream) {
    const at = this.used;
    this.outView.setUint32(at, size, true);
    this.outView.setUint32(at + 4, kind | (flags << 8), true);
    this.outView.setUint32(at + 8, stream, true);
    this.used = at + HEADER_BYTES;
  }
  put(kind, flags, stream, payload) {
    this.reserve(HEADER_BYTES + payload.length);
    this.header(payload.length, kind, flags, stream);
    this.out.set(payload, this.used);
    this.used += payload.length;
    this.flushSoon();
  }
  /** A frame that may be larger than the buffer. */
  putLong(kind, stream, payload) {
    if (HEADER_BYTES + payload.length <= FLUSH_BYTES) return this.put(kind, 0, stream, payload);
    this.reserve(HEADER_BYTES);
    this.header(payload.length, kind, 0, stream);
    this.flush();
    this.backlog++;
    this.link.write(payload, () => { this.backlog--; });
  }
  putJson(kind, flags, stream, value) { this.put(kind, flags, stream, Buffer.from(JSON.stringify(value))); }

  /** RESULT, with `headers` and `body` (each string or Buffer), the latter as far as it is inline. */
  putResult(invocation, returnedMs, status, headers, body, streams = false) {
    const { stream } = invocation;
    // There is room for the worst case of UTF-8. Longer text is encoded first.
    if (typeof body === 'string' && body.length > INLINE_MAX / 3) body = Buffer.from(body);
    const text = typeof body === 'string';
    const inline = text ? null : body.length > INLINE_MAX ? body.subarray(0, INLINE_MAX) : body;
    const whole = !streams && (text || inline === body);
    this.reserve(HEADER_BYTES + 24 + headers.length + (text ? body.length * 3 : inline.length));
    const start = this.used;
    const view = this.outView;
    let at = start + HEADER_BYTES + 24;
    if (typeof headers !== 'string') this.out.set(headers, at);
    else if (headers.length) this.out.latin1Write(headers, at);
    at += headers.length;
    if (!text) {
      this.out.set(inline, at);
      at += inline.length;
    } else if (body.length < 24) {
      // Writing a short ASCII text byte by byte is faster than calling into the runtime.
      let i = 0;
      for (; i < body.length; i++) {
        const code = body.charCodeAt(i);
        if (code > 127) break;
        this.out[at + i] = code;
      }
      at += i === body.length ? i : this.out.utf8Write(body, at);
    } else {
      at += this.out.utf8Write(body, at);
    }
    view.setUint32(start, at - start - HEADER_BYTES, true);
    view.setUint32(start + 4, Kind.RESULT | (whole ? END << 8 : 0), true);
    view.setUint32(start + 8, stream, true);
    const entered = invocation.enteredNs;
    const returned = clock.offsetNs + returnedMs * 1e6;
    let high = Math.floor(entered / 2 ** 32);
    view.setUint32(start + 12, entered - high * 2 ** 32, true);
    view.setUint32(start + 16, high, true);
    high = Math.floor(returned / 2 ** 32);
    view.setUint32(start + 20, returned - high * 2 ** 32, true);
    view.setUint32(start + 24, high, true);
    view.setUint32(start + 28, status, true); // and two zero bytes
    view.setUint32(start + 32, headers.length, true);
    this.used = at;
    if (at > FLUSH_BYTES || returnedMs - this.flushed > FLUSH_MS) this.flush();
    else this.flushSoon();
    if (!whole) {
      invocation.output = new Output(this, invocation);
      if (!streams) invocation.output.push(body.subarray(INLINE_MAX), true);
    }
  }

  putError(invocation, error, returnedNs = 0) {
    if (invocation?.output) invocation.output.close();
    const kind = error instanceof Cancelled ? 'Cancelled' : error instanceof BadReply ? 'BadReply'
      : String(error?.name ?? error?.constructor?.name ?? typeof error);
    let message;
    try { message = String(error?.message ?? error); } catch { message = '(no text)'; }
    const plain = error instanceof Cancelled || error instanceof BadReply;
    this.putJson(Kind.ERROR, END, invocation?.stream ?? 0, {
      kind: kind.slice(0, 200), message: message.slice(0, 4096), trace: plain ? '' : trimmed(error, this.folder),
      entered_ns: Math.floor(invocation?.enteredNs ?? 0), returned_ns: Math.floor(returnedNs),
    });
  }

  flushSoon() {
    if (this.flushing) return;
    this.flushing = true;
    // The check phase follows the reads of this turn and every promise that they have settled, so
    // one write sends all their answers without further delay.
    setImmediate(this.flush);
  }

  flush() {
    this.flushing = false;
    this.flushed = performance.now();
    const length = this.used;
    if (!length) return;
    this.used = 0;
    let done = 0;
    if (!this.backlog) {
      try { done = this.link.send(this.out, length); } catch { leave(1); /* the engine is gone */ }
    }
    if (done === length) return;
    const rest = Buffer.from(this.out.subarray(done, length));
    this.backlog++;
    this.link.write(rest, () => { this.backlog--; });
  }
}
