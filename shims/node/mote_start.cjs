// Starts the Node worker with code that was compiled before, because Node would otherwise compile a
// program at each start.
//
// With `--compile`, it makes that code instead: it runs the code that a worker runs first, and
// keeps V8's compiled form of it. V8 refuses code that another version of V8 has compiled. The
// worker is then compiled as usual.
'use strict';

const fs = require('node:fs');
const Module = require('node:module');
const path = require('node:path');
const url = require('node:url');
const vm = require('node:vm');

const FILE = path.join(__dirname, 'mote_worker.cjs');
const COMPILED = path.join(__dirname, 'mote_worker.compiled');
const folder = url.pathToFileURL(`${__dirname}/`).href;
const members = { importModule: (href) => import(href) };

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
  await runForCompiler(folder, members);
  const fresh = `${COMPILED}.new`;
  fs.writeFileSync(fresh, script.createCachedData());
  fs.chmodSync(fresh, 0o644);
  fs.renameSync(fresh, COMPILED);
}

if (process.argv[2] === '--compile') compile();
else load(compiled())[1].main(folder, members);
