// Drives a node with OpenWhisk's own client of npm. Says "passed" when all of it went as the platform's
// users expect, else which step did not.
'use strict';
const assert = require('node:assert');
const openwhisk = require('openwhisk');

const [apihost, key, actionCode, chainCode] = process.argv.slice(2);
const ow = openwhisk({ apihost, api_key: key });

const steps = {
  async 'a wrong key'() {
    const stranger = openwhisk({ apihost, api_key: 'guest:wrong' });
    await assert.rejects(stranger.actions.list(), { statusCode: 401 });
  },
  async namespaces() {
    assert.deepStrictEqual(await ow.namespaces.list(), ['guest']);
  },
  async actions() {
    const made = await ow.actions.create({
      name: 'hello', action: actionCode, kind: 'nodejs:default', params: { mark: '!' },
      annotations: { note: 'n' }, limits: { timeout: 5000 },
    });
    assert.strictEqual(made.version, '0.0.1');
    assert.deepStrictEqual(made.parameters, [{ key: 'mark', value: '!' }]);
    assert.strictEqual(made.limits.timeout, 5000);
    assert.ok(made.annotations.some((one) => one.key === 'note' && one.value === 'n'));
    await assert.rejects(ow.actions.create({ name: 'hello', action: actionCode }), { statusCode: 409 });
    const updated = await ow.actions.update({ name: 'hello', action: actionCode, params: { mark: '?' } });
    assert.strictEqual(updated.version, '0.0.2');
    const got = await ow.actions.get('hello');
    assert.strictEqual(got.exec.code, actionCode);
    assert.ok(got.exec.kind.startsWith('nodejs'));
    const listed = await ow.actions.list({ limit: 10 });
    assert.deepStrictEqual(listed.map((one) => one.name), ['hello']);
    assert.deepStrictEqual(await ow.actions.list({ count: true }), { actions: 1 });
    await assert.rejects(ow.actions.get('nobody'), { statusCode: 404 });
    await assert.rejects(ow.actions.invoke('nobody'), { statusCode: 404 });
  },
  async 'actions are called'() {
    const params = { name: 'you' };
    const result = await ow.actions.invoke({ name: 'hello', blocking: true, result: true, params });
    assert.deepStrictEqual(result, { greeting: 'Hello you?' });
    const whole = await ow.actions.invoke({ name: '/_/hello', blocking: true, params });
    assert.strictEqual(whole.response.success, true);
    assert.deepStrictEqual(whole.response.result, result);
    const failed = ow.actions.invoke({ name: 'hello', blocking: true, result: true, params: { fail: true } });
    await assert.rejects(failed, (error) => {
      assert.strictEqual(error.statusCode, 502);
      assert.ok(error.message.includes('no such sensor'), error.message);
      return true;
    });
  },
  async activations() {
    const { activationId } = await ow.actions.invoke({ name: 'hello', params: { name: 'later' } });
    const record = await until(() => ow.activations.get(activationId));
    assert.deepStrictEqual(record.response.result, { greeting: 'Hello later?' });
    assert.deepStrictEqual((await ow.activations.result(activationId)).result, record.response.result);
    const { logs } = await ow.activations.logs(activationId);
    assert.ok(logs.some((line) => line.endsWith('stdout: seen later')), JSON.stringify(logs));
    const listed = await ow.activations.list({ name: 'hello', limit: 2 });
    assert.strictEqual(listed.length, 2);
    assert.strictEqual(listed[0].activationId, activationId);
    assert.strictEqual(listed[0].logs, undefined);
    const since = await ow.activations.list({ since: record.start + 1, upto: record.start + 2 });
    assert.deepStrictEqual(since, []);
    await assert.rejects(ow.activations.get('0'.repeat(32)), { statusCode: 404 });
  },
  async packages() {
    const made = await ow.packages.update({
      name: 'sensors', package: { parameters: [{ key: 'place', value: 'Kent' }], publish: true },
    });
    assert.strictEqual(made.publish, true);
    await ow.actions.update({ name: 'sensors/where', action: chainCode });
    const held = await ow.packages.get('sensors');
    assert.deepStrictEqual(held.actions.map((one) => one.name), ['where']);
    const called = (name) => ow.actions.invoke({ name, blocking: true, result: true });
    assert.strictEqual((await called('sensors/where')).seen.place, 'Kent');
    await ow.packages.update({
      name: 'bound', package: { binding: { namespace: '_', name: 'sensors' }, parameters: [{ key: 'place', value: 'York' }] },
    });
    assert.strictEqual((await called('bound/where')).seen.place, 'York');
    assert.deepStrictEqual((await ow.packages.list()).map((one) => one.name), ['bound', 'sensors']);
    await assert.rejects(ow.packages.delete('sensors'), { statusCode: 409 });
    await ow.packages.delete('bound');
    await assert.rejects(ow.packages.get('bound'), { statusCode: 404 });
  },
  async sequences() {
    await ow.actions.create({ name: 'both', sequence: ['/_/hello', '/_/sensors/where'] });
    const got = await ow.actions.get('both');
    assert.deepStrictEqual(got.exec.components, ['/guest/hello', '/guest/sensors/where']);
    const whole = await ow.actions.invoke({ name: 'both', blocking: true, params: { name: 'two' } });
    assert.strictEqual(whole.response.result.seen.greeting, 'Hello two?');
    assert.strictEqual(whole.logs.length, 2);
    assert.strictEqual((await ow.activations.get(whole.logs[0])).cause, whole.activationId);
    await assert.rejects(ow.actions.create({ name: 'lost', sequence: ['/_/nobody'] }), { statusCode: 404 });
  },
  async 'triggers and rules'() {
    await ow.triggers.create({ name: 'every', trigger: { parameters: [{ key: 'name', value: 'trigger' }] } });
    await assert.rejects(ow.triggers.create({ name: 'every' }), { statusCode: 409 });
    const quiet = await ow.triggers.invoke({ name: 'every' });
    assert.ok(!quiet || quiet.activationId === undefined, JSON.stringify(quiet));
    const rule = await ow.rules.create({ name: 'on-every', action: 'hello', trigger: 'every' });
    assert.strictEqual(rule.status, 'active');
    const { activationId } = await ow.triggers.invoke({ name: 'every', params: { mark: '.' } });
    const fired = await until(() => ow.activations.get(activationId));
    const ran = JSON.parse(fired.logs[0]);
    const caused = await until(() => ow.activations.get(ran.activationId));
    assert.deepStrictEqual(caused.response.result, { greeting: 'Hello trigger.' });
    await ow.rules.disable({ name: 'on-every' });
    assert.strictEqual((await ow.rules.get({ name: 'on-every' })).status, 'inactive');
    await ow.rules.enable({ name: 'on-every' });
    assert.strictEqual((await ow.triggers.get('every')).rules['guest/on-every'].status, 'active');
    const updated = await ow.rules.update({ name: 'on-every', action: 'both', trigger: 'every' });
    assert.strictEqual(updated.action.name, 'both');
    assert.deepStrictEqual((await ow.rules.list()).map((one) => one.name), ['on-every']);
    assert.deepStrictEqual((await ow.triggers.list()).map((one) => one.name), ['every']);
    await assert.rejects(ow.rules.create({ name: 'x', action: 'nobody', trigger: 'every' }), { statusCode: 404 });
    await ow.rules.delete({ name: 'on-every' });
    await ow.triggers.delete({ name: 'every' });
    await assert.rejects(ow.triggers.get('every'), { statusCode: 404 });
  },
  async 'web actions'() {
    await ow.actions.update({ name: 'page', action: actionCode, annotations: { 'web-export': true } });
    const answer = await fetch(`${apihost}/api/v1/web/guest/default/page.json?name=web`);
    assert.strictEqual(answer.status, 200);
    assert.deepStrictEqual(await answer.json(), { greeting: 'Hello web' });
    assert.strictEqual((await fetch(`${apihost}/api/v1/web/guest/default/hello.json`)).status, 404);
  },
  async 'binary actions and other languages'() {
    const code = "def main(args):\n    return {'python': args.get('n', 0) + 1}\n";
    await ow.actions.update({ name: 'py', action: code, kind: 'python:3' });
    const result = await ow.actions.invoke({ name: 'py', blocking: true, result: true, params: { n: 1 } });
    assert.deepStrictEqual(result, { python: 2 });
    const zip = Buffer.from(process.env.ZIP, 'base64');
    await ow.actions.update({ name: 'zipped', action: zip, kind: 'nodejs:default' });
    const unzipped = await ow.actions.invoke({ name: 'zipped', blocking: true, result: true });
    assert.deepStrictEqual(unzipped, { from: 'zip' });
  },
  async removal() {
    for (const name of ['both', 'hello', 'page', 'py', 'zipped', 'sensors/where']) {
      await ow.actions.delete(name);
    }
    await ow.packages.delete('sensors');
    assert.deepStrictEqual(await ow.actions.list(), []);
    await assert.rejects(ow.actions.delete('hello'), { statusCode: 404 });
  },
};

/** Asks until the answer is there: records appear when a call has ended. */
async function until(ask) {
  for (const end = Date.now() + 60_000; ; ) {
    try {
      return await ask();
    } catch (error) {
      if (error.statusCode !== 404 || Date.now() > end) throw error;
    }
  }
}

(async () => {
  const failed = [];
  for (const [name, step] of Object.entries(steps)) {
    try {
      await step();
    } catch (error) {
      failed.push(`${name}: ${error.stack}`);
    }
  }
  console.log(failed.length ? failed.join('\n') : 'passed');
})();
