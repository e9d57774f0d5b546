// Tests functions of every kind in a real worker process.

import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import fs from 'node:fs';
import http from 'node:http';
import os from 'node:os';
import path from 'node:path';
import { test } from 'node:test';

import { Engine, INTERPRETER } from './engine_double.mjs';
import { rehearse } from './mote_worker/rehearse.mjs';

const SIZES = [0, 1, 64 << 10, (64 << 10) + 1, 5 << 20];

/** A test with a worker for `files` (text of fn.mjs, or names and texts). */
function withWorker(name, files, options, run) {
  test(name, { timeout: 60_000 }, async () => {
    const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'mote-shim-'));
    const { entry, ...rest } = { entry: 'fn.mjs', ...options };
    for (const [file, text] of Object.entries(typeof files === 'string' ? { 'fn.mjs': files } : files)) {
      fs.mkdirSync(path.dirname(path.join(folder, file)), { recursive: true });
      fs.writeFileSync(path.join(folder, file), text);
    }
    const engine = await Engine.open(folder, entry, rest);
    try {
      await run(engine, folder);
    } finally {
      await engine.close();
      fs.rmSync(folder, { recursive: true });
    }
  });
}

function check(frame, status, body, type) {
  assert.equal(frame.kind, 'RESULT', JSON.stringify(frame.json));
  assert.equal(frame.body.toString(), body);
  assert.equal(frame.status, status);
  if (type !== undefined) assert.equal(Object.fromEntries(frame.headers)['content-type'], type);
}

function failed(frame, kind) {
  assert.equal(frame.kind, 'ERROR', frame.body?.toString());
  assert.equal(frame.json.kind, kind, JSON.stringify(frame.json));
  return frame.json;
}

test('a rehearsal, during which a function may load, leaves the working directory alone', async () => {
  const chdir = process.chdir;
  const entered = [];
  process.chdir = (folder) => entered.push(folder);
  try {
    const worker = { spec: undefined, folder: new URL('./', import.meta.url).href };
    await rehearse(worker);
  } finally {
    process.chdir = chdir;
  }
  assert.deepEqual(entered, []);
});

withWorker('the causes of an error are in its trace', `
  class Loop extends Error { constructor() { super('loop'); this.cause = this; } }
  const errors = {
    '/fetch': () => fetch('http://127.0.0.1:1/'),
    '/deep': () => { throw new Error('outer', { cause: new Error('middle', { cause: 'inner' }) }); },
    '/several': () => { throw new AggregateError([new Error('first'), 'second'], 'all'); },
    '/loop': () => { throw new Loop(); },
    '/getter': () => { throw Object.defineProperty(new Error('odd'), 'cause', { get() { throw 1; } }); },
  };
  export default { fetch(request) { return errors[new URL(request.url).pathname](); } };
`, {}, async (engine) => {
  const trace = async (path, kind) => failed(await engine.invoke(path), kind).trace;
  assert.match(await trace('/fetch', 'TypeError'), /fetch failed[^]*caused by Error: (connect ECONNREFUSED|bad port)|Requests to port 1 are blocked|Unable to connect/);
  assert.match(await trace('/deep', 'Error'), /outer[^]*caused by Error: middle[^]*caused by inner$/);
  assert.match(await trace('/several', 'AggregateError'), /all[^]*of Error: first[^]*of second$/);
  assert.equal((await trace('/loop', 'Error')).match(/Error: loop/g).length, 5);
  assert.match(await trace('/getter', 'Error'), /odd/);
});

withWorker('every return value', `
  const values = {
    '/string': () => 'h\\u00e9', '/empty': () => '', '/long': () => '\\u00e9'.repeat(40000), '/buffer': () => Buffer.from([0, 65]),
    '/array-buffer': () => new Uint8Array([66]).buffer, '/object': () => ({ a: '\\u00e9' }), '/array': () => [1, null],
    '/number': () => 7, '/false': () => false, '/undefined': () => undefined, '/null': () => null,
    '/generator': async function* () { yield 'a'; yield Buffer.from('b'); }, '/sync-generator': function* () { yield '1'; yield '2'; },
    '/stream': () => new ReadableStream({ start(c) { c.enqueue('s'); c.enqueue(new Uint8Array([116])); c.close(); } }),
    '/early': async function* () { throw new RangeError('early'); }, '/late': async function* () { yield 'x'; throw new RangeError('late'); },
    '/symbol': () => Symbol('x'), '/function': () => () => 1, '/bigint': () => 1n, '/bad-chunk': function* () { yield 3; },
    '/sync-throw': () => { throw new TypeError('sync'); }, '/reject': () => Promise.reject(new RangeError('async')),
    '/throw-string': () => { throw 'text'; }, '/throw-null': () => { throw null; },
  };
  export default { fetch(request) { return values[new URL(request.url).pathname](); } };
`, {}, async (engine) => {
  assert.deepEqual([engine.ready.json.shape, engine.ready.json.concurrency], ['fetch', 256]);
  check(await engine.invoke('/string'), 200, 'hé', 'text/plain; charset=utf-8');
  check(await engine.invoke('/empty'), 200, '', 'text/plain; charset=utf-8');
  check(await engine.invoke('/long'), 200, 'é'.repeat(40000), 'text/plain; charset=utf-8');
  check(await engine.invoke('/buffer'), 200, '\0A', 'application/octet-stream');
  check(await engine.invoke('/array-buffer'), 200, 'B', 'application/octet-stream');
  check(await engine.invoke('/object'), 200, '{"a":"é"}', 'application/json');
  check(await engine.invoke('/array'), 200, '[1,null]', 'application/json');
  check(await engine.invoke('/number'), 200, '7', 'application/json');
  check(await engine.invoke('/false'), 200, 'false', 'application/json');
  check(await engine.invoke('/undefined'), 204, '');
  check(await engine.invoke('/null'), 204, '');
  check(await engine.invoke('/generator'), 200, 'ab', 'application/octet-stream');
  check(await engine.invoke('/sync-generator'), 200, '12');
  check(await engine.invoke('/stream'), 200, 'st');
  assert.equal(failed(await engine.invoke('/early'), 'RangeError').message, 'early');
  failed(await engine.invoke('/late'), 'RangeError');
  for (const name of ['symbol', 'function', 'bigint', 'bad-chunk']) failed(await engine.invoke(`/${name}`), 'BadReply');
  failed(await engine.invoke('/sync-throw'), 'TypeError');
  const error = failed(await engine.invoke('/reject'), 'RangeError');
  assert.match(error.trace, /fn\.mjs/);
  assert.doesNotMatch(error.trace, /mote_shim/);
  assert.equal(failed(await engine.invoke('/throw-string'), 'String').message, 'text');
  assert.equal((await engine.invoke('/throw-null')).kind, 'ERROR');
  check(await engine.invoke('/string'), 200, 'hé');
});

