// Starts the Node worker with the code that the node has compiled: Node compiles a program at each start.
//
// With `--compile` it makes that code instead: it runs what a worker runs first, and keeps what V8 has
// compiled for it. V8 refuses code of another version of itself; the worker is then compiled as usual.
'use strict';

const fs = require('node:fs');
const Module = require('node:module');
const path = require('node:path');
const url = require('node:url');
const vm = require('node:vm');

const FILE = path.join(__dirname, 'mote_worker.cjs');
const COMPILED = path.join(__dirname, 'mote_worker.compiled');
const folder = url.pathToFileURL(`${__dirname}/`).href;
const importModule = (href) => import(href);

/** The script and what it exports. The adapters, which require it, get the same. */
function load(cachedData) {
  const source = Module.wrap(fs.readFileSync(FILE, 'latin1'));
  const script = new vm.Script(source, { filename: FILE, cachedData });
  const parts = new Module(FILE);
  parts.filename = FILE;
  require.cache[FILE] = parts;
  script.runInThisContext()(parts.exports, Module.createRequire(FILE), parts, FILE, __dirname);
  parts.loaded = true;
  return [script, parts.exports];
}

function compiled() {
  try { return fs.readFileSync(COMPILED); } catch { return undefined; }
}

async function compile() {
  const [script, { runForCompiler }] = load();
  await runForCompiler(folder, importModule);
  const fresh = `${COMPILED}.new`;
  fs.writeFileSync(fresh, script.createCachedData());
  fs.chmodSync(fresh, 0o644);
  fs.renameSync(fresh, COMPILED);
}

if (process.argv[2] === '--compile') compile();
else load(compiled())[1].main(folder, importModule);
