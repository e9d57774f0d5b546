// Signs requests with the libraries of the services that send them. Each line of the input is a wish:
// {"scheme": …, "secret": …, "body": …, "time": seconds}; each line of the output has the header fields.
import { createInterface } from 'node:readline';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const require = createRequire(`${process.argv[2]}/`);
// This one has no entry for require().
const octokit = await import(pathToFileURL(`${process.argv[2]}/@octokit/webhooks-methods/dist-node/index.js`));
const stripe = require('stripe');
const { Webhook } = require('standardwebhooks');

const client = new (stripe.default ?? stripe)('sk_test_x');
const signers = {
  async github({ secret, body }) {
    return { 'X-Hub-Signature-256': await octokit.sign(secret, body) };
  },
  async stripe({ secret, body, time }) {
    const signature = client.webhooks.generateTestHeaderString({ payload: body, secret, timestamp: time });
    return { 'Stripe-Signature': signature };
  },
  async standard({ secret, body, time }) {
    const id = 'msg_1';
    const signature = new Webhook(secret).sign(id, new Date(time * 1000), body);
    return { 'Webhook-Id': id, 'Webhook-Timestamp': String(time), 'Webhook-Signature': signature };
  },
};
for await (const line of createInterface({ input: process.stdin })) {
  const wish = JSON.parse(line);
  console.log(JSON.stringify(await signers[wish.scheme](wish)));
}