withWorker('Response keeps to the standard', `
  import assert from 'node:assert';
  class Mine extends Response { constructor(text) { super(text, { status: 203 }); } get extra() { return 1; } }
  const values = {
    '/text': () => new Response('ok'),
    '/bytes': () => { const b = new Uint8Array([65, 66]); const r = new Response(b); b[0] = 90; return r; },
    '/empty': () => new Response(),
    '/204': () => new Response(null, { status: 204 }),
    '/headers': () => new Response('x', { status: 201, headers: { 'X-A': '1', 'Content-Type': 't/y', 'Content-Length': '9', connection: 'close' } }),
    '/pairs': () => new Response('x', { headers: [['set-cookie', 'a=1'], ['set-cookie', 'b=2']] }),
    '/Headers': () => new Response('x', { headers: new Headers({ 'x-b': '2' }) }),
    '/later': () => { const r = new Response('x'); r.headers.set('x-c', '3'); r.headers.append('set-cookie', 'a=1; Expires=Wed, 21 Oct 2037 07:28:00 GMT'); r.headers.append('set-cookie', 'b=2'); return r; },
    '/json': () => Response.json({ a: 1 }, { status: 202 }),
    '/redirect': () => Response.redirect('http://h/x', 303),
    '/params': () => new Response(new URLSearchParams('a=1')),
    '/blob': () => new Response(new Blob(['b'], { type: 't/b' })),
    '/stream': () => new Response(new ReadableStream({ start(c) { c.enqueue(new TextEncoder().encode('st')); c.close(); } })),
    '/mine': () => new Mine('sub'),
    '/clone': () => { const r = new Response('c', { status: 201 }); const c = r.clone(); return c; },
    '/cloned': () => { const r = new Response('c'); r.clone(); return r; },
    '/used': async () => { const r = new Response('u'); await r.text(); return r; },
    '/error': () => Response.error(),
    '/many': () => new Response('x'.repeat(200000)),
    '/checks': async () => {
      const r = new Response('\\u00e9', { status: 404, statusText: 'No' });
      assert(r instanceof Response && !r.ok && r.status === 404 && r.statusText === 'No' && !r.bodyUsed && r.type === 'default');
      assert(Response.redirect('http://h/') instanceof Response && !({} instanceof Response) && !(new Request('http://h/') instanceof Response));
      assert.equal(r.headers.get('content-type'), 'text/plain;charset=UTF-8');
      assert(r.body instanceof ReadableStream && r.headers === r.headers);
      const copy = r.clone();
      assert.equal(await r.text(), '\\u00e9'); assert(r.bodyUsed);
      await assert.rejects(r.text(), TypeError);
      assert.equal((await copy.arrayBuffer()).byteLength, 2);
      assert.equal(new Response().body, null);
      assert.deepEqual(await new Response('{"a":[1]}').json(), { a: [1] });
      assert.deepEqual([...await new Response('ab').bytes()], [97, 98]);
      assert.equal(Object.prototype.toString.call(r), '[object Response]');
      assert.throws(() => new Response('x', { status: 99 }), RangeError);
      assert.throws(() => new Response('x', { status: 204 }), TypeError);
      assert.throws(() => new Response('x', { headers: { 'a b': 'c' } }), TypeError);
      assert.throws(() => new Response('x', { headers: { a: 'b\\nc' } }), TypeError);
      assert.throws(() => Response.json(undefined), TypeError);
      return 'fine';
    },
  };
  export default { async fetch(request) { return values[new URL(request.url).pathname](); } };
`, {}, async (engine) => {
  const headers = (frame) => Object.fromEntries(frame.headers);
  check(await engine.invoke('/checks'), 200, 'fine');
  check(await engine.invoke('/text'), 200, 'ok', 'text/plain;charset=UTF-8');
  check(await engine.invoke('/bytes'), 200, 'AB');
  check(await engine.invoke('/empty'), 200, '');
  check(await engine.invoke('/204'), 204, '');
  let frame = await engine.invoke('/headers');
  check(frame, 201, 'x');
  assert.deepEqual(headers(frame), { 'x-a': '1', 'content-type': 't/y' });
  for (const name of ['/pairs', '/later']) {
    frame = await engine.invoke(name);
    const cookies = frame.headers.filter(([key]) => key === 'set-cookie').map(([, value]) => value.split(';')[0]);
    assert.deepEqual(cookies, ['a=1', 'b=2']);
  }
  assert.equal(headers(frame)['x-c'], '3');
  assert.equal(headers(await engine.invoke('/Headers'))['x-b'], '2');
  check(await engine.invoke('/json'), 202, '{"a":1}', 'application/json');
  frame = await engine.invoke('/redirect');
  assert.deepEqual([frame.status, headers(frame).location], [303, 'http://h/x']);
  check(await engine.invoke('/params'), 200, 'a=1', 'application/x-www-form-urlencoded;charset=UTF-8');
  check(await engine.invoke('/blob'), 200, 'b', 't/b');
  check(await engine.invoke('/stream'), 200, 'st');
  check(await engine.invoke('/mine'), 203, 'sub');
  check(await engine.invoke('/clone'), 201, 'c');
  check(await engine.invoke('/cloned'), 200, 'c');
  check(await engine.invoke('/many'), 200, 'x'.repeat(200000));
  failed(await engine.invoke('/used'), 'BadReply');
  failed(await engine.invoke('/error'), 'BadReply');
});

