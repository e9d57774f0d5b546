// Loads and calls a function of the shim while the worker waits for the real one.

import fs from 'node:fs';
import { fileURLToPath } from 'node:url';

import { sendNow } from './interpreter.mjs';
import { loadFunction, parseLoad } from './loading.mjs';
import { END, HEADER_BYTES, Kind } from './wire.mjs';
import { Worker } from './worker.mjs';

export const REHEARSE_MS = 20; // a worker that is not loaded by then waits

/**
 * Loads and calls a function of our own, for nobody, while the worker waits: what a first load and a
 * first call need is then compiled. Answers go to /dev/null.
 */
export async function rehearse(worker) {
  if (worker.spec) return;
  try {
    const stage = new Worker(-1, worker.folder);
    const nothing = fs.openSync('/dev/null', 'w');
    stage.link = { send: (bytes, length) => sendNow(nothing, bytes, length), write: (_, done) => done() };
    const here = fileURLToPath(worker.folder);
    const frame = Buffer.alloc(HEADER_BYTES + 44);
    frame.writeUInt32LE(44, 0);
    frame.set([Kind.INVOKE, END], 4);
    frame.writeUInt32LE(1, 8);
    frame.set([3, 1], HEADER_BYTES + 29); // lengths of method and path
    frame.write('GET/', HEADER_BYTES + 40);
    for (const entry of ['rehearsal.mjs', 'rehearsal.mjs:handle']) {
      if (worker.spec) break;
      stage.spec = parseLoad(JSON.stringify({ function: '', revision: 0, code_dir: here, entry, env: {} }));
      stage.putJson(Kind.READY, 0, 0, { init_ns: 0, concurrency: 0, shape: await loadFunction(stage) });
      stage.onData(frame, frame.length);
      await new Promise(setImmediate);
      await new Promise(setImmediate);
    }
    fs.closeSync(nothing);
  } catch { /* the first function loads as it would without */ }
}
