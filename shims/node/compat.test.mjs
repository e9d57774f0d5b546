// The objects that adapters make from a call. It must not be visible that parts are made late or
// kept between calls.

import assert from 'node:assert/strict';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { test } from 'node:test';

import { Engine } from './engine_double.mjs';

const FIELDS = [['host', 'here'], ['x-two', '1'], ['x-two', '2'], ['__proto__', 'p'], ['content-type', 'application/json; charset=utf-8']];
const SEEN = JSON.parse('{"host":"here","x-two":"1, 2","__proto__":"p","content-type":"application/json; charset=utf-8"}');
const HTML = 'text/html; charset=utf-8';
const titled = (name) => name.replace(/(^|-)[a-z]/g, (letters) => letters.toUpperCase());

function withAdapter(name, compat, code, run, { entry = 'fn.js', ...more } = {}) {
  test(name, { timeout: 60_000 }, async () => {
    const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'mote-compat-'));
    fs.writeFileSync(path.join(folder, 'fn.js'), code);
    const engine = await Engine.open(folder, entry, { compat, ...more });
    try {
      assert.equal(engine.ready.kind, 'READY', JSON.stringify(engine.ready.json));
      await run(engine);
    } finally {
      await engine.close();
      fs.rmSync(folder, { recursive: true });
    }
  });
}

function check(frame, wanted, status = 200, type = undefined) {
  assert.equal(frame.kind, 'RESULT', JSON.stringify(frame.json));
  const text = frame.body.toString();
  assert.deepEqual(typeof wanted === 'string' ? text : JSON.parse(text), wanted);
  assert.equal(frame.status, status);
  if (type !== undefined) assert.equal(Object.fromEntries(frame.headers)['content-type'], type);
}

/** Two calls with equal fields: the second does not see what the first does to its object. */
async function checkTwice(engine, wanted, status, type) {
  for (let i = 0; i < 2; i++) check(await engine.invoke('/', '{"a":1}', { headers: FIELDS }), wanted, status, type);
}

withAdapter('OpenWhisk: parameters are plain objects of the call', 'openwhisk', `
function main(params) {
  const whole = structuredClone(params);
  params.__ow_headers['x-new'] = '1';
  delete params.__ow_headers.host;
  return { ...whole, same: JSON.stringify(whole.__ow_headers) === JSON.stringify({ ...whole.__ow_headers }) };
}
`, async (engine) => {
  await checkTwice(engine, { __ow_method: 'post', __ow_path: '', __ow_headers: SEEN, a: 1, same: true });
  check(await engine.invoke('/b', '', { method: 'GET', query: 'c=d' }),
    { c: 'd', __ow_method: 'get', __ow_path: '/b', __ow_query: 'c=d', __ow_headers: {}, same: true });
});

withAdapter('OpenWhisk: header blocks that are not kept', 'openwhisk',
  'const main = (params) => Object.fromEntries(Object.entries(params.__ow_headers).map(([name, value]) => [name, value.length]));',
  async (engine) => {
    for (const size of [1, 900, 2000]) check(await engine.invoke('/', '', { headers: [['x-long', 'y'.repeat(size)]] }), { 'x-long': size });
    for (let i = 0; i < 200; i++) check(await engine.invoke('/', '', { headers: [[`x-${i}`, 'y']] }), { [`x-${i}`]: 1 });
  });

for (const [how, code, entry] of [
  ['behind other code on one line', 'const x = 1; function main(params) { return { x }; }'],
  ['global', '(() => { global.main = (params) => ({ x: 1 }); })();'],
  ['of a bundle', '"use strict"; var lib = (() => { exports.main = () => ({ x: 1 }); })(); // end'],
  ['under another name', 'const go = async () => ({ x: 1 }); module.exports = { go };', 'fn.js:go'],
  ['exported and declared', 'function main() { return { x: 2 }; } exports.main = () => ({ x: 1 });'],
  ['at a path of the exports', 'exports.a = { b: () => ({ x: 1 }) };', 'fn.js:a.b'],
  ['at a path of a variable', 'const a = { b: () => ({ x: 1 }) };', 'fn.js:a.b'],
]) {
  withAdapter(`OpenWhisk: an action ${how}`, 'openwhisk', code, async (engine) => {
    check(await engine.invoke('/', ''), { x: 1 });
  }, entry ? { entry } : {});
}

withAdapter('OpenWhisk: an exception is told to callers of the API only', 'openwhisk', `
  class Own extends Error { constructor(text) { super(text); this.code = 7; } }
  function main(params) {
    if (params.sync) throw new Own('no');
    return Promise.reject(new Own('later'));
  }
`, async (engine) => {
  const headers = [['x-mote-activation', 'one']];
  check(await engine.invoke('/', '{"sync":1}', { headers }), { error: 'An error has occurred: Error: no' }, 502);
  const frame = await engine.invoke('/', '{}', { headers });
  const { error } = JSON.parse(frame.body);
  assert.deepEqual([frame.status, error.name, error.message, error.code], [502, 'Error', 'later', 7]);
  assert.equal((await engine.invoke('/', '{"sync":1}')).kind, 'ERROR');
});

