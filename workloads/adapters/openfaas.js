// A workload in JavaScript as a handler of OpenFaaS's Node templates.
'use strict';

module.exports = async (event, context) => {
  const { run } = await import('./workload.mjs');
  const { text } = await run(event.query || {}, process.env);
  return context.status(200).headers({ 'content-type': 'text/plain' }).succeed(text);
};
