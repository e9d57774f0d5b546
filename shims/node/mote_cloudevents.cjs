// CloudEvents 1.0: `ctx.cloudevent`, `ctx.cloudevents` and `ctx.newCloudevent`.
//
// The worker loads this file when a function first uses one of them, so that other functions do not
// pay for it. The file is CommonJS, because only CommonJS can be loaded within a synchronous call.
// Its twin, `shims/python/mote_cloudevents.py`, describes what it reads and refuses.

'use strict';

const STRUCTURED = 'application/cloudevents+json';
const BATCH = 'application/cloudevents-batch+json';
const REQUIRED = ['specversion', 'id', 'source', 'type'];
const DEFINED = [...REQUIRED, 'subject', 'time', 'datacontenttype', 'dataschema'];
const NAME = /^[a-z0-9]+$/;
const FORBIDDEN = /[\u0000-\u001f\u007f-\u009f]|\p{Surrogate}/u;
const TIME = /^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])[Tt]([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)$/;
const MEDIA_TYPE = /^[!#$%&'*+\-.^_`|~0-9A-Za-z]+\/[!#$%&'*+\-.^_`|~0-9A-Za-z]+\s*(;|$)/;
const ABSOLUTE = /^[A-Za-z][A-Za-z0-9+.\-]*:./;

/** An event that breaks a rule. Where the event was received, the caller receives 400 with the text,
 * unless the function catches the error. */
class CloudEventError extends Error {
  get name() { return 'CloudEventError'; }
}

const wrong = (text) => new CloudEventError(text);

/** An event: its attributes as members, and `data`, decoded by its type. */
class CloudEvent {
  constructor(attributes, data) {
    for (const [name, value] of Object.entries(attributes)) {
      // This is not an assignment, because that would call setters for some names.
      Object.defineProperty(this, name, { value, enumerable: true, writable: true, configurable: true });
    }
    Object.defineProperty(this, 'data', { value: data, enumerable: true, writable: true, configurable: true });
  }
  /** The attributes that the specification does not define. */
  static extensions(event) {
    return Object.fromEntries(Object.entries(attributesOf(event)).filter(([name]) => !DEFINED.includes(name)));
  }
}

function attributesOf(event) {
  const { data, ...attributes } = event;
  return attributes;
}

/** [is a batch, events] of a message; `pairs` are its header fields, names in lower case. A message
 * that claims to be no event has no events. `body` is a call, made only for events. */
function received(pairs, isMqtt, body) {
  try {
    return read(pairs, isMqtt, body);
  } catch (error) {
    if (error instanceof CloudEventError) {
      Object.defineProperty(error, 'moteAnswer', { value: [`not a CloudEvent: ${error.message}\n`, 400] });
    }
    throw error;
  }
}

function read(pairs, isMqtt, body) {
  const kinds = pairs.filter(([name]) => name === 'content-type').map(([name, value]) => (isMqtt ? plain(value, name) : value));
  const kind = mediaType(kinds[0]);
  if (kind.startsWith('application/cloudevents')) {
    if (kinds.length > 1) throw wrong('there are two fields content-type');
    if (kind === STRUCTURED) return [false, [new CloudEvent(...fromJson(parsed(body())))]];
    if (kind === BATCH) return [true, batch(parsed(body()))];
    throw wrong(`the format ${kind} is not known`);
  }
  const prefix = isMqtt ? 'mqtt-user-' : 'ce-';
  if (!pairs.some(([name]) => name === `${prefix}specversion`)) {
    if (isMqtt || !pairs.some(([name]) => ['ce-id', 'ce-type', 'ce-source'].includes(name))) return [false, []];
  }
  return [false, [new CloudEvent(...fromFields(pairs, prefix, body()))]];
}

/** [attributes, data] of an event in binary mode. */
function fromFields(pairs, prefix, body, versions = ['1.0']) {
  const isMqtt = prefix !== 'ce-';
  const attributes = Object.create(null);
  for (const [name, value] of pairs) {
    let key;
    let text = value;
    if (name === 'content-type') {
      key = 'datacontenttype';
      if (isMqtt) text = plain(value, name);
    } else if (name.startsWith(prefix)) {
      key = name.slice(prefix.length);
      text = isMqtt ? plain(value, name) : decoded(value, name);
      if (isMqtt && !NAME.test(key)) continue; // a user property that is no attribute
      if (key === 'datacontenttype') throw wrong('datacontenttype has a field of its own, which is content-type');
    } else {
      continue;
    }
    if (key in attributes) throw wrong(`the attribute ${key} is there twice`);
    attributes[key] = text;
  }
  check(attributes, versions);
  return [attributes, body.length ? content(body, attributes.datacontenttype) : undefined];
}

/** [attributes, data] of an event in the JSON format. */
function fromJson(event, versions = ['1.0']) {
  if (event === null || typeof event !== 'object' || Array.isArray(event)) throw wrong('the event is no JSON object');
  const { data, data_base64: coded, ...others } = event;
  const attributes = Object.assign(Object.create(null), others);
  for (const name of Object.keys(attributes)) if (attributes[name] === null) delete attributes[name];
  check(attributes, versions);
  if (coded === undefined || coded === null) return [attributes, data ?? undefined];
  if (data !== undefined) throw wrong('the event has both data and data_base64');
  const bytes = typeof coded === 'string' ? Buffer.from(coded, 'base64') : null;
  // Node ignores characters that are not base64, so the bytes are encoded again and compared.
  if (bytes === null || bytes.toString('base64') !== coded) throw wrong('data_base64 is not base64');
  return [attributes, content(bytes, attributes.datacontenttype)];
}

function batch(events) {
  if (!Array.isArray(events)) throw wrong('the batch is no JSON array');
  return events.map((event, number) => {
    try {
      return new CloudEvent(...fromJson(event));
    } catch (error) {
      throw error instanceof CloudEventError ? wrong(`event ${number} of the batch: ${error.message}`) : error;
    }
  });
}

function parsed(body) {
  try {
    return JSON.parse(text(body, 'utf-8'));
  } catch {
    throw wrong('the body is not JSON');
  }
}

const text = (body, charset) => new TextDecoder(charset, { fatal: true }).decode(body);

/** Throws for attributes that break a rule of the specification. */
function check(attributes, versions = ['1.0']) {
  for (const name of REQUIRED) {
    if (typeof attributes[name] !== 'string' || !attributes[name]) throw wrong(`the event has no ${name}`);
  }
  if (!versions.includes(attributes.specversion)) throw wrong(`specversion is ${attributes.specversion}, not 1.0`);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === 'data') throw wrong('no attribute may be called data');
    if (!NAME.test(name)) throw wrong(`the attribute name ${JSON.stringify(name)} has other characters than a-z and 0-9`);
    if (DEFINED.includes(name) && (typeof value !== 'string' || !value)) throw wrong(`${name} is not a text, or is empty`);
    if (typeof value === 'boolean') continue;
    if (typeof value === 'number' && Number.isInteger(value)) {
      if (value !== (value | 0)) throw wrong(`${name} is not a number of 32 bits`);
    } else if (typeof value !== 'string') {
      throw wrong(`${name} is neither a text, a whole number nor a boolean`);
    } else if (FORBIDDEN.test(value)) {
      throw wrong(`${name} holds a control character`);
    }
  }
  const { time, datacontenttype: kind, dataschema } = attributes;
  if (time !== undefined && !TIME.test(time)) throw wrong('time is not a timestamp of RFC 3339');
  if (kind !== undefined && !MEDIA_TYPE.test(kind)) throw wrong('datacontenttype is not a media type');
  if (dataschema !== undefined && !ABSOLUTE.test(dataschema)) throw wrong('dataschema is not an absolute URI');
}

