"""Compares a node's HTTPS with nginx that terminates TLS in front of the same node, in alternation.

Usage: tls.py MOTE [SECONDS] [ROUNDS]. Both use one certificate (P-256) and the same function. wrk
is the client: on 64 kept connections, on 1, and with a new connection, and so a handshake, for each
request. Prints medians and ratios, and the memory that 1,000 idle connections take, without a
verdict.
"""

import os
import pathlib
import re
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROWS = [("64 kept connections", 64, []), ("1 kept connection", 1, []),
        ("a handshake for each request, 16 clients", 16, ["-H", "Connection: close"])]
IDLE_CONNECTIONS = 1_000
NGINX = """
worker_processes auto;
pid {folder}/nginx.pid;
error_log {folder}/nginx.log;
events {{ worker_connections 8192; }}
http {{
  access_log off;
  client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  keepalive_requests 1000000000;
  upstream node {{ server 127.0.0.1:{http}; keepalive 128; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{port} ssl backlog=4096;
    ssl_certificate {folder}/own.crt; ssl_certificate_key {folder}/own.key;
    ssl_protocols TLSv1.2 TLSv1.3;
    location / {{ proxy_pass http://node; proxy_http_version 1.1; proxy_set_header Connection ""; }}
  }}
}}
"""


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def wait_for(port, process):
    until = time.monotonic() + 30
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if time.monotonic() > until or process.poll() is not None:
                sys.exit(f"nothing listens on port {port}")
            time.sleep(0.05)


def rate(port, clients, seconds, more):
    url = f"https://127.0.0.1:{port}/hello-node"
    command = ["wrk", "-t1", "-c", str(clients), "-d", f"{seconds}s", *more, url]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    # wrk counts the end of each connection as an error of reading.
    errors = re.search(r"Socket errors: (?!connect 0, read \d+, write 0, timeout 0)", out)
    if "Non-2xx" in out or errors:
        print(out)
        sys.exit("a request failed")
    return float(re.search(r"Requests/sec:\s+([\d.]+)", out)[1])


def anonymous_kib(pids):
    total = 0
    for pid in pids:
        text = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
        total += int(re.search(r"^Anonymous:\s+(\d+)", text, re.MULTILINE)[1])
    return total


def idle_cost(port, pids):
    """Memory of each idle connection in KiB, after one request on it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    before, kept = anonymous_kib(pids), []
    for _ in range(IDLE_CONNECTIONS):
        session = context.wrap_socket(socket.create_connection(("127.0.0.1", port)))
        session.sendall(b"GET /hello-node HTTP/1.1\r\nHost: localhost\r\n\r\n")
        session.recv(4096)
        kept.append(session)
    cost = (anonymous_kib(pids) - before) / IDLE_CONNECTIONS
    for session in kept:
        session.close()
    return cost


def main():
    mote = str(pathlib.Path(sys.argv[1]).resolve())
    seconds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder).chmod(0o755)
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
             "-nodes", "-days", "2", "-subj", "/CN=own", "-addext", "subjectAltName=IP:127.0.0.1",
             "-keyout", "own.key", "-out", "own.crt"],
            check=True, capture_output=True, cwd=folder)
        http, https, port = free_port(), free_port(), free_port()
        certificates = pathlib.Path(folder, "certificates")
        certificates.mkdir()
        for name in ("own.key", "own.crt"):
            (certificates / name).write_bytes(pathlib.Path(folder, name).read_bytes())
        env = {**os.environ, "MOTE_SOCKET": f"{folder}/socket"}
        node = subprocess.Popen(
            [mote, "up", "--data", f"{folder}/data", "--socket", f"{folder}/socket",
             "--coap", "off", "--http", f"127.0.0.1:{http}", "--https", f"127.0.0.1:{https}",
             "--certificates", certificates],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        nginx = None
        try:
            wait_for(https, node)
            function = str(ROOT / "examples/hello-node")
            subprocess.run([mote, "deploy", "--quiet", function], check=True, env=env)
            config = NGINX.format(folder=folder, http=http, port=port)
            pathlib.Path(folder, "nginx.conf").write_text(config)
            nginx = subprocess.Popen(["nginx", "-c", f"{folder}/nginx.conf", "-g", "daemon off;"])
            wait_for(port, nginx)
            workers = [int(pid) for pid in subprocess.run(
                ["pgrep", "-P", str(nginx.pid)], capture_output=True, text=True).stdout.split()]
            print(f"{'':44}{'mote':>12}{'nginx':>12}{'ratio':>8}")
            for name, clients, more in ROWS:
                rates = {https: [], port: []}
                for turn in range(rounds):
                    for at in (https, port) if turn % 2 == 0 else (port, https):
                        rates[at].append(rate(at, clients, seconds, more))
                ours, theirs = (statistics.median(rates[at]) for at in (https, port))
                pairs = zip(rates[https], rates[port], strict=True)
                ratio = statistics.median(a / b for a, b in pairs)
                print(f"{name:44}{ours:10.0f}/s{theirs:10.0f}/s{ratio:8.2f}")
            ours, theirs = idle_cost(https, [node.pid]), idle_cost(port, workers)
            print(f"{'a connection at rest':44}{ours:8.1f} KiB{theirs:8.1f} KiB")
        finally:
            for process in filter(None, (nginx, node)):
                process.terminate()
                process.wait()


main()
