import assert from 'node:assert/strict';
import { test } from 'node:test';

import hello from './index.ts';

test('greets by name', async () => {
  const answer = hello.fetch(new Request('http://localhost/?name=Ada'));
  assert.deepEqual(await answer.json(), { message: 'Hello, Ada!' });
});
