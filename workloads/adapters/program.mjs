// A workload in JavaScript as a program that runs once per call: the query is in $Http_Query, where
// the watchdogs of OpenFaaS put it, and the answer goes to standard output.
import { run } from './workload.mjs';

const query = Object.fromEntries(new URLSearchParams(process.env.Http_Query));
process.stdout.write((await run(query, process.env)).text);
