// A workload in JavaScript as a function of tinyFaaS, which passes no query.
const loaded = import(`${__dirname}/workload.mjs`);

module.exports = async (request, response) => {
  const { run } = await loaded;
  const { text } = await run({}, process.env);
  response.send(text);
};