withAdapter('OpenWhisk: JSON that is no object', 'openwhisk', 'const main = (params) => ({ got: params.__ow_body });', async (engine) => {
  check(await engine.invoke('/', '[1]', { headers: FIELDS }), { got: [1] });
});

// The form that bundlers write: everything is inside a function, which leaves the action in the
// global object.
withAdapter('OpenWhisk: an action in the global object', 'openwhisk',
  '(function (parts) { parts[0](); })([() => { const act = (params) => ({ got: params.a }); global.main = act; }]);',
  async (engine) => check(await engine.invoke('/', '{"a":1}', { headers: FIELDS }), { got: 1 }));

withAdapter('OpenWhisk: results of web actions', 'openwhisk', `
  const results = {
    text: { body: '<p>é</p>' }, empty: { body: '' }, status: { body: 'x', statusCode: 201 },
    fields: { body: 'x', headers: { 'content-type': 'text/plain' } }, object: { body: { a: 1 } },
    failed: { body: 'x', error: 'no' }, other: { a: 1, body: 'x' }, none: undefined, nothing: null, list: [1], number: 7,
  };
function main(params) { return results[params.case]; }
`, async (engine) => {
  const html = 'text/html; charset=UTF-8';
  for (const [name, ...wanted] of [
    ['text', '<p>é</p>', 200, html], ['empty', '', 204, html], ['status', 'x', 201, html], ['fields', 'x', 200, 'text/plain'],
    ['object', { a: 1 }, 200, 'application/json'], ['failed', { error: 'no' }, 502, 'application/json'], ['other', 'x', 200, html],
    ['none', {}, 200], ['nothing', {}, 200], ['list', [1], 200], ['number', { error: 'The action did not return a dictionary or array.' }, 502],
  ]) check(await engine.invoke('/', '', { query: `case=${name}` }), ...wanted);
});

withAdapter('OpenFaaS: event and context', 'openfaas', `
  module.exports = async (event, context) => {
    const { headers, query, method, path, body } = event;
    event.headers.host = 'changed';
    const kept = event.headers.host;
    return context.status(201).headers({ 'x-kind': ['a', 'b'] }).succeed({ headers: { ...headers, host: 'here' }, query, method, path, body, kept });
  };
`, async (engine) => {
  const seen = { headers: SEEN, query: {}, method: 'POST', path: '/', body: { a: 1 }, kept: 'changed' };
  await checkTwice(engine, seen, 201, 'application/json; charset=utf-8');
  const { headers } = await engine.invoke('/');
  assert.deepEqual(headers.filter(([name]) => name === 'x-kind'), [['x-kind', 'a'], ['x-kind', 'b']]);
});

withAdapter('OpenFaaS: names that every object has', 'openfaas', 'module.exports = async (event) => [event.query, event.body];',
  async (engine) => {
    const headers = [['content-type', 'application/x-www-form-urlencoded']];
    const frame = await engine.invoke('/', 'constructor=1', { headers, query: 'toString=2&valueOf=3&valueOf=4' });
    check(frame, [{ toString: '2', valueOf: ['3', '4'] }, { constructor: '1' }]);
  });

withAdapter('OpenFaaS: how a function may answer', 'openfaas', `
  const cases = {
    '/returned': async () => 'x', '/plain': () => 'x', '/late': async (e, c) => { await null; return c.succeed('x'); },
    '/later': (e, c) => { setImmediate(() => c.succeed('x')); return new Promise(() => {}); },
    '/nothing': async () => {}, '/first': async (e, c) => { c.succeed('x'); c.fail('y'); return 'z'; },
    '/fail': async (e, c) => c.status(404).fail('no'), '/throw': () => { throw new Error('secret'); },
    '/reject': async () => { throw new Error('secret'); }, '/after': async (e, c) => { c.succeed('x'); throw new Error('late'); },
    '/status': async (e, c) => c.status(999).succeed('x'), '/name': async (e, c) => c.headers({ 'a b': 'c' }).succeed('x'),
    '/thenable': () => ({ then(resolve) { resolve('x'); } }),
  };
  module.exports = (event, context) => cases[event.path](event, context);
`, async (engine) => {
  for (const [place, ...wanted] of [
    ['/returned', 'x', 200, HTML], ['/plain', 'x', 200, HTML], ['/late', 'x', 200, HTML], ['/later', 'x', 200, HTML],
    ['/nothing', '', 200], ['/first', 'x', 200, HTML], ['/fail', 'no', 404, HTML], ['/throw', 'Internal Server Error', 500, HTML],
    ['/reject', 'Internal Server Error', 500, HTML], ['/after', 'x', 200, HTML], ['/thenable', 'x', 200, HTML],
  ]) check(await engine.invoke(place), ...wanted);
  for (const place of ['/status', '/name']) {
    const frame = await engine.invoke(place);
    assert.equal(frame.kind, 'ERROR', `${place}: ${frame.status}`);
  }
  check(await engine.invoke('/plain'), 'x');
});

