import assert from 'node:assert/strict';
import { test } from 'node:test';

import { handle } from './index.mjs';

const reading = (celsius) => ({
  headers: { 'mqtt-topic': 'sensors/attic/temp' },
  json: () => ({ celsius }),
});

test('only a high temperature is an alarm', () => {
  assert.equal(handle(reading(20)), '');
  assert.equal(handle(reading(71)).alarm, 'sensors/attic/temp reports 71 degrees');
});
