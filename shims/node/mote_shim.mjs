// The Node worker of mote: loads one function and answers its invocations over fd 3.
//
// The contract is docs/reference/worker-protocol.md. The worker uses only the standard library, and
// runs on Node 18 or newer. `mote_bun.mjs` and `mote_deno.mjs` start the same worker on Bun and Deno,
// and contain what these do otherwise. Start reading at `main` in `mote_worker/main.mjs`, then `Worker` in
// `mote_worker/worker.mjs`.
//
// The parts are in `mote_worker/`, by topic:
//
//     main                        the start
//     interpreter                 the connection and modules, which differ between Node, Bun and Deno
//     wire, headers               frames, limits, the clock, header blocks
//     invocation, events          what a function gets and returns
//     fetch, web_headers          the same in the classes of the Fetch standard
//     platform                    the platform's own classes, which are loaded late
//     bodies                      what does not fit into one frame
//     writer, output, traces      frames to the engine, lines that a function prints, its errors
//     worker, loading, rehearse   the loop, finding the function, and what fills the wait for one
//     system                      what the module `os` says
//     adapters                    what adapters for other platforms may use of all this
//
// A sandbox gets the parts as one CommonJS module, `mote_worker.cjs`, because opening several files
// makes a cold start slower, and because Node can keep compiled code only for such a module
// (`mote_start.cjs`). The parts therefore share one namespace there (see
// `crates/manage/build/build.rs`). A part imports names of another part only with `import { ... }
// from './NAME.mjs';` at its head, without renaming them. No two parts define the same name, and
// all parts import a Node module by the same line. A part does not use `import.meta`.

import fs from 'node:fs';

import { main } from './mote_worker/main.mjs';

export { Prepared, blockOf, headOf, keptBlockOf, later } from './mote_worker/adapters.mjs';

const own = new URL(import.meta.url);
if (process.argv[1] && fs.realpathSync(process.argv[1]) === own.pathname) main(new URL('.', own).href);