withWorker('Request keeps to the standard', `
  import assert from 'node:assert';
  export default { async fetch(request, ctx) {
    assert(request instanceof Request);
    assert.equal(request.method, 'PUT');
    assert.equal(request.url, 'http://h:81/a%20b?x=1');
    assert.equal(request.headers.get('X-Twice'), '1, 2');
    assert(request.headers instanceof Headers && request.headers === request.headers);
    assert(request.signal instanceof AbortSignal && !request.signal.aborted);
    assert.equal(request.redirect, 'follow'); assert.equal(request.cache, 'default');
    assert.equal(Object.prototype.toString.call(request), '[object Request]');
    const way = request.headers.get('way');
    const text = '\\ufeff{"a":"\\u00e9"}';
    if (way === 'text') { assert.equal(await request.text(), text.slice(1)); assert(request.bodyUsed); await assert.rejects(request.text(), TypeError); assert.throws(() => request.clone(), TypeError); }
    if (way === 'json') assert.deepEqual(await request.json(), { a: '\\u00e9' });
    if (way === 'bytes') assert.equal(Buffer.from(await request.bytes()).toString(), text);
    if (way === 'buffer') assert.equal(Buffer.from(await request.arrayBuffer()).toString(), text);
    if (way === 'blob') { const b = await request.blob(); assert.equal(b.type, 'text/x'); assert.equal(Buffer.from(await b.arrayBuffer()).toString(), text); }
    if (way === 'stream') { let seen = ''; for await (const c of request.body) seen += Buffer.from(c).toString(); assert.equal(seen, text); assert(request.bodyUsed); }
    if (way === 'reader') { const r = request.body.getReader(); assert(!(await r.read()).done); assert((await r.read()).done); }
    if (way === 'clone') { const c = request.clone(); assert(c instanceof Request); assert.equal(await c.text(), text.slice(1)); assert.equal(await request.text(), text.slice(1)); }
    if (way === 'new') { const c = new Request(request); assert(c instanceof Request); assert.equal(c.url, request.url); assert.equal(await c.text(), text.slice(1)); }
    if (way === 'new2') { const c = new Request(request, { method: 'POST', body: 'other' }); assert.equal(await c.text(), 'other'); }
    assert.deepEqual([ctx.function, ctx.revision, ctx.trigger, ctx.cancelled, ctx.id.length], ['fn', 3, 'http', false, 26]);
    assert(ctx.remainingMs() >= 0);
    return way;
  } };
`, {}, async (engine) => {
  for (const way of ['text', 'json', 'bytes', 'buffer', 'blob', 'stream', 'reader', 'clone', 'new', 'new2']) {
    const frame = await engine.invoke('/a%20b', '\ufeff{"a":"é"}', {
      method: 'PUT', query: 'x=1', headers: [['host', 'h:81'], ['content-type', 'text/x'], ['x-twice', '1'], ['x-twice', '2'], ['way', way]] });
    check(frame, 200, way);
  }
});

withWorker('Headers of a request behave as those of the platform', `
  import assert from 'node:assert';
  import { inspect } from 'node:util';
  const outcome = (run) => { try { return run(); } catch (error) { return error.constructor.name; } };
  const steps = [
    (h) => [...h], (h) => [...h.keys()], (h) => [...h.values()], (h) => [...h.entries()], (h) => h.getSetCookie(),
    (h) => h.get('X-TWICE'), (h) => h.get('cookie'), (h) => h.get('set-cookie'), (h) => h.get('none'), (h) => h.get('bad name'),
    (h) => h.has('Cookie'), (h) => h.has('none'), (h) => h.has('set-cookie'), (h) => h.set('B', '\\t 2 '), (h) => h.append('b', 3),
    (h) => h.append('Set-Cookie', 'c=3'), (h) => h.getSetCookie(), (h) => h.set('a', 'x\\ny'), (h) => h.set('a', '\\u0100'), (h) => h.append('a b', 'x'),
    (h) => h.delete('X-Twice'), (h) => h.delete('none'), (h) => h.delete(''), (h) => h.get('b'), (h) => [...h],
    (h) => h.set('set-cookie', 'd'), (h) => [...h], (h) => h.delete('set-cookie'), (h) => h.getSetCookie(), (h) => h.forEach(1),
    (h) => { const seen = []; h.forEach(function (value, name, all) { seen.push(this.me, value, name, all === h); }, { me: 1 }); return seen; },
    (h) => Object.prototype.toString.call(h), (h) => [...new Headers(h)],
    (h) => [...new Request('http://h/', { headers: h }).headers],
  ];
  export default { fetch(request) {
    const light = request.headers;
    const real = new Headers([...light]);
    assert(real.constructor !== light.constructor && light instanceof Headers);
    // The fields of Bun's own class are not sorted, and it names other errors.
    if (!process.versions.bun) {
      for (const step of steps) assert.deepEqual(outcome(() => step(light)), outcome(() => step(real)), String(step));
    } else for (const step of steps) outcome(() => step(light));
    assert.match(inspect(light), /^Headers \\{/);
    assert.equal(new Request(request).headers.get('b'), '2, 3');
    return 'same';
  } };
`, {}, async (engine) => {
  const headers = [['x-twice', '1'], ['x-twice', '2'], ['cookie', 'a=1'], ['cookie', 'b=2'], ['set-cookie', 'a=1'], ['set-cookie', 'b=2'], ['a', '']];
  check(await engine.invoke('/', '', { headers }), 200, 'same');
});

