"""A workload behind a plain HTTP server of the standard library: the baseline without a platform.

Usage: http_server.py; listens on 127.0.0.1:$PORT (0 lets the system choose) and prints the port. At
most $THREADS requests at once, by threads of one process, as the servers of the studied platforms.
"""

import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

import workload
from contract import respond

TURNS = threading.Semaphore(int(os.environ.get("THREADS", "4")))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    #: Head and body leave in one segment; otherwise the second waits for an acknowledgement.
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_GET(self):
        query = dict(parse_qsl(urlsplit(self.path).query))
        with TURNS:
            try:
                status, body = respond(workload, query)
            except Exception as error:
                status, body = 500, {"error": repr(error)}
        is_plain = getattr(workload, "PLAIN", False) and status == 200
        data = (body["text"] if is_plain else json.dumps(body)).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain" if is_plain else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024


if __name__ == "__main__":
    with Server(("127.0.0.1", int(os.environ.get("PORT", "0"))), Handler) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()
