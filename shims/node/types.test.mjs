// The types for editors (mote.d.ts) must match the objects that functions really receive.

import assert from 'node:assert/strict';
import fs from 'node:fs';
import { test } from 'node:test';

import { Context, Event } from './mote_worker/events.mjs';
import { Kv } from './mote_worker/services.mjs';

const text = fs.readFileSync(new URL('./mote.d.ts', import.meta.url), 'utf8');

/** The members of an interface. */
function typed(name) {
  const [, body] = new RegExp(`^export interface ${name} \\{\n(.*?)^\\}`, 'ms').exec(text);
  return [...body.matchAll(/^ {2}(?:readonly )?(\w+)[(:?]/gm)].map(([, member]) => member).sort();
}

test('the types have each public member, and no other', () => {
  for (const [name, { prototype }, more] of [
    ['Event', Event, []],
    // `passThroughOnException` exists for code that was written for another platform, and `log` is
    // the console.
    ['Context', Context, ['log', 'passThroughOnException']],
    ['Kv', Kv, []],
  ]) {
    const members = Object.getOwnPropertyNames(prototype);
    const real = members.filter((member) => member !== 'constructor' && !more.includes(member));
    assert.deepEqual(typed(name), real.sort(), name);
  }
});
