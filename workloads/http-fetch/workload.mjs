// Fetches a page of an HTTP server over kept connections and answers with its text.
import { Agent, get } from 'node:http';

const agent = new Agent({ keepAlive: true, maxSockets: 64 });

export function run(params, environment) {
  const url = new URL(params.page || '4', environment.PAGES_URL);
  return new Promise((resolve, reject) => {
    const request = get(url, { agent, timeout: 10_000 }, (answer) => {
      const pieces = [];
      answer.on('data', (piece) => pieces.push(piece));
      answer.on('error', reject);
      answer.on('end', () => {
        const text = Buffer.concat(pieces).toString('latin1');
        const expected = Number(answer.headers['content-length']);
        if (answer.statusCode === 200 && text.length === expected) resolve({ text });
        else reject(new Error(`status ${answer.statusCode}, ${text.length} bytes of ${expected}`));
      });
    });
    request.on('timeout', () => request.destroy(new Error('no answer within 10 s')));
    request.on('error', reject);
  });
}
