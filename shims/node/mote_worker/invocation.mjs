// One invocation: the positions of its parts in the bytes of its frame, and a cache for heads that
// many requests share.
//
// This part reads an INVOKE frame. It does not know how functions are called.

import { NOTHING, ProtocolError } from './wire.mjs';

const BLOCKS_KEPT = 64; // of heads and of fields; some 400 KiB at most
const BLOCK_KEPT_BYTES = 1 << 10;
const HEAD_LENGTHS_AT = 28; // of INVOKE: trigger and lengths, of so many bytes, then what they tell of
const HEAD_LENGTHS = 12;
const TRIGGERS = ['unknown', 'http', 'coap', 'admin', 'schedule', 'mqtt', 'function'];
const LETTERS = '0123456789ABCDEFGHJKMNPQRSTVWXYZ';

// A client sends nearly the same head with every call, so parsed heads and fields are kept.
const KNOWN_HEADS = new Map();
const KNOWN_FIELDS = new Map();
let lastText = '';
let lastHead = null;

function keep(known, text, read) {
  if (text.length > BLOCK_KEPT_BYTES) return;
  if (known.size >= BLOCKS_KEPT) known.clear();
  known.set(text, read);
}

function fieldsIn(block) {
  const known = KNOWN_FIELDS.get(block);
  if (known !== undefined) return known;
  const fields = Object.create(null); // a field may be called __proto__
  const parts = block.split('\n');
  for (let i = 0; i + 1 < parts.length; i += 2) {
    const name = parts[i];
    fields[name] = name in fields ? `${fields[name]}, ${parts[i + 1]}` : parts[i + 1];
  }
  const read = { ...fields }; // quicker to copy than an object without a prototype
  keep(KNOWN_FIELDS, block, read);
  return read;
}

/** What a call asks for. Shared between calls that ask for the same, so it must not be changed. */
class Head {
  constructor(text, methodEnd, pathEnd, queryEnd) {
    this.method = text.slice(HEAD_LENGTHS, methodEnd);
    this.path = text.slice(methodEnd, pathEnd);
    this.query = text.slice(pathEnd, queryEnd);
    this.fields = fieldsIn(text.slice(queryEnd)); // by name, duplicates joined by ", "
    this.mediaType = (this.fields['content-type'] ?? '').split(';')[0].trim().toLowerCase();
    this.made = null; // what an adapter keeps with it
  }
}

/** One invocation: the positions of its parts in the bytes that arrived. */
export class Invocation {
  constructor(stream, data, start, end) {
    const size = end - start;
    if (size < 40) throw new ProtocolError('INVOKE too short');
    this.stream = stream;
    this.data = data;
    this.start = start;
    this.methodEnd = start + 40 + data[start + 29];
    this.pathEnd = this.methodEnd + (data[start + 30] | (data[start + 31] << 8));
    this.queryEnd = this.pathEnd + (data[start + 32] | (data[start + 33] << 8));
    this.headersEnd = this.queryEnd + data.readUInt32LE(start + 36);
    if (this.headersEnd > end || stream === 0) throw new ProtocolError('INVOKE lengths pass its end');
    this.end = end;
    this.incoming = null; // Incoming while the body is not inside this frame
    this.asksSocket = false; // `incoming` is what a WebSocket receives
    this.output = null; // Output once the answer streams
    this.cancelled = false;
    this.done = false;
    this.controller = null;
    this.enteredNs = 0;
    this.next = null; // what makes an answer of what the handler resolves to, see `later`
  }
  /** One call into the runtime for all of it, and a look at what is known. */
  get head() {
    const from = this.start + HEAD_LENGTHS_AT;
    const text = this.data.latin1Slice(from, this.headersEnd);
    if (text === lastText) return lastHead; // quicker than a hash of it
    let head = KNOWN_HEADS.get(text);
    if (head === undefined) {
      head = new Head(text, this.methodEnd - from, this.pathEnd - from, this.queryEnd - from);
      keep(KNOWN_HEADS, text, head);
    }
    lastText = text;
    lastHead = head;
    return head;
  }
  get method() { return this.data.latin1Slice(this.start + 40, this.methodEnd); }
  get path() { return this.data.latin1Slice(this.methodEnd, this.pathEnd); }
  get query() { return this.data.latin1Slice(this.pathEnd, this.queryEnd); }
  get body() { return this.headersEnd === this.end ? NOTHING : this.data.subarray(this.headersEnd, this.end); }
  get trigger() { return TRIGGERS[this.data[this.start + 28]] ?? 'unknown'; }
  get sentNs() { return this.data.readUInt32LE(this.start) + this.data.readUInt32LE(this.start + 4) * 2 ** 32; }
  get deadlineNs() { return this.sentNs + this.data.readUInt32LE(this.start + 24) * 1e6; }
  /** 26 letters: the 128-bit id in Crockford's base 32. */
  get id() {
    let text = '';
    let held = 0;
    let bits = 2; // 26 letters hold two bits more than there are
    for (let at = this.start + 8; at < this.start + 24; at++) {
      held = (held << 8) | this.data[at];
      for (bits += 8; bits >= 5;) {
        bits -= 5;
        text += LETTERS[(held >> bits) & 31];
      }
      held &= (1 << bits) - 1;
    }
    return text;
  }
  pairs() {
    const parts = this.data.latin1Slice(this.queryEnd, this.headersEnd).split('\n');
    const pairs = [];
    for (let i = 0; i + 1 < parts.length; i += 2) pairs.push([parts[i], parts[i + 1]]);
    return pairs;
  }
  header(name) {
    for (const [key, value] of this.pairs()) if (key === name) return value;
    return null;
  }
  get signal() {
    if (!this.controller) {
      this.controller = new AbortController();
      if (this.cancelled) this.controller.abort();
    }
    return this.controller.signal;
  }
}