withWorker('a Response keeps what is done to its headers', `
  const made = (way) => {
    const response = new Response('{}', { headers: { 'content-type': 'application/json', 'x-a': '1' } });
    response.headers.set('x-a', '2');
    response.headers.append('set-cookie', 'a=1');
    response.headers.append('set-cookie', 'b=2');
    if (way === 'deleted') response.headers.delete('content-type');
    if (way === 'copied') return response.clone();
    if (way === 'late') { void response.body; response.headers.set('x-a', '3'); return response; }
    if (way === 'both') { void response.body; response.headers.set('x-a', '3'); return response.clone(); }
    if (way === 'passed on') return new Response(response.body, response);
    if (way === 'text') { const text = new Response('x'); text.headers.set('x-a', text.headers.get('content-type')); return text; }
    return response;
  };
  export default { fetch(request) { return made(decodeURIComponent(new URL(request.url).pathname.slice(1))); } };
`, {}, async (engine) => {
  const json = ['content-type', 'application/json'];
  const cookies = [['set-cookie', 'a=1'], ['set-cookie', 'b=2']];
  for (const [way, expected] of [
    ['plain', [json, ...cookies, ['x-a', '2']]],
    ['deleted', [...cookies, ['x-a', '2']]],
    ['copied', [json, ...cookies, ['x-a', '2']]],
    ['late', [json, ...cookies, ['x-a', '3']]],
    ['both', [json, ...cookies, ['x-a', '3']]],
    ['passed on', [json, ...cookies, ['x-a', '2']]],
    ['text', [['content-type', 'text/plain;charset=UTF-8'], ['x-a', 'text/plain;charset=UTF-8']]],
  ]) {
    const frame = await engine.invoke(`/${encodeURIComponent(way)}`);
    assert.equal(frame.kind, 'RESULT', `${way}: ${JSON.stringify(frame.json)}`);
    assert.deepEqual(frame.headers.sort(), expected, way); // Bun's own class does not sort them
  }
});

// From version 22 on, looking at a property of the global object loads the classes behind it, so
// the classes exist before a function runs.
const loadsLate = Number(process.versions.node.split('.')[0]) < 22;

if (INTERPRETER === 'node') withWorker('the classes of the platform are loaded when a function needs them', `
  const loaded = () => process.moduleLoadList.some((name) => name.includes('deps/undici'));
  const ways = {
    '/text': () => new Response('x'),
    '/fields': (request) => new Response(request.headers.get('a'), { status: 201, headers: { 'x-a': 'b' } }),
    '/check': (request) => [new Response('x') instanceof Response, ({}) instanceof Response],
    '/json': () => ({ a: 1 }),
    '/body': async (request) => (await request.json()).a,
    '/Request': (request) => request instanceof Request,
  };
  export default { async fetch(request) {
    const before = loaded();
    await ways[new URL(request.url).pathname](request);
    return [before, loaded()];
  } };
`, {}, async (engine) => {
  for (const way of ['text', 'fields', 'check', 'json', 'body']) {
    check(await engine.invoke(`/${way}`, '{"a":1}', { headers: [['a', 'b']] }), 200, loadsLate ? '[false,false]' : '[true,true]');
  }
  check(await engine.invoke('/Request'), 200, loadsLate ? '[false,true]' : '[true,true]');
  check(await engine.invoke('/text'), 200, '[true,true]');
});

withWorker('form data', `
  export default { async fetch(request) { const form = await request.formData(); return [form.get('a'), form.get('b')]; } };
`, {}, async (engine) => {
  const frame = await engine.invoke('/', 'a=1&b=%C3%A9', { headers: [['content-type', 'application/x-www-form-urlencoded']] });
  check(frame, 200, '["1","é"]');
});

for (const [name, code, entry] of [
  ['bytes', 'export default { async fetch(request) { return request.bytes(); } };'],
  ['Response of a stream', 'export default { async fetch(request) { return new Response(request.body); } };'],
  ['for await', 'export default { async *fetch(request) { if (request.body) for await (const chunk of request.body) yield chunk; } };'],
  ['event', 'export function handle(event) { return event.body; }'],
  ['CommonJS', 'module.exports = async (event, ctx) => event.body;', 'fn.cjs'],
]) {
  withWorker(`bodies of every size: ${name}`, { [entry ?? 'fn.mjs']: code }, { entry: entry ?? 'fn.mjs' }, async (engine) => {
    for (const size of SIZES) {
      const body = randomBytes(size);
      const frame = await engine.invoke('/', body);
      assert.equal(frame.kind, 'RESULT', JSON.stringify(frame.json));
      assert.ok(frame.body.equals(body), `${size} bytes`);
    }
  });
}

withWorker('events', `
  import assert from 'node:assert';
  export function handle(event, ctx) {
    assert.deepEqual(event.json(), { a: 1 }); assert.equal(event.text(), '{"a":1}'); assert(Buffer.isBuffer(event.body));
    assert.deepEqual([event.method, event.path, event.query, event.trigger, event.id], ['POST', '/p', 'x=1', 'coap', '0000000000000000000000000Z']);
    assert.deepEqual({ ...event.headers }, { host: 'h', a: '1, 2' }); assert.equal(event.args.x, '1');
    return 'fine';
  }
`, {}, async (engine) => {
  assert.equal(engine.ready.json.shape, 'handle');
  check(await engine.invoke('/p', '{"a":1}', { query: 'x=1', trigger: 2, id: 31, headers: [['host', 'h'], ['a', '1'], ['a', '2']] }), 200, 'fine');
});

