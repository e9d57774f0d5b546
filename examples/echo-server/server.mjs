// Any HTTP/1.1 server on $PORT is a function. This one answers with what it was sent.
import http from 'node:http';

http.createServer((request, response) => {
  response.setHeader('content-type', request.headers['content-type'] ?? 'application/octet-stream');
  if (request.headers['content-length']) response.setHeader('content-length', request.headers['content-length']);
  request.pipe(response);
}).listen(Number(process.env.PORT), '127.0.0.1');
