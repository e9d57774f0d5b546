// Adapters use only those parts of the shim that are offered to them.

import assert from 'node:assert/strict';
import fs from 'node:fs';
import { test } from 'node:test';

import * as offered from './mote_worker/adapters.mjs';
import * as shim from './mote_shim.mjs';

const FOLDER = new URL('compat/', import.meta.url);
const EVENTS = 'mote_cloudevents.cjs'; // a file of its own, of which adapters may use what it exports
const OF_NODE = /\b(module\.Module|made)\._\w+/g; // the loader of CommonJS has no other names for these

/** The names that an adapter imports from the shim, and the private members it touches. */
function uses(source) {
  const imports = [...source.matchAll(/^import \{([^}]*)\} from '\.\.\/([^']*)';$/gm)];
  const others = source.matchAll(/\bimport\b[^;]*['"`]\.\.\//g);
  return {
    names: imports.filter(([, , file]) => file !== EVENTS).flatMap(([, names]) => names.split(',').map((name) => name.trim()).filter(Boolean)),
    files: imports.map(([, , file]) => file),
    unread: [...others].length - imports.length,
    hidden: source.replace(OF_NODE, '').match(/\.\s*_(?!_)\w+/g) ?? [],
  };
}

test('what adapters use is offered', () => {
  const used = new Set();
  for (const name of fs.readdirSync(FOLDER)) {
    const { names, files, unread, hidden } = uses(fs.readFileSync(new URL(name, FOLDER), 'utf8'));
    assert.deepEqual({ hidden, unread }, { hidden: [], unread: 0 }, name);
    for (const file of files) assert.ok(file === 'mote_shim.mjs' || file === EVENTS, name);
    for (const one of names) used.add(one);
  }
  assert.deepEqual([...used].sort(), Object.keys(offered).sort(), 'what no adapter uses need not be offered');
});

test('the shim has what is offered, and nothing else', () => {
  assert.deepEqual(Object.keys(shim).sort(), Object.keys(offered).sort());
});

test('a use of something private is found', () => {
  const { names, files, hidden } = uses("import { Worker } from '../mote_worker/worker.mjs';\nevent._payload;\nmodule.Module._cache;");
  assert.deepEqual([names, files, hidden], [['Worker'], ['mote_worker/worker.mjs'], ['._payload']]);
});
