// A workload in JavaScript as a function of Fission's Node environment.
import { run } from './workload.mjs';

export default async function (context) {
  const { text } = await run(context.request.query, process.env);
  return { status: 200, body: text, headers: { 'content-type': 'text/plain' } };
}