withWorker('callers', `
  export function handle(event, ctx) { return [event.caller, ctx.caller]; }
`, {}, async (engine) => {
  check(await engine.invoke('/', '', { headers: [['mote-caller', 'web']] }), 200, '["web","web"]');
  check(await engine.invoke('/', ''), 200, '[null,null]');
});

withWorker('parameters of routes', `
  export function handle(event, ctx) { return [event.params, ctx.params]; }
`, {}, async (engine) => {
  const headers = [['mote-params', 'id=a%20b%2Bc&rest=x/%C3%A9&none=']];
  const params = '{"id":"a b+c","rest":"x/é","none":""}';
  check(await engine.invoke('/', '', { headers }), 200, `[${params},${params}]`);
  check(await engine.invoke('/', ''), 200, '[{},{}]');
});

for (const [name, files, entry, shape] of [
  ['default function', { 'fn.mjs': 'export default (request, ctx) => new Response(request.url.slice(-1) + ctx.function)' }, 'fn.mjs', 'fetch'],
  ['export fetch', { 'fn.mjs': 'export const fetch = (request, ctx) => `/${ctx.function}`' }, 'fn.mjs', 'fetch'],
  ['module.exports fetch', { 'fn.cjs': 'module.exports = { fetch: () => "/fn" }' }, 'fn.cjs', 'fetch'],
  ['module.exports function', { 'fn.js': 'module.exports = (event, ctx) => event.path + ctx.function' }, 'fn.js', 'handle'],
  ['exports.handle', { 'fn.js': 'exports.handle = (event, ctx) => event.path + ctx.function' }, 'fn.js', 'handle'],
  ['named export', { 'fn.mjs': 'export const other = (event, ctx) => event.path + ctx.function' }, 'fn.mjs:other', 'handle'],
  ['a class instance', { 'fn.mjs': 'class A { x = "/fn"; fetch() { return this.x; } } export default new A()' }, 'fn.mjs', 'fetch'],
  ['no ending', { 'fn.mjs': 'export default () => "/fn"' }, 'fn', 'fetch'],
  ['a folder', { 'src/index.mjs': 'export default () => "/fn"' }, 'src', 'fetch'],
]) {
  withWorker(`entry: ${name}`, files, { entry }, async (engine) => {
    assert.equal(engine.ready.json.shape, shape, JSON.stringify(engine.ready.json));
    check(await engine.invoke('/'), 200, '/fn');
  });
}

withWorker('init, environment and directory', `
  import fs from 'node:fs';
  let seen;
  export async function init(ctx) { await null; seen = [ctx.function, ctx.remainingMs(), process.env.UNIT, fs.existsSync('fn.mjs')]; console.log('initialised'); }
  export default () => Response.json(seen);
`, { env: { UNIT: 'C' } }, async (engine) => {
  check(await engine.invoke(), 200, '["fn",null,"C",true]');
  assert.deepEqual(engine.logs.map((log) => [log.stream, log.text]), [[0, 'initialised']]);
});

const MEMORY = 900 << 20;

withWorker('the memory of the machine is that of the function', `
  import os, { freemem, totalmem } from 'node:os';
  export default () => {
    const deno = globalThis.Deno?.systemMemoryInfo();
    const total = [totalmem(), os.totalmem(), process.constrainedMemory?.(), deno?.total];
    const free = [freemem(), os.freemem(), process.availableMemory?.(), deno?.free, deno?.available];
    const known = (values) => values.filter((value) => value !== undefined);
    return { total: [...new Set(known(total))], free: known(free).every((bytes) => bytes > 0 && bytes < ${MEMORY}) };
  };
`, { memory_bytes: MEMORY }, async (engine) => {
  check(await engine.invoke(), 200, `{"total":[${MEMORY}],"free":true}`);
});

test('packages outside the code folder', { timeout: 60_000 }, async () => {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'mote-shim-'));
  const write = (file, text) => {
    fs.mkdirSync(path.dirname(path.join(folder, file)), { recursive: true });
    fs.writeFileSync(path.join(folder, file), text);
  };
  write('packages/node_modules/dep/package.json', '{"name":"dep","type":"module","exports":"./main.js"}');
  write('packages/node_modules/dep/main.js', 'export default "packaged"');
  write('packages/node_modules/old/index.js', 'module.exports = "required"');
  // As in a sandbox, where other interpreters than Node find them in this way.
  if (INTERPRETER !== 'node') fs.symlinkSync('packages/node_modules', path.join(folder, 'node_modules'));
  write('code/fn.mjs', 'import dep from "dep"; export default () => dep');
  write('code/fn.cjs', 'const old = require("old"); module.exports = () => old');
  for (const [entry, body] of [['fn.mjs', 'packaged'], ['fn.cjs', 'required']]) {
    const engine = await Engine.open(path.join(folder, 'code'), entry, { packages: path.join(folder, 'packages') });
    assert.equal(engine.ready.kind, 'READY', JSON.stringify(engine.ready.json));
    check(await engine.invoke(), 200, body);
    await engine.close();
  }
  fs.rmSync(folder, { recursive: true });
});

// Debian 12 has Node 18, which does not look for `export` in a file that may be CommonJS.
test('modules with the ending .js in an older Node', { timeout: 60_000 }, async () => {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'mote-shim-'));
  fs.writeFileSync(path.join(folder, 'fn.js'), 'import { a } from "./a.js"; import b from "./b.js"; export default () => a + b');
  fs.writeFileSync(path.join(folder, 'a.js'), 'export const a = "module and "');
  fs.writeFileSync(path.join(folder, 'b.js'), 'module.exports = "CommonJS"');
  const former = process.env.NODE_OPTIONS;
  const newer = ['--no-experimental-detect-module', '--no-experimental-require-module'];
  process.env.NODE_OPTIONS = newer.filter((flag) => process.allowedNodeEnvironmentFlags.has(flag)).join(' ');
  try {
    const engine = await Engine.open(folder, 'fn.js');
    assert.equal(engine.ready.kind, 'READY', JSON.stringify(engine.ready.json));
    check(await engine.invoke(), 200, 'module and CommonJS');
    await engine.close();
  } finally {
    if (former === undefined) delete process.env.NODE_OPTIONS; else process.env.NODE_OPTIONS = former;
  }
  fs.rmSync(folder, { recursive: true });
});

