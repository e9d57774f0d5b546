// Replays shims/conformance/cloudevents.json: which messages are events, and which are refused.

import assert from 'node:assert/strict';
import fs from 'node:fs';
import { test } from 'node:test';

import codec from './mote_cloudevents.cjs';

const { cloudevents } = JSON.parse(fs.readFileSync(new URL('../conformance/cloudevents.json', import.meta.url), 'utf8'));
const bodyOf = (one) => ('body_hex' in one ? Buffer.from(one.body_hex, 'hex') : Buffer.from(one.body));
const dataOf = (one) => ('data_hex' in one ? Buffer.from(one.data_hex, 'hex') : one.data ?? one.data_text);

for (const one of cloudevents) {
  test(one.name, () => {
    const read = () => codec.received(one.headers, one.mqtt ?? false, () => bodyOf(one));
    if ('error' in one) {
      assert.throws(read, (error) => error instanceof codec.CloudEventError && error.message.includes(one.error)
        && error.moteAnswer[0] === `not a CloudEvent: ${error.message}\n` && error.moteAnswer[1] === 400);
      return;
    }
    const [isBatch, events] = read();
    assert.equal(isBatch, 'events' in one);
    const wanted = (one.events ?? ('event' in one ? [one] : [])).map((each) => ({ ...each.event, data: dataOf(each) }));
    assert.deepEqual(events.map((event) => ({ ...event })), wanted);
  });
}

test('a body is not read without an event', () => {
  assert.deepEqual(codec.received([['content-type', 'a/b']], false, null), [false, []]);
});

test('what is written is read again', () => {
  for (const data of [{ a: 'ü' }, 'text', Buffer.from([255, 0]), undefined, 0, []]) {
    const subject = ' "50%" + grün\u3000€😀\\ ';
    const event = codec.made({ source: '/a b', type: 't', data, subject, count: -1, flag: true });
    const [pairs, body] = codec.binary(event);
    for (const [, value] of pairs) assert.match(value, /^[\x20-\x7e]+$/);
    const [, [read]] = codec.received(pairs, false, () => Buffer.from(body));
    assert.deepEqual({ ...read, datacontenttype: 0 }, { ...event, count: '-1', flag: 'true', datacontenttype: 0 });
  }
});

test('what is no event is not made', () => {
  for (const wrong of [{ source: '' }, { my_ext: 'x' }, { time: 'now' }, { ext: 1.5 }, { subject: 'a\nb' }, { id: 1 }, { subject: '\ud800' }]) {
    assert.throws(() => codec.made({ source: '/s', type: 't', ...wrong }), (error) => (
      error instanceof codec.CloudEventError && error.moteAnswer === undefined));
  }
});
