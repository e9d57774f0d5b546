import assert from 'node:assert/strict';
import { test } from 'node:test';

import { handle } from './index.mjs';

test('answers when it was due', () => {
  const due = '2026-01-31T12:00:00Z';
  assert.deepEqual(handle({ headers: { 'mote-schedule-due': due } }), { ran: due });
});
