// A workload in JavaScript as an action of OpenWhisk. The runtime evaluates this text, so it finds
// the workload by the path in $WORKLOAD_FILE.
const loaded = import(process.env.WORKLOAD_FILE);

async function main(params) {
  const { run } = await loaded;
  return run(params, process.env);
}
