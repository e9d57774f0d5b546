// A workload in JavaScript behind Node's own HTTP server: the baseline without a platform.
// Listens on $HOST (127.0.0.1 unless it is set), $PORT (0 lets the system choose), and prints the
// port.
import { createServer } from 'node:http';
import { run } from './workload.mjs';

const server = createServer(async (request, response) => {
  try {
    const query = Object.fromEntries(new URL(request.url, 'http://localhost').searchParams);
    const { text } = await run(query, process.env);
    response.writeHead(200, { 'content-type': 'text/plain', 'content-length': Buffer.byteLength(text) });
    response.end(text);
  } catch (error) {
    response.writeHead(500).end(String(error));
  }
});
server.keepAliveTimeout = 300_000;
const { PORT, HOST } = process.env;
server.listen({ port: Number(PORT || 0), host: HOST || '127.0.0.1', backlog: 4096 }, () => {
  console.log(server.address().port);
});
