// A workload in JavaScript as a handler of Nuclio's Node runtime.
const loaded = import(`${__dirname}/workload.mjs`);

exports.handler = async (context, event) => {
  try {
    const { run } = await loaded;
    const { text } = await run(event.fields || {}, process.env);
    context.callback(new context.Response(text, {}, 'text/plain', 200));
  } catch (error) {
    context.callback(new context.Response(String(error), {}, 'text/plain', 500));
  }
};