withAdapter('OpenFaaS: callbacks', 'openfaas', `
  module.exports = (event, context, callback) => {
    const answer = () => (event.path === '/fail' ? callback('no') : callback(undefined, 'x'));
    if (event.path === '/now') answer(); else setImmediate(answer);
  };
`, async (engine) => {
  check(await engine.invoke('/now'), 'x', 200, HTML);
  check(await engine.invoke('/later'), 'x', 200, HTML);
  check(await engine.invoke('/fail'), 'no', 500, HTML);
});

withAdapter('Kubeless: the event', 'kubeless', `
  module.exports = { f(event, context) {
    const { request, response } = event.extensions;
    response.status(201);
    return { keys: Object.keys(event), data: event.data, id: event['event-id'] ?? null, headers: request.headers, context: Object.keys(context).length };
  } };
`, async (engine) => {
  const keys = ['data', 'event-id', 'event-type', 'event-time', 'event-namespace', 'extensions'];
  await checkTwice(engine, { keys, data: { a: 1 }, id: null, headers: SEEN, context: 4 }, 201);
  const frame = await engine.invoke('/', 'x', { headers: [['event-id', '7']] });
  check(frame, { keys, data: 'x', id: '7', headers: { 'event-id': '7' }, context: 4 }, 201);
}, { entry: 'fn.js:f' });

withAdapter('Kubeless: a router assigns to the request', 'kubeless', `
  module.exports = { f(event) {
    const { request } = event.extensions;
    request.params = { id: '7' };
    request.url = '/x';
    return [request.params.id, request.url, request.method, Object.keys(request.query).length].join(' ');
  } };
`, async (engine) => {
  check(await engine.invoke('/', 'x'), '7 /x POST 0', 200, 'text/plain; charset=utf-8');
}, { entry: 'fn.js:f' });

withAdapter('Kubeless: a function alone', 'kubeless', 'module.exports = (event) => `got ${event.data}`;', async (engine) => {
  check(await engine.invoke('/', 'x'), 'got x', 200, 'text/plain; charset=utf-8');
}, { entry: 'fn.js:f' });

withAdapter('Knative: the context', 'knative', `
  module.exports = { handle: async (context, body) => {
    const { headers, query, method, path, contentType } = context;
    const again = context.headers === headers;
    context.headers.host = 'changed';
    return { body: { headers: { ...headers, host: 'here' }, query, method, path, contentType, again, body: body ?? null } };
  } };
`, async (engine) => {
  await checkTwice(engine, { headers: SEEN, query: {}, method: 'POST', path: '/', contentType: 'application/json', again: true, body: { a: 1 } });
  check(await engine.invoke('/health/liveness', '', { method: 'GET' }), 'OK');
});

withAdapter('Knative: a CloudEvent in place of the body', 'knative',
  'exports.handle = async (context, event) => ({ body: { id: event.id, data: event.data } });',
  async (engine) => {
    const headers = [['ce-id', '7'], ['ce-source', '/s'], ['ce-type', 't'], ['ce-specversion', '1.0'], ['content-type', 'application/json']];
    for (let i = 0; i < 2; i++) check(await engine.invoke('/', '{"b":2}', { headers }), { id: '7', data: { b: 2 } });
    assert.equal((await engine.invoke('/', '', { headers: [['ce-id', '1']] })).status, 400);
  });

withAdapter('Nuclio: the event', 'nuclio', `
  exports.handler = (context, event) => {
    const names = [event.headers['X-Two'], event.headers['x-two'], event.headers['X-Other'] ?? null];
    const seen = { headers: { ...event.headers }, names, type: event.content_type, body: JSON.parse(event.body.toString()), size: event.size };
    event.headers.host = 'changed';
    context.callback(seen);
  };
`, async (engine) => {
  const headers = Object.fromEntries(Object.entries(SEEN).map(([name, value]) => [titled(name), value]));
  const names = ['1, 2', '1, 2', null];
  await checkTwice(engine, { headers, names, type: 'application/json; charset=utf-8', body: { a: 1 }, size: 7 });
}, { entry: 'fn.js:handler' });

