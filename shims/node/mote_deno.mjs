// Starts the worker on Deno. `mote_shim.mjs` says what the worker is; this file replaces what Deno
// does otherwise than Node.

import process from 'node:process';
import { pathToFileURL } from 'node:url';

import { main } from './mote_worker/main.mjs';

const FIOCLEX = 0x5451n;

/** Keeps a file from the programs that a function starts. Node and Bun do this by themselves. */
function closeInChildren(fd) {
  const symbols = { ioctl: { parameters: ['i32', 'usize', 'usize'], result: 'i32' } };
  for (const name of ['libc.so.6', 'libc.musl-x86_64.so.1', 'libc.musl-aarch64.so.1']) {
    let libc;
    try { libc = Deno.dlopen(name, symbols); } catch { continue; }
    libc.symbols.ioctl(fd, FIOCLEX, 0n);
    return;
  }
  throw new Error('Deno found no C library');
}

/** Lets `Deno.stdout` and `Deno.stderr` write lines of the invocation. */
function captureOwnOutput() {
  for (const name of ['stdout', 'stderr']) {
    const writeSync = (bytes) => {
      process[name].write(bytes);
      return bytes.length;
    };
    let writable;
    Object.defineProperties(Deno[name], {
      writeSync: { value: writeSync },
      write: { value: async (bytes) => writeSync(bytes) },
      writable: { get: () => (writable ??= new WritableStream({ write: writeSync })) },
    });
  }
}

/** Imports a file of the function. Deno's messages advise to run programs that a sandbox does not have. */
async function importCode(file) {
  try { return await import(pathToFileURL(file).href); } catch (error) {
    const [first, ...more] = String(error?.message).split('\n');
    if (!/not a dependency$/.test(first)) throw error;
    error.message = [first, ...more.filter((line) => !line.includes('hint:'))].join('\n');
    throw error;
  }
}

closeInChildren(3);
main(new URL('.', import.meta.url).href, {
  name: 'deno',
  version: Deno.version.deno,
  hasSystemClock: false,
  // Sockets send what the kernel takes before their `write` returns, so nothing is lost at an exit.
  writesSockets: false,
  consoleUsesStreams: false,
  captureOwnOutput,
  importModule: (href) => import(href),
  importCode,
  usePackages() {}, // the sandbox shows them where Deno looks
  lacksTypeScript: () => null,
  reloadVariables() {},
});
