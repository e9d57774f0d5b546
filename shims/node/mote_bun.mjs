// Starts the worker on Bun. `mote_shim.mjs` says what the worker is; this file replaces what Bun
// does otherwise than Node.

import nodeModule from 'node:module';

import { main } from './mote_worker/main.mjs';

/** The connection to the engine over Bun's own sockets, which cost less than those of `node:net`. */
class BunLink {
  constructor(worker, end, fail) {
    this.fd = worker.fd;
    this.socket = null;
    this.queue = []; // of [bytes, what is called once they are written]
    this.ended = null; // what is called once the queue is empty
    Bun.connect({
      fd: worker.fd,
      socket: {
        open: (socket) => { this.socket = socket; this.pump(); },
        data: (_, data) => worker.onData(data, data.length, true),
        drain: () => this.pump(),
        close: end,
        error: fail,
      },
    }).catch(fail);
  }
  send(bytes, length) {
    // Until Bun has opened it, the socket may still block.
    return this.socket === null ? 0 : Math.max(0, this.socket.write(bytes, 0, length));
  }
  write(bytes, done) {
    this.queue.push([bytes, done]);
    this.pump();
  }
  end(done) {
    this.ended = done;
    this.pump();
  }
  read() {}
  pump() {
    if (this.socket === null) return;
    while (this.queue.length) {
      const [bytes, done] = this.queue[0];
      const written = Math.max(0, this.socket.write(bytes));
      if (written < bytes.length) {
        this.queue[0][0] = bytes.subarray(written);
        return;
      }
      this.queue.shift();
      done();
    }
    this.ended?.();
  }
}

/** Lets `Bun.stdout`, `Bun.stderr`, `Bun.write` and `console.write` write lines of the invocation. */
function captureOwnOutput() {
  const streams = new Map();
  const put = (stream, data) => {
    if (typeof data === 'string' || ArrayBuffer.isView(data) || data instanceof ArrayBuffer) {
      const bytes = typeof data === 'string' ? Buffer.from(data) : new Uint8Array(data.buffer ?? data, data.byteOffset ?? 0, data.byteLength);
      stream.write(bytes);
      return bytes.length;
    }
    return new Response(data).bytes().then((bytes) => put(stream, bytes));
  };
  for (const name of ['stdout', 'stderr']) {
    const file = Bun[name];
    streams.set(file, () => process[name]);
    file.write = async (data) => put(process[name], data);
    file.writer = () => ({ write: (data) => put(process[name], data), flush: () => 0, end: () => 0, start() {}, ref() {}, unref() {} });
  }
  const write = Bun.write;
  Bun.write = async (to, data, options) => (streams.has(to) ? put(streams.get(to)(), data) : write(to, data, options));
  console.write = (...parts) => parts.reduce((sum, part) => sum + put(process.stdout, typeof part === 'object' ? part : String(part)), 0);
}

/** Imports a file of the function. Bun names the place of a mistake only in other members. */
async function importCode(file) {
  try { return await import(file); } catch (error) {
    const mistake = error?.errors?.[0] ?? error;
    const { file: where, line, lineText } = mistake?.position ?? {};
    if (!line || mistake.name !== 'BuildMessage') throw error;
    throw new SyntaxError(`${mistake.message} in ${where}, line ${line}: ${lineText.trim()}`, { cause: error });
  }
}

main(new URL('.', import.meta.url).href, {
  name: 'bun',
  version: Bun.version,
  hasSystemClock: false,
  consoleUsesStreams: false,
  captureOwnOutput,
  importModule: (href) => import(href),
  connect: (worker, end, fail) => new BunLink(worker, end, fail),
  usePackages() {}, // the sandbox shows them where Bun looks
  importCode,
  // Bun keeps modules of both kinds in one place: a module of ECMAScript with what an import gives.
  isCommonJs: (file, loaded) => nodeModule.Module._cache[file]?.exports !== loaded,
  lacksTypeScript: () => null,
  reloadVariables() {},
});
