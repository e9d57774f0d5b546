"""Functions behind `serve.py`, as they run in a container without mote."""

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
SHIMS = os.path.join(HERE, "..")
EXAMPLES = os.path.join(SHIMS, "..", "examples")
FIXTURES = os.path.join(SHIMS, "..", "tests", "fixtures", "compat")
SECONDS_MAX = 30  # a test that would wait longer has failed
WORKERS = {
    "python": [sys.executable, "-u", "-s", "-B", os.path.join(SHIMS, "python", "mote_shim.py")],
    "node": ["node", os.path.join(SHIMS, "node", "mote_shim.mjs")],
}


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


class Running:
    """A running function; `folder` has its code."""

    def __init__(self, runtime, folder, env=None, **more):
        self.dir = tempfile.mkdtemp()
        description = {
            "name": "fn", "runtime": runtime, "entry": "", "folder": os.path.abspath(folder), "queue": 8,
            "timeout_ms": 10_000, "init_timeout_ms": 20_000, "stream_idle_ms": 10_000, "body_bytes": 6 << 20,
            "worker": WORKERS.get(runtime), **more,
        }  # fmt: skip
        path = os.path.join(self.dir, "function.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(description, file)
        self.port = free_port()
        self.process = subprocess.Popen(
            [sys.executable, os.path.join(HERE, "serve.py"), path],
            env={**os.environ, "LISTEN_PORT": str(self.port), "LEAVING_SECONDS": "0", **(env or {})},
            stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.said = []
        self.heard = threading.Condition()
        self.ready = threading.Event()
        threading.Thread(target=self.listen, args=(self.process.stderr,), daemon=True).start()
        threading.Thread(target=self.listen, args=(self.process.stdout,), daemon=True).start()

    def listen(self, stream):
        for line in stream:
            with self.heard:
                self.said.append(line)
                self.heard.notify_all()
            if line.startswith("serving "):
                self.ready.set()

    def says(self, words):
        """Whether a line with these words has arrived or arrives; an answer may overtake its
        lines."""
        with self.heard:
            return self.heard.wait_for(lambda: any(words in line for line in self.said), SECONDS_MAX)

    def __enter__(self):
        if not self.ready.wait(SECONDS_MAX):
            self.__exit__()
            raise AssertionError("".join(self.said))
        return self

    def __exit__(self, *_):
        # A killed server would leave its function's processes behind.
        self.process.terminate()
        try:
            self.process.wait(SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.dir)

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS_MAX)

    def call(self, method="GET", path="/", body=None, headers=None, connection=None):
        own = connection or self.connect()
        own.request(method, path, body, headers or {})
        answer = own.getresponse()
        found = answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
        if connection is None:
            own.close()
        return found


class Examples(unittest.TestCase):
    def check_echo(self, runtime, **more):
        name = {"exec": "shell"}.get(runtime, runtime)
        with Running(runtime, os.path.join(EXAMPLES, "echo-" + name), **more) as fn:
            connection = fn.connect()
            for size in (0, 5, 64 << 10, 65_537, 3 << 20):
                body = os.urandom(size)
                status, _, answer = fn.call("POST", "/", body, {"content-type": "a/b"}, connection)
                self.assertEqual((status, answer == body), (200, True), size)
            pieces = iter([b"one ", b"two"])
            self.assertEqual(fn.call("POST", "/", pieces, connection=connection)[2], b"one two")
            if runtime in WORKERS:
                _, _, answer = fn.call("PUT", "/inspect?a=b", headers={"X-A": "1", "Mote_Caller": "forged"})
                seen = json.loads(answer)
                self.assertEqual((seen["method"], seen["path"], seen["query"]), ("PUT", "/inspect", "a=b"))
                self.assertEqual((seen["headers"]["x-a"], seen["trigger"]), ("1", "http"))
                self.assertNotIn("forged", answer.decode())

    def test_python(self):
        self.check_echo("python", entry="echo:handle")

    def test_node(self):
        self.check_echo("node", entry="echo.mjs")

    def test_program(self):
        self.check_echo("exec", command=["./echo.sh"])

    def test_server(self):
        self.check_echo("server", command=["node", "server.mjs"], port=free_port())

    def test_another_platforms_contract(self):
        folder = os.path.join(FIXTURES, "openfaas", "http")
        more = {"entry": "handler:handle", "compat": "openfaas", "template": "python3-http"}
        with Running("python", folder, **more) as fn:
            status, _, answer = fn.call("POST", "/", b"hi", {"x-sensor": "t1", "content-type": "text/plain"})
            self.assertLess(status, 300, answer)


class Rules(unittest.TestCase):
    def write(self, code, name="app.py"):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        path = os.path.join(folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(code)
        os.chmod(path, 0o755)
        return folder

    def test_a_probe_does_not_call_the_function(self):
        folder = self.write("def handle(event, ctx):\n    return 'called'\n")
        more = {"entry": "app:handle", "health": "/_/health", "methods": ["POST"]}
        with Running("python", folder, **more) as fn:
            self.assertEqual(fn.call("GET", path="/_/health")[::2], (200, b"OK\n"))
            self.assertEqual(fn.call("POST", path="/_/health")[::2], (200, b"called"))

    def test_answers_of_functions(self):
        code = (
            "import os\n"
            "def handle(event, ctx):\n"
            "    if event.path == '/fails':\n        raise ValueError('inner words')\n"
            "    if event.path == '/none':\n        return None\n"
            "    if event.path == '/pieces':\n        return (b'%d' % n * 70_000 for n in range(9))\n"
            "    print('printed')\n"
            "    return os.environ['UNIT'], 201, {'x-b': 'c', 'connection': 'close'}\n"
        )
        with Running("python", self.write(code), {"UNIT": "C"}, entry="app:handle", methods=["GET", "POST"]) as fn:
            status, fields, body = fn.call()
            self.assertEqual((status, body, fields["x-b"], fields["content-length"]), (201, b"C", "c", "1"))
            self.assertEqual(fn.call(path="/none")[::2], (204, b""))
            status, fields, body = fn.call(path="/pieces")
            self.assertEqual((status, len(body), fields["transfer-encoding"]), (200, 630_000, "chunked"))
            status, _, body = fn.call(path="/fails")
            self.assertEqual(status, 500)
            self.assertNotIn(b"inner words", body)
            self.assertEqual(fn.call("DELETE")[0], 405)
            self.assertTrue(fn.says("printed\n"))
            self.assertTrue(fn.says("inner words"))

    def test_bodies_and_queues_are_bounded(self):
        code = "import time\ndef handle(event, ctx):\n    time.sleep(float(event.body or 0))\n    return 'x'\n"
        with Running("python", self.write(code), entry="app:handle", body_bytes=1000, queue=1, timeout_ms=5_000) as fn:
            self.assertEqual(fn.call("POST", "/", b"x" * 1001)[0], 413)
            self.assertEqual(fn.call("POST", "/", iter([b"x" * 600] * 2))[0], 413)
            found = []

            def ask():
                found.append(fn.call("POST", "/", b"1")[0])

            threads = [threading.Thread(target=ask) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(sorted(found), [200, 200, 429, 429])

    def test_framing_is_read_strictly(self):
        with Running("python", os.path.join(EXAMPLES, "echo-python"), entry="echo:handle") as fn:
            for head in (
                "content-length: 1\r\ntransfer-encoding: chunked",
                "transfer-encoding: chunked, chunked",
                "content-length: +1",
                "content-length: 1\r\ncontent-length: 2",
            ):
                with socket.create_connection(("127.0.0.1", fn.port), SECONDS_MAX) as sock:
                    sock.sendall(("POST / HTTP/1.1\r\nhost: a\r\n%s\r\n\r\n0\r\n\r\n" % head).encode())
                    self.assertIn(b" 400 ", sock.makefile("rb").readline(), head)

    def test_a_stuck_worker_ends_the_container(self):
        code = "import time\ndef handle(event, ctx):\n    time.sleep(600)\n"
        with Running("python", self.write(code), entry="app:handle", timeout_ms=300) as fn:
            self.assertEqual(fn.call()[0], 504)
            self.assertEqual(fn.process.wait(SECONDS_MAX), 1)

    def test_a_function_that_cannot_start_ends_the_container(self):
        fn = Running("python", self.write("raise ValueError('not today')"), entry="app:handle")
        self.addCleanup(fn.__exit__)
        self.assertEqual(fn.process.wait(SECONDS_MAX), 1)
        self.assertFalse(fn.ready.is_set())

    def test_programs_set_status_and_end_at_the_deadline(self):
        code = (
            "#!/bin/sh\n"
            "case $MOTE_PATH in\n"
            "/slow) sleep 600 ;;\n/fails) exit 3 ;;\n"
            "*) printf 'status 202\\nx-a: b\\n' >&3; echo \"$MOTE_METHOD $MOTE_QUERY $MOTE_HEADER_X_B\" ;;\n"
            "esac\n"
        )
        with Running("exec", self.write(code, "run.sh"), command=["./run.sh"], timeout_ms=500) as fn:
            status, fields, body = fn.call("PUT", "/?q=1", headers={"x-b": "c"})
            self.assertEqual((status, fields["x-a"], body), (202, "b", b"PUT q=1 c\n"))
            self.assertEqual(fn.call(path="/fails")[0], 500)
            self.assertEqual(fn.call(path="/slow")[0], 504)

    def test_what_runs_is_finished_before_the_end(self):
        code = "import time\ndef handle(event, ctx):\n    print('begun')\n    time.sleep(1)\n    return 'done'\n"
        with Running("python", self.write(code), entry="app:handle") as fn:
            found = []
            thread = threading.Thread(target=lambda: found.append(fn.call()[2]))
            thread.start()
            self.assertTrue(fn.says("begun\n"))
            fn.process.send_signal(signal.SIGTERM)
            thread.join()
            self.assertEqual((found, fn.process.wait(SECONDS_MAX)), ([b"done"], 0))

    def test_one_request_from_the_command_line(self):
        with Running("python", os.path.join(EXAMPLES, "echo-python"), entry="echo:handle") as fn:
            url = "http://127.0.0.1:%d/" % fn.port
            argv = [sys.executable, os.path.join(HERE, "serve.py"), "call", url, "POST", "tick"]
            self.assertEqual(subprocess.run(argv, stdout=subprocess.PIPE, check=True).stdout, b"tick")
            argv[3] = "http://127.0.0.1:1/"
            self.assertEqual(subprocess.run(argv, stderr=subprocess.PIPE, check=False).returncode, 1)


if __name__ == "__main__":
    unittest.main()