for (const [name, files, entry, message] of [
  ['missing file', {}, 'nowhere.mjs', /no such file/],
  ['syntax', { 'fn.mjs': 'export default {' }, 'fn.mjs', /Unexpected|Expected identifier/],
  ['syntax with its place', { 'fn.mjs': "import './lib/a.mjs';\nexport default () => 1", 'lib/a.mjs': 'export const a = 1;\nexprt const b = 2;\n' },
    'fn.mjs', /lib\/a\.mjs(, line 2: exprt const b = 2|:2:7)/],
  ['no handler', { 'fn.mjs': 'export const x = 1' }, 'fn.mjs', /exports none of.*handler$/],
  ['another export', { 'fn.cjs': 'exports.work = () => 1; exports.x = 1' }, 'fn.cjs', /it exports work: name one in mote.toml/],
  ['a socket', { 'fn.cjs': 'module.exports = async function (ws, clients) {}' }, 'fn.cjs', /WebSockets.* are not offered/],
  ['missing import', { 'fn.mjs': 'import "nowhere-at-all"; export default () => 1' }, 'fn.mjs', /nowhere-at-all/],
  ['init fails', { 'fn.mjs': 'export function init() { throw new Error("no disk") } export default () => 1' }, 'fn.mjs', /no disk/],
  ['thrown at import', { 'fn.mjs': 'throw new Error("at import")' }, 'fn.mjs', /at import/],
]) {
  withWorker(`load error: ${name}`, files, { entry }, async (engine) => {
    assert.deepEqual([engine.ready.kind, engine.ready.stream], ['ERROR', 0]);
    assert.match(engine.ready.json.message, message);
    assert.equal(await engine.exited, 1);
  });
}

withWorker('TypeScript, or why not', { 'fn.ts': 'export default (request: Request): string => "typed"' }, { entry: 'fn.ts' }, async (engine) => {
  if (INTERPRETER !== 'node' || process.features.typescript) check(await engine.invoke(), 200, 'typed');
  else assert.match(engine.ready.json.message, /TypeScript needs Node 22\.18/);
});

withWorker('lines carry their invocation', `
  import fs from 'node:fs';
  const gates = {};
  export default { async fetch(request) {
    const name = new URL(request.url).pathname;
    if (name === '/open') { for (const open of Object.values(gates)) open(); return 'opened'; }
    if (name === '/levels') {
      console.log('out %d', 1); console.error('err'); console.warn('warn'); console.debug('debug');
      process.stdout.write('a'); process.stdout.write('b\\nc'); fs.writeSync(1, 'direct\\n'); console.log('x'.repeat(20000));
      return 'done';
    }
    if (name === '/first') { await null; console.log('first'); return 'ok'; }
    await new Promise((open) => { gates[name] = open; });
    console.log(name);
    return 'done';
  } };
`, {}, async (engine) => {
  check(await engine.invoke('/levels'), 200, 'done');
  const seen = engine.logs.map((log) => [log.source, log.level, log.text]);
  for (const line of [[1, 2, 'out 1'], [2, 4, 'err'], [2, 3, 'warn'], [1, 1, 'debug'], [1, 2, 'ab']]) {
    assert.ok(seen.some((one) => JSON.stringify(one) === JSON.stringify(line)), `${line} in ${JSON.stringify(seen).slice(0, 500)}`);
  }
  assert.ok(engine.logs.every((log) => log.stream === 2 && log.text.length <= 16384));
  assert.deepEqual(engine.logs.filter((log) => /^c?x+$/.test(log.text)).map((log) => log.text.length), [16384]);
  engine.logs.length = 0;
  check(await engine.invoke('/first'), 200, 'ok'); // after an await, alone: no doubt whose it is
  engine.send(...[11, 12, 13].map((stream) => ({ kind: 'INVOKE', stream, end: true, path: stream === 13 ? '/open' : `/${stream}` })));
  for (let i = 0; i < 3; i++) await engine.read();
  assert.deepEqual(engine.logs.map((log) => [log.stream, log.text]).sort(), [[11, '/11'], [12, '/12'], [3, 'first']]);
  engine.send({ kind: 'DRAIN', stream: 0 });
  assert.equal(await engine.exited, 0);
  assert.equal(engine.stdout, 'direct\n');
});

// In the order in which they are answered. The first of them began when no other one ran.
const AT_ONCE = [21, 22, 23, 24];

