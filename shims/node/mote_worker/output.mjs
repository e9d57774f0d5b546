// The output of a function: every line becomes a LOG frame of its invocation. This part also
// handles ends of the process that the function causes: uncaught exceptions, and `process.exit`.
//
// This part replaces `process.stdout` and `process.stderr`. It does not know how functions are
// called. It only looks up which invocation is running.

import nodeConsole from 'node:console';
import { Writable } from 'node:stream';

import { interpreter } from './interpreter.mjs';

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
  // A function that writes once writes again.
  if (worker.storage === null && worker.running.size) worker.tellApart();
  return worker.untracked;
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

/** Makes `one` the worker to which lines belong. */
export function writeLinesTo(one) { worker = one; }

/** Ends the process for one of the shim's own reasons, which the engine knows. */
export function leave(code) {
  leaving = true;
  process.exit(code);
}

/** Makes `console` write to the two streams. */
function useStreams() {
  let own;
  for (const name of Object.keys(console)) {
    if (typeof console[name] !== 'function' || !(name in nodeConsole.Console.prototype)) continue;
    console[name] = (...args) => (own ??= new nodeConsole.Console(process.stdout, process.stderr))[name](...args);
  }
}

export function captureOutput() {
  for (const [name, source] of [['stdout', 1], ['stderr', 2]]) {
    let stream;
    Object.defineProperty(process, name, { configurable: true, get: () => (stream ??= new LineStream(source)) });
  }
  if (!interpreter.consoleUsesStreams) useStreams();
  interpreter.captureOwnOutput();
  for (const [name, number] of [['debug', 1], ['warn', 3], ['error', 4], ['trace', 4]]) {
    const plain = console[name];
    console[name] = (...args) => {
      level = number;
      try { plain(...args); } finally { level = 2; }
    };
  }
  process.on('unhandledRejection', (reason) => console.error('unhandled rejection:', reason));
  process.on('uncaughtException', (error) => {
    // The code that threw can no longer settle its promises, and it is unknown which invocations
    // would still answer. All of them therefore fail, and a fresh worker takes over.
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
