// CloudEvents in the form that Knative functions know. `mote_cloudevents.cjs` reads and writes
// their bytes.

import { mediaType } from './http.mjs';
import { binary, fromFields, fromJson, parsed } from '../mote_cloudevents.cjs';
import { headOf } from '../mote_shim.mjs';

const STRUCTURED = 'application/cloudevents+json';
const REQUIRED = ['id', 'source', 'type', 'specversion'];
const VERSIONS = ['1.0', '0.3'];

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

/** The event of a request. Throws if the event is incomplete. */
export function read(event) {
  const type = mediaType(event);
  const [attributes, data] = type === STRUCTURED ? fromJson(parsed(event.body), VERSIONS) : binaryMode(event, type);
  const members = { ...attributes };
  if (data !== undefined) members.data = data;
  return new CloudEvent({ ...members, time: members.time ?? null });
}

function binaryMode(event, type) {
  if (type.startsWith('application/cloudevents')) throw new TypeError(`events of type ${type} are not read`);
  const [attributes, data] = fromFields(Object.entries(headOf(event).fields), 'ce-', event.body, VERSIONS);
  return [attributes, data instanceof Uint8Array && !type ? event.text() : data];
}

/** [fields, body] of an event in binary mode. */
export function write(event) {
  const plain = typeof event.toJSON === 'function' ? event.toJSON() : event; // also those of the npm package
  const { data_base64: base64, ...members } = plain;
  if (members.data === undefined && base64) members.data = Buffer.from(base64, 'base64');
  for (const [name, value] of Object.entries(members)) if (name !== 'data' && value instanceof Date) members[name] = value.toISOString();
  const [pairs, body] = binary(members);
  return [Object.fromEntries(pairs), body];
}
