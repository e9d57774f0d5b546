// The Node worker of mote: loads one function and answers its invocations over fd 3.
//
// The contract is docs/reference/worker-protocol.md. Standard library only, Node 18 or newer.
// Where to start reading: `main`, then `Worker` in `mote_worker/worker.mjs`.
//
// The parts are in `mote_worker/`, by topic:
//
//     wire, headers               frames, limits, the clock, header blocks
//     invocation, events, fetch   what a function gets and returns
//     bodies                      what does not fit into one frame
//     writer, output, traces      frames to the engine, lines that a function prints, its errors
//     worker, loading, rehearse   the loop, finding the function, and what fills the wait for one
//     system                      what the module `os` says
//     adapters                    what adapters for other platforms may use of all this
//
// A sandbox gets these files as one: the build puts them into this file, because opening several
// makes a cold start slower (see `crates/mote-shims/build.rs`). So the parts share one namespace there.
// A part imports another only with `import { ... } from './NAME.mjs';` at its head, under the same
// name; no two parts define the same name, and all import a module of Node by the same line.

import fs from 'node:fs';
import net from 'node:net';

import { captureOutput, leave, writeLinesTo } from './mote_worker/output.mjs';
import { installWebClasses } from './mote_worker/fetch.mjs';
import { REHEARSE_MS, rehearse } from './mote_worker/rehearse.mjs';
import { installSystemFacts } from './mote_worker/system.mjs';
import { Kind, OUT_BYTES, VERSION } from './mote_worker/wire.mjs';
import { Worker } from './mote_worker/worker.mjs';

export { Prepared, blockOf, headOf, keptBlockOf, later } from './mote_worker/adapters.mjs';

function main() {
  const worker = new Worker(3, new URL('.', import.meta.url).href);
  writeLinesTo(worker);
  captureOutput();
  installWebClasses(() => worker.webSockets());
  installSystemFacts(worker);
  const buffer = Buffer.allocUnsafeSlow(OUT_BYTES);
  worker.socket = new net.Socket({
    fd: 3, readable: true, writable: true,
    onread: { buffer, callback: (size, data) => { worker.onData(data, size); return true; } },
  });
  worker.socket.on('end', () => leave(0)); // the engine closed: nobody waits for answers
  worker.socket.on('close', () => leave(0));
  worker.socket.on('error', () => leave(1));
  const hello = Buffer.from(`\0\0node/${process.version.slice(1)}`);
  hello.writeUInt16LE(VERSION);
  worker.put(Kind.HELLO, 0, 0, hello);
  worker.flush();
  worker.socket.resume();
  setTimeout(rehearse, REHEARSE_MS, worker).unref();
}

if (process.argv[1] && fs.realpathSync(process.argv[1]) === new URL(import.meta.url).pathname) main();
