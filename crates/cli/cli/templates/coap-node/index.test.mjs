import assert from 'node:assert/strict';
import { test } from 'node:test';

import { handle } from './index.mjs';

test('keeps the last reading and notifies', async () => {
  const values = new Map();
  const notified = [];
  const ctx = {
    kv: {
      get: async (key) => values.get(key) ?? null,
      put: async (key, text) => values.set(key, Buffer.from(text)),
    },
    notify: async (path, body) => notified.push([path, body]),
  };
  assert.equal(await handle({ method: 'GET' }, ctx), 'unknown');
  await handle({ method: 'PUT', text: () => '21.5' }, ctx);
  assert.equal(await handle({ method: 'GET' }, ctx), '21.5');
  assert.deepEqual(notified, [['/', '21.5']]);
});
