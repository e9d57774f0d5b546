// The Node worker of mote: loads one function and answers its invocations over fd 3.
//
// The contract is docs/reference/worker-protocol.md. Standard library only, Node 18 or newer.
// Where to start reading: `main` in `mote_worker/main.mjs`, then `Worker` in `mote_worker/worker.mjs`.
//
// The parts are in `mote_worker/`, by topic:
//
//     main                        the start
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
// A sandbox gets the parts as one CommonJS module, `mote_worker.cjs`: opening several files makes a cold
// start slower, and Node can keep compiled code of such a module alone (`mote_start.cjs`). So the parts
// share one namespace there (see `crates/manage/build/build.rs`). A part imports another only with
// `import { ... } from './NAME.mjs';` at its head, under the same name; no two parts define the same
// name, and all import a module of Node by the same line. A part does not use `import.meta`.

import fs from 'node:fs';

import { main } from './mote_worker/main.mjs';

export { Prepared, blockOf, headOf, keptBlockOf, later } from './mote_worker/adapters.mjs';

const own = new URL(import.meta.url);
if (process.argv[1] && fs.realpathSync(process.argv[1]) === own.pathname) main(new URL('.', own).href);
