// The bytes of the worker protocol: kinds of frames, limits, and how frames are split.
//
// This part knows bytes, numbers and the clock. It does not know invocations or the connection.

export const VERSION = 1;
export const Kind = {
  HELLO: 1, LOAD: 2, READY: 3, INVOKE: 4, BODY: 5, RESULT: 6, ERROR: 7, CANCEL: 8, CREDIT: 9, LOG: 10, DRAIN: 11,
  REQUEST: 12, RESPONSE: 13,
};
export const END = 1;
export const HEADER_BYTES = 12;
export const PAYLOAD_MAX = 1 << 20;
export const INLINE_MAX = 64 << 10;
export const CHUNK_MAX = 64 << 10;
export const WINDOW = 256 << 10;
export const HEADERS_MAX = 64 << 10;
export const LINE_MAX = 16 << 10;
export const NOTHING = Buffer.alloc(0);
export const CONCURRENCY = 256;
// Answers are written at the end of a turn of the event loop, or sooner once this much time or room
// is used.
export const FLUSH_MS = 0.2;
export const FLUSH_BYTES = 64 << 10;
export const OUT_BYTES = 256 << 10;

// Header blocks. Those that never change are bytes, which are written in a third of the time.
export const TEXT = Buffer.from('content-type\ntext/plain; charset=utf-8\n');
export const WEB_TEXT = 'content-type\ntext/plain;charset=UTF-8\n'; // what the Fetch standard gives a string
export const WEB_TEXT_BYTES = Buffer.from(WEB_TEXT);
export const BYTES = Buffer.from('content-type\napplication/octet-stream\n');
export const JSON_TYPE = 'content-type\napplication/json\n';

// performance.now() is the monotonic clock minus a start time, and is cheaper to read than a
// bigint. The first readings are slow, so the smallest of a few differences is the true one.
export const clock = {
  offsetNs: Math.min(...Array.from({ length: 8 }, () => {
    const start = performance.now();
    return Number(process.hrtime.bigint()) - start * 1e6;
  })),
  isKnown: true,
};
export const nowNs = () => clock.offsetNs + performance.now() * 1e6;

/** Begins to learn the difference from frames, for interpreters that hide the monotonic clock. */
export function forgetClock() { Object.assign(clock, { offsetNs: 0, isKnown: false }); }

/** A frame that was sent at `sentNs` has arrived. The fastest frame gives the best estimate. */
export function learnClock(sentNs) { clock.offsetNs = Math.max(clock.offsetNs, sentNs - performance.now() * 1e6); }

export class ProtocolError extends Error {}
export class BadReply extends Error {}
export class Cancelled extends Error {}

/** Calls `onFrame(kind, flags, stream, data, start, end)` for each whole frame; returns the bytes used. */
export function splitFrames(data, length, onFrame) {
  const view = new DataView(data.buffer, data.byteOffset, length);
  let at = 0;
  while (length - at >= HEADER_BYTES) {
    const size = view.getUint32(at, true);
    const kind = data[at + 4];
    const flags = data[at + 5];
    if (size > PAYLOAD_MAX || kind < 1 || kind > 13 || flags > END || data[at + 6] || data[at + 7]) {
      throw new ProtocolError(`frame header ${Buffer.from(data.subarray(at, at + 12)).toString('hex')}`);
    }
    const start = at + HEADER_BYTES;
    if (start + size > length) break;
    onFrame(kind, flags, view.getUint32(at + 8, true), data, start, start + size);
    at = start + size;
  }
  return at;
}
