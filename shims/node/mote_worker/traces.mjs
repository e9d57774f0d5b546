// The trace of an error, in the form that the engine and the logs show.
//
// This part knows errors alone.

import { fileURLToPath } from 'node:url';

import { LINE_MAX } from './wire.mjs';

const CAUSES_MAX = 5; // of an error, in its trace

/** The stack without the shim's own frames, then those of its causes: `fetch failed` says nothing, its
 * cause does. `folder` is the URL of where the shim lies. */
export function trimmed(error, folder) {
  const parts = [];
  try {
    if (!(error instanceof Error) && !error?.stack) return ''; // some of Bun's errors have none
    const own = `${fileURLToPath(folder)}mote_`; // `mote_shim.mjs`, or its parts
    for (let at = error; at !== undefined && at !== null && parts.length < CAUSES_MAX; at = at.cause) {
      parts.push(trimmedOne(at, own));
    }
  } catch { /* a getter of the function's that throws: what is there must do */ }
  return parts.join('\ncaused by ').slice(0, LINE_MAX);
}

function trimmedOne(error, own) {
  const lines = String(error.stack || error).split('\n')
    .filter((line) => !line.includes(own) && !line.includes('node:internal') && !line.includes('ext:'));
  // An error may consist of several, for example if several addresses were tried. It then has no
  // text of its own.
  const errors = Array.isArray(error.errors) ? error.errors.slice(0, CAUSES_MAX) : [];
  return [...lines, ...errors.map((one) => `    of ${String(one?.stack ?? one).split('\n')[0]}`)].join('\n');
}
