// CloudEvents 1.0 over HTTP, both modes: attributes in `ce-` fields, or the whole event as JSON.

import { mediaType } from './http.mjs';
import { headOf } from '../mote_shim.mjs';

const STRUCTURED = 'application/cloudevents+json';
const REQUIRED = ['id', 'source', 'type', 'specversion'];
const isJson = (type) => /^[^;]*[/+]json\s*(;|$)/i.test(type ?? '');
const isText = (type) => /^(text\/|application\/xml)|\+xml/i.test(type ?? '');

/** An event: attributes as members, `data` parsed by its type. */
export class CloudEvent {
  constructor(members) {
    Object.assign(this, members);
    this.specversion ??= '1.0';
    this.id ??= crypto.randomUUID();
    this.time ??= new Date().toISOString();
  }
  cloneWith(members) { return new CloudEvent({ ...this, ...members }); }
  validate() {
    const missing = REQUIRED.find((name) => typeof this[name] !== 'string' || !this[name]);
    if (missing) throw new TypeError(`the event has no ${missing}`);
    return true;
  }
  toJSON() { return { ...this }; }
  toString() { return JSON.stringify(this); }
}

/** Whether a request with these header fields carries an event. */
export function isEvent(fields) {
  return fields['ce-specversion'] !== undefined || fields['ce-id'] !== undefined
    || (fields['content-type']?.toLowerCase().startsWith('application/cloudevents') ?? false);
}

/** The event of a request. Throws on one that is incomplete. */
export function read(event) {
  const members = mediaType(event) === STRUCTURED ? structured(event) : binary(event);
  const version = members.specversion;
  if (version !== '1.0' && version !== '0.3') throw new TypeError(`the event's specversion is ${version}`);
  new CloudEvent({ ...members, id: members.id ?? '' }).validate();
  return new CloudEvent({ ...members, time: members.time ?? null });
}

function structured(event) {
  const members = event.json();
  if (members === null || typeof members !== 'object' || Array.isArray(members)) throw new TypeError('the event is no object');
  if (typeof members.data_base64 === 'string') members.data = Buffer.from(members.data_base64, 'base64');
  return members;
}

function binary(event) {
  const members = {};
  for (const [name, value] of Object.entries(headOf(event).fields)) {
    if (name.startsWith('ce-')) members[name.slice(3)] = decoded(value);
  }
  const type = headOf(event).fields['content-type'];
  if (type?.toLowerCase().startsWith('application/cloudevents')) throw new TypeError(`events of type ${type} are not read`);
  if (type) members.datacontenttype = type;
  if (event.body.length) {
    if (isJson(type)) members.data = event.json();
    else members.data = isText(type) || !type ? event.text() : event.body;
  }
  return members;
}

/** Attributes are percent-encoded where they are not printable ASCII. */
function decoded(value) {
  if (!value.includes('%')) return value;
  try { return decodeURIComponent(value); } catch { return value; }
}

const encoded = (value) => String(value).replace(/[^\x20-\x7e]|[%"]/gu, (letter) => encodeURIComponent(letter));

/** [fields, body] of an event in binary mode. */
export function write(event) {
  const plain = typeof event.toJSON === 'function' ? event.toJSON() : event; // also those of the npm package
  CloudEvent.prototype.validate.call(plain);
  const fields = {};
  const { data, data_base64: base64, datacontenttype: type, ...attributes } = plain;
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null && /^[a-z0-9]{1,64}$/.test(name)) fields[`ce-${name}`] = encoded(value instanceof Date ? value.toISOString() : value);
  }
  if (data === undefined && !base64) return [fields, ''];
  if (data instanceof Uint8Array || (data === undefined && base64)) {
    fields['content-type'] = type ?? 'application/octet-stream';
    return [fields, data ?? Buffer.from(base64, 'base64')];
  }
  fields['content-type'] = type ?? 'application/json; charset=utf-8';
  return [fields, typeof data === 'string' && !isJson(fields['content-type']) ? data : JSON.stringify(data)];
}
