// What differs between the interpreters that run this worker: Node, and in `mote_bun.mjs` and
// `mote_deno.mjs` the others.
//
// This part knows how an interpreter reads and writes the socket and how it loads modules. It does
// not know frames.

import fs from 'node:fs';
import net from 'node:net';
import nodeModule from 'node:module';
import path from 'node:path';
import { pathToFileURL } from 'node:url';

const READ_BYTES = 256 << 10;

/** The interpreter that runs this code. The members describe Node until `runOn` replaces them. */
export const interpreter = {
  name: 'node',
  version: process.version.slice(1),
  /** Whether `process.hrtime` counts from the same moment as the clock of the engine. */
  hasSystemClock: true,
  /** Whether `node:fs` can write to a socket. */
  writesSockets: true,
  /** Whether `console` writes to `process.stdout` and `process.stderr`. */
  consoleUsesStreams: true,
  /** Makes the interpreter's own ways to write to stdout and stderr use these two as well. */
  captureOwnOutput() {},
  /** Imports the module at a URL. Code that Node has not loaded itself (`mote_start.cjs`) cannot. */
  importModule: (href) => import(href),
  connect: (worker, end, fail) => new NodeLink(worker, end, fail),
  usePackages: useNodePackages,
  importCode: importNodeCode,
  isCommonJs: (file) => nodeModule.Module._cache[file] !== undefined,
  /** Why files of TypeScript cannot be run; null if they can. */
  lacksTypeScript: () => (process.features.typescript ? null
    : `TypeScript needs Node 22.18 or newer (this is ${process.version}); write runtime = "bun" or "deno" in mote.toml, or compile it to JavaScript`),
  reloadVariables(variables) {
    if (variables.NODE_PATH !== undefined) nodeModule.Module._initPaths();
  },
};

/** Replaces members of `interpreter`. */
export function runOn(members) { Object.assign(interpreter, members); }

/** How long another process may look for a mistake. */
const MISTAKE_MS = 3_000;
/** Parses a module and the modules that it names by relative paths. The first mistake ends the process,
 * and Node prints its file and line, and the text of the line. */
const FIND_MISTAKE = `
const fs = require('fs'); const path = require('path'); const { SourceTextModule } = require('vm');
const left = [process.argv[1]];
const seen = new Set();
while (left.length && seen.size < 100) {
  const file = left.shift();
  if (seen.has(file) || !/[.]m?js$/.test(file) || !fs.existsSync(file)) continue;
  seen.add(file);
  const text = fs.readFileSync(file, 'utf8');
  new SourceTextModule(text, { identifier: file });
  for (const [, name] of text.matchAll(/(?:from|import)[ (]*['"]([.][^'"]+)/g)) left.push(path.resolve(path.dirname(file), name));
}`;

/** The same error with its file and line, which Node shows only when an error ends the process. */
function withPlace(error, file) {
  // For CommonJS and for missing exports, the trace begins with the place.
  if (!(error instanceof SyntaxError) || !error.stack.startsWith('SyntaxError')) return error;
  const { spawnSync } = nodeModule.createRequire('/')('node:child_process');
  const options = { env: {}, encoding: 'utf8', stdio: ['ignore', 'ignore', 'pipe'], timeout: MISTAKE_MS };
  const { stderr } = spawnSync(process.execPath, ['--no-warnings', '--experimental-vm-modules', '-e', FIND_MISTAKE, file], options);
  // Without an answer, the error must do without its place.
  const [, where, line, text] = /^(.+):([0-9]+)\n(.*)\n/.exec(stderr ?? '') ?? [];
  if (line !== undefined && stderr.includes(error.message)) {
    error.message = `${error.message} in ${where}, line ${line}: ${text.trim()}`;
    error.stack = `SyntaxError: ${error.message}`;
  }
  return error;
}

/** The connection to the engine. `send` writes what the kernel takes at once and returns how many
 * bytes that were; `write` keeps the rest until the kernel takes it, and calls `done` then. */
class NodeLink {
  constructor(worker, end, fail) {
    this.fd = worker.fd;
    const buffer = Buffer.allocUnsafeSlow(READ_BYTES);
    this.socket = new net.Socket({
      fd: worker.fd, readable: true, writable: true,
      onread: { buffer, callback: (size, data) => { worker.onData(data, size); return true; } },
    });
    this.socket.on('end', end).on('close', end).on('error', fail);
  }
  send(bytes, length) { return interpreter.writesSockets ? sendNow(this.fd, bytes, length) : 0; }
  write(bytes, done) { this.socket.write(bytes, done); }
  end(done) { this.socket.end(done); }
  read() { this.socket.resume(); }
}

/** Writes to a socket without waiting; throws if its peer is gone. */
export function sendNow(fd, bytes, length) {
  try { return fs.writeSync(fd, bytes, 0, length); } catch (error) {
    if (error.code !== 'EAGAIN') throw error;
    return 0;
  }
}

/** Makes packages outside the code's own folder importable. */
function useNodePackages(directory) {
  const root = path.basename(directory) === 'node_modules' ? path.dirname(directory) : directory;
  process.env.NODE_PATH = [path.join(root, 'node_modules'), process.env.NODE_PATH].filter(Boolean).join(path.delimiter);
  nodeModule.Module._initPaths(); // the way `require` learns of NODE_PATH after the start
  const parent = pathToFileURL(path.join(root, 'from-packages.mjs')).href;
  const missing = (error, name) => error.code === 'ERR_MODULE_NOT_FOUND' && !/^[./]|^[a-z]+:/.test(name);
  if (nodeModule.registerHooks) {
    nodeModule.registerHooks({
      resolve(name, context, next) {
        try { return next(name, context); } catch (error) {
          if (!missing(error, name)) throw error;
          return next(name, { ...context, parentURL: parent });
        }
      },
    });
  } else if (nodeModule.register) {
    const source = `export async function resolve(name, context, next) {
      try { return await next(name, context); } catch (error) {
        if (error.code !== 'ERR_MODULE_NOT_FOUND' || /^[./]|^[a-z]+:/.test(name)) throw error;
        return next(name, { ...context, parentURL: ${JSON.stringify(parent)} });
      } }`;
    nodeModule.register(`data:text/javascript,${encodeURIComponent(source)}`);
  }
}

/**
 * Imports a file of the function. Node before 20.19 and 22.12 takes every `.js` without `"type": "module"`
 * for CommonJS; a file that fails for that reason is imported once more as a module, as newer ones do.
 */
async function importNodeCode(file) {
  const { href } = pathToFileURL(file);
  try { return await interpreter.importModule(href); } catch (error) {
    const isModule = error instanceof SyntaxError && /outside a module|Unexpected token 'export'|'import.meta'/.test(error.message);
    if (!isModule || !file.endsWith('.js')) throw withPlace(error, file);
    if (!nodeModule.register) throw new Error(`${error.message}: ${process.version} reads ${path.basename(file)} as CommonJS; call it .mjs`);
    const source = `import fs from 'node:fs';
      export async function load(url, context, next) {
        const own = context.format === 'commonjs' && !url.includes('/node_modules/') && /[.]js([?]|$)/.test(url);
        if (!own || !/^\\s*(import|export)\\b/m.test(fs.readFileSync(new URL(url), 'utf8'))) return next(url, context);
        return next(url, { ...context, format: 'module' });
      }`;
    nodeModule.register(`data:text/javascript,${encodeURIComponent(source)}`);
    return interpreter.importModule(`${href}?module`);
  }
}
