"""A workload behind a plain HTTP server of the standard library: the baseline without a platform.

Usage: http_server.py; listens on $HOST (127.0.0.1 unless it is set), $PORT (0 lets the system
choose), and prints the port.
Calls wait in one queue for $THREADS workers of this process, as in the servers of the studied
platforms. The first worker is the main thread, where a platform that gives a function one call at
a time runs it too.
"""

import json
import os
import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

import workload
from contract import respond

CALLS = queue.SimpleQueue()


def work():
    """Answers calls for ever."""
    while True:
        query, answer = CALLS.get()
        try:
            answer.put(respond(workload, query))
        except Exception as error:
            answer.put((500, {"error": repr(error)}))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    #: Head and body leave in one segment; otherwise the second waits for an acknowledgement.
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_GET(self):
        query = dict(parse_qsl(urlsplit(self.path).query))
        answer = queue.SimpleQueue()
        CALLS.put((query, answer))
        status, body = answer.get()
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
    host, port = os.environ.get("HOST", "127.0.0.1"), int(os.environ.get("PORT", "0"))
    server = Server((host, port), Handler)
    print(server.server_address[1], flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for _ in range(int(os.environ.get("THREADS", "4")) - 1):
        threading.Thread(target=work, daemon=True).start()
    work()
