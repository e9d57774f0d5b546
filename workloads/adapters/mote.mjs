// A workload in JavaScript as a function of mote.
import { run } from './workload.mjs';

export async function handle(event, ctx) {
  return (await run(event.args, process.env)).text;
}