for (const [way, code] of Object.entries({
  'an await': 'console.log(name); return name;',
  'a timer': 'await new Promise((done) => setTimeout(done)); console.log(name); return name;',
  'an immediate': 'await new Promise((done) => setImmediate(done)); console.error(name); return name;',
  'a tick': 'await new Promise((done) => process.nextTick(done)); console.log(name); return name;',
  'a body': 'await request.text(); process.stdout.write(name); return name;',
  'a file': 'await stat("."); console.log(name); return name;',
  'a generator': 'return (function* () { console.log(name); yield name; })();',
  'an async generator': 'return (async function* () { await null; console.log(name); yield name; })();',
  'a stream': 'return new Response(new ReadableStream({ async pull(to) { await null; console.log(name); to.enqueue(new TextEncoder().encode(name)); to.close(); } }));',
  'toJSON': 'return { toJSON() { console.log(name); return name; } };',
  'an error': 'console.log(name); throw new Error(name);',
})) {
  withWorker(`lines of calls that run at once, after ${way}`, `
    import { setImmediate } from 'node:timers';
    import { stat } from 'node:fs/promises';
    const gates = [];
    export default { async fetch(request) {
      const name = new URL(request.url).pathname.slice(1);
      if (name === 'open') { for (const open of gates) open(); return 'opened'; }
      await new Promise((open) => gates.push(open));
      ${code}
    } };
  `, {}, async (engine) => {
    engine.send(...AT_ONCE.map((stream) => ({ kind: 'INVOKE', stream, end: true, path: `/${stream}` })));
    engine.send({ kind: 'INVOKE', stream: 30, end: true, path: '/open' });
    const seen = [];
    for (const open = new Set([...AT_ONCE, 30]); open.size;) {
      const frame = await engine.read(true);
      if (frame.kind === 'LOG') {
        assert.ok(open.has(frame.stream), `a line after the end of ${frame.stream}: ${frame.text}`);
        seen.push([frame.stream, frame.text]);
      } else if (frame.end) open.delete(frame.stream);
    }
    assert.deepEqual(seen.sort(), AT_ONCE.map((stream) => [stream, `${stream}`]));
  });
}

const OWN_WAYS = {
  bun: `
    await Bun.write(Bun.stdout, 'file\\n'); await Bun.stdout.write(new TextEncoder().encode('bytes\\n'));
    await Bun.write(Bun.stdout, new Blob(['blob\\n'])); const out = Bun.stdout.writer(); out.write('wri'); out.write('ter\\n'); await out.flush();
    console.write('con', 'sole\\n'); await Bun.write(Bun.stderr, 'wrong\\n');
    await Bun.write('/dev/null', 'elsewhere\\n');
  `,
  deno: `
    const bytes = (text) => new TextEncoder().encode(text);
    await Deno.stdout.write(bytes('file\\n')); Deno.stdout.writeSync(bytes('bytes\\n'));
    await new Blob(['blob\\n']).stream().pipeTo(Deno.stdout.writable, { preventClose: true });
    const out = Deno.stdout.writable.getWriter(); await out.write(bytes('writer\\n')); out.releaseLock();
    console.log('console'); Deno.stderr.writeSync(bytes('wrong\\n'));
  `,
};

if (OWN_WAYS[INTERPRETER]) withWorker('what is written in the own ways of the interpreter becomes lines of the call', `
  export default async () => { ${OWN_WAYS[INTERPRETER]} return 'done'; };
`, {}, async (engine) => {
  check(await engine.invoke(), 200, 'done');
  assert.deepEqual(engine.logs.map((log) => [log.stream, log.source, log.text]), [
    ...['file', 'bytes', 'blob', 'writer', 'console'].map((text) => [2, 1, text]), [2, 2, 'wrong']]);
  assert.equal(engine.stdout, '');
});

withWorker('lines of nobody while calls run', `
  const gates = [];
  let tick;
  setImmediate(function wait() { if (tick) { console.log('module'); tick(); tick = null; } setImmediate(wait); });
  export default { async fetch(request, ctx) {
    const name = new URL(request.url).pathname;
    if (name === '/open') { for (const open of gates) open(); return 'opened'; }
    if (name === '/tick') return new Promise((done) => { tick = () => done('ticked'); });
    await new Promise((open) => gates.push(open));
    ctx.waitUntil(new Promise((open) => gates.push(open)).then(() => console.log('afterwards')));
    return 'done';
  } };
`, {}, async (engine) => {
  engine.send(...[21, 22].map((stream) => ({ kind: 'INVOKE', stream, end: true, path: '/wait' })));
  engine.send({ kind: 'INVOKE', stream: 23, end: true, path: '/open' });
  for (let i = 0; i < 3; i++) await engine.read();
  engine.send({ kind: 'INVOKE', stream: 24, end: true, path: '/tick' });
  await engine.read();
  engine.send({ kind: 'INVOKE', stream: 25, end: true, path: '/wait' }, { kind: 'INVOKE', stream: 26, end: true, path: '/open' });
  for (let i = 0; i < 2; i++) await engine.read();
  assert.deepEqual(engine.logs.map((log) => [log.stream, log.text]), [[0, 'module'], [0, 'afterwards'], [0, 'afterwards']]);
});

withWorker('children do not inherit the connection', `
  import { execFileSync } from 'node:child_process';
  export default () => execFileSync('/bin/sh', ['-c', 'readlink /proc/self/fd/3 || echo none']).toString();
`, {}, async (engine) => check(await engine.invoke(), 200, 'none\n'));

withWorker('cancel reaches the signal, streams and uploads', `
  let closed = false;
  export default { async fetch(request, ctx) {
    switch (new URL(request.url).pathname) {
      case '/signal': return new Promise((_, reject) => request.signal.addEventListener('abort', () => reject(request.signal.reason)));
      case '/late': return new Promise((resolve) => ctx.signal.addEventListener('abort', () => resolve(String(ctx.cancelled))));
      case '/upload': return request.text();
      case '/stream': return (async function* () { try { for (;;) yield Buffer.alloc(65536); } finally { closed = true; } })();
      default: return String(closed);
    }
  } };
`, {}, async (engine) => {
  const begin = (stream, where, end = true) => engine.send({ kind: 'INVOKE', stream, end, path: where });
  const cancel = async (stream) => {
    engine.send({ kind: 'CANCEL', stream });
    return engine.read();
  };
  begin(31, '/signal');
  failed(await cancel(31), 'Cancelled');
  begin(32, '/late');
  check(await cancel(32), 200, 'true');
  begin(33, '/upload', false);
  failed(await cancel(33), 'Cancelled');
  begin(34, '/stream');
  for (let seen = 0; seen < 320 << 10;) {
    const frame = await engine.read();
    seen += (frame.body ?? frame.payload).length;
  }
  failed(await cancel(34), 'Cancelled');
  check(await engine.invoke('/closed'), 200, 'true');
  assert.deepEqual(engine.alive.slice(0, 3), [31, 32, 33]);
});

