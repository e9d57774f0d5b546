// Finds the function that a LOAD frame names, and how it is to be called.
//
// This part imports the code of the function. It does not know the connection.

import fs from 'node:fs';
import path from 'node:path';

import { Context, Event } from './events.mjs';
import { LightRequest } from './fetch.mjs';
import { interpreter } from './interpreter.mjs';
import { CONCURRENCY, ProtocolError } from './wire.mjs';

export function parseLoad(text) {
  let spec;
  try { spec = JSON.parse(text); } catch (error) { throw new ProtocolError(`LOAD: ${error.message}`); }
  for (const name of ['function', 'revision', 'code_dir', 'entry']) {
    if (spec?.[name] === undefined) throw new ProtocolError(`LOAD without ${name}`);
  }
  return spec;
}

function findFile(directory, entry) {
  const [name, exported] = entry.split(':');
  for (const ending of ['', '.mjs', '.js', '.cjs', '.ts', '.mts', '.cts', '.tsx', '.jsx', '/index.mjs', '/index.js']) {
    const file = path.resolve(directory, name + ending);
    if (fs.statSync(file, { throwIfNoEntry: false })?.isFile()) return [fs.realpathSync.native(file), exported];
  }
  throw new Error(`no such file: ${entry}`);
}

export async function loadFunction(worker) {
  const { spec } = worker;
  const variables = spec.env ?? {};
  Object.assign(process.env, variables);
  interpreter.reloadVariables(variables);
  if (spec.packages_dir) interpreter.usePackages(spec.packages_dir);
  const [file, exported] = findFile(spec.code_dir, spec.entry);
  const lack = /\.[mc]?ts$/.test(file) ? interpreter.lacksTypeScript() : null;
  if (lack) throw new Error(`${spec.entry}: ${lack}`);
  worker.file = file;
  if (spec.compat) return loadAdapted(worker, file, exported);
  const loaded = await interpreter.importCode(file);
  const isCommonJs = interpreter.isCommonJs(file, loaded);
  const [shape, handler] = exported ? namedExport(loaded, exported, isCommonJs) : findHandler(loaded, isCommonJs);
  const init = loaded.init ?? loaded.default?.init;
  if (typeof init === 'function') await init(new Context(worker, null));
  worker.limit = spec.concurrency ?? CONCURRENCY;
  worker.call = inTrace(shape === 'fetch' ? callWithRequest(worker, handler) : callWithEvent(worker, handler));
  return shape;
}

/** `fetch(request, ctx)`, or `fetch(request, env, ctx)` for a handler with three parameters. */
function callWithRequest(worker, handler) {
  if (handler.length >= 3) {
    return (invocation) => handler(new LightRequest(invocation), process.env, new Context(worker, invocation));
  }
  return (invocation) => handler(new LightRequest(invocation), new Context(worker, invocation));
}

function callWithEvent(worker, handler) {
  return (invocation) => (invocation.incoming
    ? invocation.incoming.all().then((body) => handler(new Event(invocation, body), new Context(worker, invocation)))
    : handler(new Event(invocation, invocation.body), new Context(worker, invocation)));
}

/** Loads a function written for another platform through its adapter. */
async function loadAdapted(worker, file, exported) {
  const { spec } = worker;
  const adapter = new URL(`./compat/${spec.compat}.mjs`, worker.folder);
  if (!fs.existsSync(adapter)) throw new Error(`there is no adapter for ${spec.compat}`);
  let init = () => {};
  const { load } = await interpreter.importModule(adapter.href);
  const handler = await load(file, exported, spec, (call) => { init = call; });
  await init();
  worker.limit = spec.concurrency ?? CONCURRENCY;
  worker.call = callWithEvent(worker, handler);
  return 'handle';
}

function namedExport(loaded, name, isCommonJs) {
  const value = loaded[name] ?? loaded.default?.[name];
  if (typeof value?.fetch === 'function') return ['fetch', value.fetch.bind(value)];
  if (typeof value !== 'function') throw new Error(`export ${name} is not a function`);
  return [name === 'fetch' || (name === 'default' && !isCommonJs) ? 'fetch' : 'handle', value];
}

const WEB_SOCKETS = /^(async\s*)?(function\s*[\w$]*\s*)?\(\s*ws\s*,\s*clients\s*\)/;

/** [shape, function] of what a module exports. */
function findHandler(loaded, isCommonJs) {
  const standard = loaded.default;
  if (typeof standard?.fetch === 'function') return ['fetch', standard.fetch.bind(standard)];
  if (typeof loaded.fetch === 'function') return ['fetch', loaded.fetch];
  for (const name of ['handle', 'handler']) {
    const value = loaded[name] ?? standard?.[name];
    if (typeof value === 'function') return ['handle', value];
  }
  if (typeof standard === 'function') {
    // This contract of Fission is not supported, so it is refused here and not at each call.
    if (WEB_SOCKETS.test(Function.prototype.toString.call(standard))) throw new Error('functions of WebSockets, (ws, clients), are not offered');
    return [isCommonJs ? 'handle' : 'fetch', standard];
  }
  const others = Object.entries({ ...standard, ...loaded }).filter(([, value]) => typeof value === 'function').map(([name]) => name);
  const cure = others.length ? `; it exports ${others.slice(0, 4).join(', ')}: name one in mote.toml as entry = "FILE:EXPORT", with compat if it was written for another platform` : '';
  throw new Error(`the module exports none of: default { fetch }, default function, fetch, handle, handler${cure}`);
}

/** If the function has set up OpenTelemetry's API (version 1), its spans continue the trace of the call. */
function inTrace(call) {
  const api = globalThis[Symbol.for('opentelemetry.js.api.1')];
  if (!api?.context || !api.propagation) return call;
  const getter = { get: (invocation, name) => invocation.header(name), keys: () => ['traceparent', 'tracestate'] };
  return (invocation) => {
    const context = api.propagation.extract(api.context.active(), invocation, getter);
    return api.context.with(context, call, undefined, invocation);
  };
}