withAdapter('Nuclio: JSON that is none is bytes like any body, and initContext adds to the context', 'nuclio', `
  exports.initContext = async (context) => { context.userData.n = 1; context.half = (n) => n / 2; };
  exports.handler = (context, event) => context.callback(context.half(6) + context.userData.n + event.body.toString());
`, async (engine) => {
  check(await engine.invoke('/', '{bad', { headers: [['content-type', 'application/json']] }), '4{bad', 200, 'text/plain');
}, { entry: 'fn.js:handler' });

// Each request differs from the previous one in one part.
const REQUESTS = [
  ['/', '', 'GET', [['a', '1']]], ['/b', '', 'GET', [['a', '1']]], ['/b', 'c=d', 'GET', [['a', '1']]], ['/b', 'c=d', 'PUT', [['a', '1']]],
  ['/b', 'c=d', 'PUT', [['a', '2']]], ['/bc', '=d', 'PUT', [['a', '2']]], ['/', '', 'GET', []],
];

for (const [compat, code, entry] of [
  ['openfaas', 'module.exports = async (event) => ({ said: JSON.stringify(event) });'],
  ['nuclio', 'exports.handler = (context, event) => context.callback({ said: JSON.stringify(event) });', 'fn.js:handler'],
  ['knative', 'exports.handle = async (context) => ({ body: { said: JSON.stringify(context) } });'],
]) {
  withAdapter(`${compat}: what is written of a request is all of it, of this one`, compat, code, async (engine) => {
    for (let round = 0; round < 2; round++) {
      for (const [place, query, method, headers] of REQUESTS) {
        const frame = await engine.invoke(place, '', { query, method, headers });
        const said = JSON.parse(JSON.parse(frame.body).said);
        const fields = Object.fromEntries(headers.map(([name, value]) => [compat === 'nuclio' ? titled(name) : name, value]));
        assert.deepEqual([said.path ?? place, said.method, said.headers], [place, method, fields]);
        assert.deepEqual(said.query ?? said.fields, Object.fromEntries(new URLSearchParams(query)));
        assert(compat === 'knative' || 'body' in said, 'also what is empty');
      }
    }
  }, { entry });
}

withAdapter('Nuclio: the path is decoded, as its processor gives it', 'nuclio',
  'exports.handler = (context, event) => context.callback([event.path, event.url]);',
  async (engine) => {
    check(await engine.invoke('/a%26b/c%20d/%C3%BC', '', { query: 'e=%20' }), ['/a&b/c d/ü', '/a%26b/c%20d/%C3%BC?e=%20']);
    check(await engine.invoke('/%ff'), ['/%ff', '/%ff']);
  }, { entry: 'fn.js:handler' });

withAdapter('Knative: promises that fail, in the function and after it', 'knative', `
  const cases = { '/throw': () => { throw new Error('no'); }, '/status': () => ({ statusCode: 99, body: 'x' }), '/good': () => 'x' };
  exports.handle = async (context) => { await null; return cases[context.path](); };
`, async (engine) => {
  for (let i = 0; i < 2; i++) {
    for (const [place, message] of [['/throw', 'no'], ['/status', 'status 99 is not 200 to 599']]) {
      const frame = await engine.invoke(place);
      assert.deepEqual([frame.kind, frame.json?.message], ['ERROR', message]);
    }
    check(await engine.invoke('/good'), 'x', 200, 'text/plain; charset=utf8');
  }
});

withAdapter('Fission: JSON that is none does not reach the function', 'fission', `
  let calls = 0;
  module.exports = async ({ request }) => ({ status: 200, body: { calls: ++calls, body: request.body } });
`, async (engine) => {
  const headers = [['content-type', 'application/json']];
  check(await engine.invoke('/', '{bad', { headers }), 'Bad Request', 400, HTML);
  check(await engine.invoke('/', '', { headers }), { calls: 1, body: {} });
  check(await engine.invoke('/', '{"a":1}', { headers }), { calls: 2, body: { a: 1 } });
  check(await engine.invoke('/', '{bad'), { calls: 3, body: '{bad' });
});

withAdapter('Fission: answers through the response, after a promise', 'fission', `
  module.exports = async ({ request, response }) => {
    await null;
    if (request.path === '/none') return;
    response.status(201).set('X-A', '1').set('Content-TYPE', 'text/x');
    if (request.path === '/removed') response.removeHeader('content-type');
    if (request.path === '/twice') response.append('content-type', 'text/y');
    response.send(String(response.get('CONTENT-type')));
  };
`, async (engine) => {
  for (const [place, ...wanted] of [
    ['/', 'text/x', 201, 'text/x'], ['/removed', 'undefined', 201, HTML], ['/twice', 'text/x,text/y', 201, 'text/y'],
    ['/none', '', 200],
  ]) check(await engine.invoke(place), ...wanted);
});