const mediaType = (kind) => (kind ?? '').split(';')[0].trim().toLowerCase();
const isJson = (kind) => /[/+]json$/.test(mediaType(kind));
const isText = (kind) => /^text\/|[/+]xml$/.test(mediaType(kind));
const charsetOf = (kind) => /;\s*charset="?([^";\s]+)/i.exec(kind)?.[1] ?? 'utf-8';

/** Data as a function receives it: JSON and text are decoded, everything else is bytes. */
function content(body, kind) {
  try {
    if (isJson(kind)) return JSON.parse(text(body, 'utf-8'));
    if (isText(kind)) return text(body, charsetOf(kind));
  } catch (error) {
    if (error instanceof RangeError) return body; // a character set that is not known
    throw wrong(`the data is not ${kind}`);
  }
  return body;
}

/** An attribute from a field: quotes are taken off first, then one round of percent-encoding. */
function decoded(value, name) {
  if (!value.startsWith('"')) return plain(value, name);
  if (!/^"(?:[^"\\]|\\.)*"$/.test(value)) throw wrong(`${name} has an opening quote without an end`);
  return plain(value.slice(1, -1).replace(/\\(.)/g, '$1'), name);
}

/** A value without its percent-encoding. The node encodes user properties of MQTT the same way. */
function plain(value, name) {
  if (/[^\x00-\x7f]/.test(value)) throw wrong(`${name} holds characters that are not percent-encoded`);
  if (!value.includes('%')) return value;
  if (/%(?![0-9A-Fa-f]{2})/.test(value)) throw wrong(`${name} holds a % without two hexadecimal digits`);
  try {
    return decodeURIComponent(value);
  } catch {
    throw wrong(`${name} is not UTF-8`);
  }
}

/** An attribute as a field has it. */
function encoded(value) {
  return `${value}`.replace(/[^\x21-\x7e]|["%]/gu, (letter) => (
    [...Buffer.from(letter)].map((byte) => `%${byte.toString(16).toUpperCase().padStart(2, '0')}`).join('')));
}

/** [fields, body] of an event with its attributes in fields. */
function binary(event) {
  const attributes = attributesOf(event);
  for (const name of Object.keys(attributes)) if (attributes[name] === undefined || attributes[name] === null) delete attributes[name];
  check(attributes, [attributes.specversion]);
  const { datacontenttype: kind, ...others } = attributes;
  const fields = Object.entries(others).map(([name, value]) => [`ce-${name}`, encoded(value)]);
  const { data } = event;
  const typed = (otherwise) => [...fields, ['content-type', kind ?? otherwise]];
  if (data === undefined || data === null) return [kind ? typed() : fields, ''];
  if (data instanceof Uint8Array) return [typed('application/octet-stream'), data];
  if (typeof data === 'string' && kind && !isJson(kind)) return [typed(), data];
  const json = JSON.stringify(data);
  if (json === undefined) throw wrong('the data is not JSON');
  return [typed('application/json'), json];
}

/** A new event; `id` and `time` are filled in. */
function made(members) {
  const { data, ...given } = { specversion: '1.0', id: crypto.randomUUID(), time: new Date(), ...members };
  const attributes = {};
  for (const [name, value] of Object.entries(given)) {
    if (value !== undefined && value !== null) attributes[name] = value instanceof Date ? value.toISOString() : value;
  }
  check(attributes);
  return new CloudEvent(attributes, data);
}

module.exports = { CloudEvent, CloudEventError, received, fromFields, fromJson, parsed, binary, made, encoded, mediaType };
