// The start of the worker, and the calls that are made so that its code gets compiled.

import { installWebClasses } from './fetch.mjs';
import { interpreter, runOn } from './interpreter.mjs';
import { captureOutput, leave, writeLinesTo } from './output.mjs';
import { REHEARSE_MS, rehearse } from './rehearse.mjs';
import { installSystemFacts } from './system.mjs';
import { Kind, VERSION, forgetClock } from './wire.mjs';
import { Worker } from './worker.mjs';

/** Serves the engine on fd 3. `folder` is the URL of where the shim lies, and `members` are those of
 * the interpreter that differ from Node's. */
export function main(folder, members) {
  runOn(members);
  if (!interpreter.hasSystemClock) forgetClock();
  const worker = new Worker(3, folder);
  writeLinesTo(worker);
  captureOutput();
  installWebClasses(() => worker.webSockets());
  installSystemFacts(worker);
  // If the engine has closed the connection, nobody waits for answers.
  worker.link = interpreter.connect(worker, () => leave(0), () => leave(1));
  const hello = Buffer.from(`\0\0${interpreter.name}/${interpreter.version}`);
  hello.writeUInt16LE(VERSION);
  worker.put(Kind.HELLO, 0, 0, hello);
  worker.flush();
  worker.link.read();
  setTimeout(rehearse, REHEARSE_MS, worker).unref();
}

/** Compiles the code that a worker runs before it receives a function, and in its first call. */
export async function runForCompiler(folder, members) {
  runOn(members);
  installWebClasses(() => null);
  installSystemFacts(null);
  await rehearse({ spec: null, folder });
}
