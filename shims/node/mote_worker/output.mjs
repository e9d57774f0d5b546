// What a function prints: every line becomes a LOG frame of its invocation. Also the ends of the
// process that the function causes: exceptions that nobody caught, and `process.exit`.
//
// This part replaces `process.stdout` and `process.stderr`. It does not know how functions are
// called: it looks which invocation runs.

import { AsyncLocalStorage } from 'node:async_hooks';
import { Writable } from 'node:stream';

import { Kind, LINE_MAX, nowNs } from './wire.mjs';

let worker = null;
let leaving = false; // the shim itself ends the process
export const partials = new Map(); // "stream source" to the start of a line
let level = 2;

function currentInvocation() {
  if (!worker) return null;
  if (worker.now) return worker.now;
  const stored = worker.storage?.getStore();
  if (stored) return stored.done ? null : stored;
  if (!worker.storage && worker.running.size) {
    // Following promises costs every invocation; it begins with the first line that needs it.
    worker.storage = new AsyncLocalStorage();
  }
  // That first line: with one invocation running there is no doubt whose it is.
  return worker.running.size === 1 ? worker.running.values().next().value : null;
}

function writeLog(source, text) {
  const stream = currentInvocation()?.stream ?? 0;
  const key = `${stream} ${source}`;
  const lines = ((partials.get(key) ?? '') + text).split('\n');
  const rest = lines.pop();
  partials.delete(key);
  if (rest) partials.set(key, rest.slice(0, LINE_MAX + 1)); // the rest of a longer line is left out
  for (const line of lines) putLog(stream, source, line);
}

function putLog(stream, source, line) {
  const bytes = Buffer.from(line);
  worker.put(Kind.LOG, 0, stream, Buffer.concat([Buffer.of(source, level), bytes.subarray(0, LINE_MAX)]));
  worker.flush(); // at once: a line must not wait for a slow handler or be lost in a crash
}

export function endLines(stream) {
  for (const source of [1, 2]) {
    const key = `${stream} ${source}`;
    const rest = partials.get(key);
    if (rest !== undefined) {
      partials.delete(key);
      putLog(stream, source, rest);
    }
  }
}

class LineStream extends Writable {
  constructor(source) {
    super({ decodeStrings: false });
    this.fd = source;
    this.isTTY = false;
  }
  write(chunk, encoding, callback) {
    writeLog(this.fd, typeof chunk === 'string' ? chunk : Buffer.from(chunk).toString('utf8'));
    const done = typeof encoding === 'function' ? encoding : callback;
    if (done) process.nextTick(done);
    return true;
  }
}

/** Makes `one` the worker that lines belong to. */
export function writeLinesTo(one) { worker = one; }

/** Ends the process for a reason of the shim's own, of which the engine knows. */
export function leave(code) {
  leaving = true;
  process.exit(code);
}

export function captureOutput() {
  for (const [name, source] of [['stdout', 1], ['stderr', 2]]) {
    let stream;
    Object.defineProperty(process, name, { configurable: true, get: () => (stream ??= new LineStream(source)) });
  }
  for (const [name, number] of [['debug', 1], ['warn', 3], ['error', 4], ['trace', 4]]) {
    const plain = console[name];
    console[name] = (...args) => {
      level = number;
      try { plain(...args); } finally { level = 2; }
    };
  }
  process.on('unhandledRejection', (reason) => console.error('unhandled rejection:', reason));
  process.on('uncaughtException', (error) => {
    // The stack that threw is gone and with it whatever it was about to settle: nobody can say
    // which invocations will still answer, so all of them fail and a fresh worker takes over.
    console.error('uncaught exception:', error);
    for (const invocation of worker.running.values()) worker.putError(invocation, error, nowNs());
    worker.putError(null, error); // what was not begun may run elsewhere
    worker.running.clear();
    worker.flush();
    leave(1);
  });
  process.on('exit', (code) => {
    const error = Object.assign(new Error(`the function called process.exit(${code})`), { name: 'Exit' });
    for (const invocation of worker.running.values()) worker.putError(invocation, error, nowNs());
    if (worker.call && !leaving) worker.putError(null, error);
    worker.flush();
  });
}
