// The start of the worker, and the calls that are made to have its code compiled.

import net from 'node:net';

import { installWebClasses } from './fetch.mjs';
import { importBy } from './importing.mjs';
import { captureOutput, leave, writeLinesTo } from './output.mjs';
import { REHEARSE_MS, rehearse } from './rehearse.mjs';
import { installSystemFacts } from './system.mjs';
import { Kind, OUT_BYTES, VERSION } from './wire.mjs';
import { Worker } from './worker.mjs';

/** Serves the engine on fd 3. `folder` is the URL of where the shim lies, and `load` imports modules
 * where this code cannot. */
export function main(folder, load) {
  if (load) importBy(load);
  const worker = new Worker(3, folder);
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

/** Has the code compiled that a worker runs before it is given a function, and in its first call. */
export async function runForCompiler(folder, load) {
  importBy(load);
  installWebClasses(() => null);
  installSystemFacts(null);
  await rehearse({ spec: null, folder });
}
