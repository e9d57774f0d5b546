// Compiles hello.js and an engine for JavaScript to one component.
import { readFile, writeFile } from 'node:fs/promises';
import { resolve } from 'node:path';
import { componentize } from '@bytecodealliance/componentize-js';

const source = await readFile('hello.js', 'utf8');
const { component } = await componentize(source, {
  witPath: resolve('../wit'),
  worldName: 'hello',
});
await writeFile('hello.wasm', component);