withWorker('answers of fetch are passed on', `
  export default { fetch(request) { return fetch(request.headers.get('target'), { headers: { 'x-from': 'fn' } }); } };
`, {}, async (engine) => {
  const server = http.createServer((request, response) => {
    response.writeHead(203, { 'x-seen': request.headers['x-from'], 'content-type': 't/z' });
    response.end('y'.repeat(100000));
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  const frame = await engine.invoke('/', '', { method: 'GET', headers: [['target', `http://127.0.0.1:${server.address().port}/`]] });
  server.close();
  server.closeAllConnections();
  check(frame, 203, 'y'.repeat(100000), 't/z');
  assert.equal(Object.fromEntries(frame.headers)['x-seen'], 'fn');
});

withWorker('a request can be sent on', `
  export default { fetch(request) { return fetch(new Request('http://127.0.0.1:' + new URL(request.url).port + '/', request)); } };
`, {}, async (engine) => {
  const server = http.createServer((request, response) => request.pipe(response));
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  const frame = await engine.invoke('/', 'sent on', { headers: [['host', `h:${server.address().port}`]] });
  server.close();
  server.closeAllConnections();
  check(frame, 200, 'sent on');
});

withWorker('unhandled rejections are logged, the worker lives on', `
  export default () => { Promise.reject(new Error('forgotten')); return 'ok'; };
`, {}, async (engine) => {
  check(await engine.invoke(), 200, 'ok');
  check(await engine.invoke(), 200, 'ok');
  assert.ok(engine.logs.some((log) => log.text.includes('forgotten') && log.level === 4));
});

withWorker('uncaught exceptions and process.exit end every stream and the worker', `
  export default (request) => new Promise(() => {
    if (request.url.endsWith('/throw')) setImmediate(() => { throw new RangeError('loose'); });
    if (request.url.endsWith('/exit')) setImmediate(() => process.exit(7));
  });
`, {}, async (engine, folder) => {
  engine.send(...['/wait', '/throw'].map((where, i) => ({ kind: 'INVOKE', stream: i + 1, end: true, path: where })));
  assert.deepEqual([(await engine.read()).stream, (await engine.read()).stream], [1, 2]);
  assert.equal(await engine.exited, 1);
  const second = await Engine.open(folder, 'fn.mjs');
  failed(await second.invoke('/exit'), 'Exit');
  assert.equal(await second.exited, 7);
});

withWorker('a worker that ends says so and leaves what it has not begun', `
  export default (request) => new Promise(() => {
    if (request.url.endsWith('/throw')) setImmediate(() => { throw new RangeError('loose'); });
    if (request.url.endsWith('/exit')) setImmediate(() => process.exit(7));
  });
`, { concurrency: 1 }, async (engine, folder) => {
  for (const [worker, where, kind, code] of [[engine, '/throw', 'RangeError', 1], [await Engine.open(folder, 'fn.mjs', { concurrency: 1 }), '/exit', 'Exit', 7]]) {
    worker.send(...[where, '/next'].map((path, i) => ({ kind: 'INVOKE', stream: i + 1, end: true, path })));
    for (const stream of [1, 0]) {
      const frame = await worker.read();
      assert.deepEqual([frame.kind, frame.stream, frame.json.kind], ['ERROR', stream, kind]);
    }
    assert.equal(await worker.exited, code);
    await assert.rejects(worker.read());
  }
});

withWorker('a drained worker does not say that it failed', 'export default () => "x"', {}, async (engine) => {
  engine.send({ kind: 'DRAIN', stream: 0 });
  assert.equal(await engine.exited, 0);
  await assert.rejects(engine.read());
});

withWorker('concurrency is honoured', `
  let running = 0, most = 0;
  export default async (request) => {
    most = Math.max(most, ++running);
    await new Promise(setImmediate);
    running--;
    return String(most);
  };
`, { concurrency: 3 }, async (engine) => {
  assert.equal(engine.ready.json.concurrency, 3);
  engine.send(...Array.from({ length: 20 }, (_, i) => ({ kind: 'INVOKE', stream: i + 1, end: true })));
  let last;
  for (let i = 0; i < 20; i++) last = await engine.read();
  check(last, 200, '3');
});

withWorker('thousands that wait behind a synchronous handler', `
  let first = true;
  export default (request) => { if (!first) return 'x'; first = false; return new Promise((resolve) => setImmediate(() => resolve('x'))); };
`, { concurrency: 1 }, async (engine) => {
  engine.send(...Array.from({ length: 20000 }, (_, i) => ({ kind: 'INVOKE', stream: i + 1, end: true })));
  for (let i = 0; i < 20000; i++) check(await engine.read(), 200, 'x');
});

withWorker('waitUntil holds a drain', `
  export default (request, ctx) => { ctx.waitUntil(new Promise((resolve) => setImmediate(() => { console.log('background'); resolve(); }))); return 'ok'; };
`, {}, async (engine) => {
  engine.send({ kind: 'INVOKE', stream: 1, end: true }, { kind: 'DRAIN', stream: 0 });
  check(await engine.read(), 200, 'ok');
  assert.equal(await engine.exited, 0);
  await assert.rejects(engine.read());
  assert.equal(engine.logs.at(-1).text, 'background');
});

withWorker('time stamps are monotonic', 'export default () => "x"', {}, async (engine) => {
  const before = Number(process.hrtime.bigint());
  const frame = await engine.invoke('/', '', { sent_ns: before });
  const after = Number(process.hrtime.bigint());
  const slack = 20_000; // the shim derives the clock from another reading of it
  const times = [before - slack, frame.entered_ns, frame.returned_ns, after + slack];
  assert.deepEqual(times, [...times].sort((a, b) => a - b));
});
