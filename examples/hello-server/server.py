"""Any HTTP/1.1 server on $PORT is a function; this one needs nothing but Python."""

import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Hello(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self.send_response(200)
        self.send_header("content-type", "text/plain; charset=utf-8")
        self.send_header("content-length", "4")
        self.end_headers()
        self.wfile.write(b"mote")

    do_POST = do_PUT = do_GET

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True


if __name__ == "__main__":
    Server(("127.0.0.1", int(os.environ["PORT"])), Hello).serve_forever()
