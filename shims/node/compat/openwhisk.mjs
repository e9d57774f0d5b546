// Apache OpenWhisk: `main(params)`, called like a web action. It returns an object or a promise of
// one.

import fs from 'node:fs';
import module, { createRequire } from 'node:module';

import { exportsOf, functionOf, parameters, reply, typed } from './http.mjs';
import { headOf } from '../mote_shim.mjs';

const HTML = 'text/html; charset=UTF-8';
const NO_RESULT = { error: 'The action did not return a dictionary or array.' };
const isText = (type) => /^(text\/|application\/(json|javascript|xml))|\+(json|xml)$/.test(type.split(';')[0].trim().toLowerCase());

/**
 * The action of a file: its export, or else whatever the name means in the file or globally, wherever
 * it was declared, because the platform evaluates the name behind the code.
 */
async function actionOf(file, name) {
  const source = fs.readFileSync(file, 'utf8');
  const isModule = file.endsWith('.mjs') || /^\s*export\s/m.test(source);
  if (isModule) return functionOf(atPath(await exportsOf(file), name), '', file);
  if (!/^[\w$]+([.][\w$]+)*$/.test(name)) return functionOf(createRequire(file)(file), name, file);
  const made = new module.Module(file, null);
  made.filename = file;
  made.paths = module.Module._nodeModulePaths(file.slice(0, file.lastIndexOf('/')));
  const [first] = name.split('.');
  const found = `typeof ${first} === 'undefined' ? undefined : ${name}`;
  made._compile(`${source}\n;module.moteAction = module.exports?.${name.replaceAll('.', '?.')} ?? (${found});`, file);
  return typeof made.moteAction === 'function' ? made.moteAction : functionOf(made.exports, name, file);
}

/** The member of an object to which a name with dots refers. */
const atPath = (object, name) => name.split('.').reduce((part, key) => part?.[key], object);

export async function load(file, exported, spec) {
  const action = await actionOf(file, exported ?? 'main');
  const defaults = JSON.parse(process.env.OPENWHISK_PARAMETERS || '{}');
  process.env.__OW_ACTION_NAME = `/_/${spec.function}`;
  process.env.__OW_ACTION_VERSION = `0.0.${spec.revision}`;
  process.env.__OW_NAMESPACE ??= '_';
  // Setting an environment variable of the process costs more than a call, so getters read the
  // values that change.
  let current = null;
  process.env = Object.defineProperties({ ...process.env }, {
    __OW_ACTIVATION_ID: { get: () => current?.activation ?? current?.event.id, enumerable: true, configurable: true },
    __OW_DEADLINE: { get: () => current && String(Date.now() + current.ctx.remainingMs()), enumerable: true, configurable: true },
  });
  return (event, ctx) => {
    // A caller that uses the platform's API sends only arguments, and receives the result
    // unchanged.
    const head = headOf(event);
    const activation = head.fields['x-mote-activation'];
    current = { activation, event, ctx };
    let params;
    try {
      params = activation ? given(event, defaults) : argumentsOf(event, defaults, head);
    } catch {
      return json(400, { error: 'The request content was malformed.' });
    }
    const finish = activation ? plain : answer;
    let result;
    try { result = action(params); } catch (error) { result = activation ? thrown(error) : failed(error); }
    return typeof result?.then === 'function'
      ? result.then((value) => finish(value ?? {}), (error) => finish(activation ? rejected(error) : failed(error)))
      : finish(result ?? {});
  };
}

/** What the platform's API reports for an exception. The log also has the trace. */
function thrown(error) {
  console.error(error);
  return { error: `An error has occurred: ${error}` };
}

/** What the platform's API reports for a rejected promise: an error as an object. */
function rejected(error) {
  if (!(error instanceof Error)) return { error: error ?? {} };
  console.error(error);
  return { error: { ...error, name: error.name, message: error.message, stack: error.stack } };
}

/** A promise rejected with anything but an exception is an application error, which the caller sees. */
function failed(error) {
  if (error instanceof Error) throw error;
  return { error: error ?? {} };
}

/** The arguments from the platform's API: in a sequence, the previous result may be an array. */
function given(event, defaults) {
  const value = event.body.length ? event.json() : {};
  return Array.isArray(value) ? value : { ...defaults, ...value };
}

const json = (status, value) => reply(status, [['Content-Type', 'application/json']], JSON.stringify(value));

function plain(result) {
  if (typeof result !== 'object') return json(502, NO_RESULT);
  return json(!Array.isArray(result) && 'error' in result ? 502 : 200, result);
}

const told = ({ method, path }) => ({ __ow_method: method.toLowerCase(), __ow_headers: null, __ow_path: path === '/' ? '' : path });

function argumentsOf(event, defaults, head) {
  const { query, fields, mediaType: type } = head;
  // Several values of one name form an array, and each call must get its own copy.
  const params = query ? { ...defaults, ...parameters(query), ...told(head), __ow_query: query } : { ...(head.made ??= { ...defaults, ...told(head) }) };
  params.__ow_headers = { ...fields };
  if (!event.body.length) return params;
  if (type === '' || type === 'application/json') {
    let value = null;
    try { value = event.json(); } catch (error) { if (type) throw error; }
    if (value !== null && typeof value === 'object' && !Array.isArray(value)) return Object.assign(params, value);
    if (type) return Object.assign(params, { __ow_body: value });
  }
  if (type === 'application/x-www-form-urlencoded') return Object.assign(params, parameters(event.text()));
  params.__ow_body = isText(type) ? event.text() : event.body.toString('base64');
  return params;
}

function answer(result) {
  if (typeof result.body === 'string' && result.body && !result.headers && !result.statusCode && !('error' in result)) {
    return typed(result.body, HTML);
  }
  if (typeof result !== 'object') return json(502, NO_RESULT);
  let web = result;
  if (!Array.isArray(result) && 'error' in result) {
    if (typeof result.error !== 'object' || result.error === null || !('statusCode' in result.error)) {
      return json(502, { error: result.error });
    }
    web = result.error;
  }
  if (Array.isArray(web) || !['statusCode', 'headers', 'body'].some((name) => name in web)) return json(200, web);
  const pairs = Object.entries(web.headers ?? {}).flatMap(([name, value]) => [].concat(value).map((one) => [name, String(one)]));
  const type = pairs.find(([name]) => name.toLowerCase() === 'content-type')?.[1] ?? '';
  let { body } = web;
  if (typeof body === 'string') {
    if (type && !isText(type)) body = Buffer.from(body, 'base64');
    else if (!type) pairs.push(['Content-Type', HTML]);
  } else if (body !== undefined && body !== null) {
    body = JSON.stringify(body);
    if (!type) pairs.push(['Content-Type', 'application/json']);
  }
  return reply(Number(web.statusCode ?? (body?.length ? 200 : 204)), pairs, body ?? '');
}
