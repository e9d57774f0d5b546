"""Functions of every kind against a real worker process."""

import json
import os
import tempfile
import textwrap
import time
import unittest

from engine_double import Engine

SIZES = (0, 1, 64 << 10, (64 << 10) + 1, 5 << 20)


class Case(unittest.TestCase):
    def engine(self, code, entry="fn", **options):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        with open(os.path.join(folder.name, "fn.py"), "w", encoding="utf-8") as file:
            file.write(textwrap.dedent(code))
        engine = Engine(folder.name, entry, **options)
        self.addCleanup(engine.__exit__)
        return engine

    def load_error(self, code, entry="fn"):
        engine = self.engine(code, entry)
        self.assertEqual((engine.ready["kind"], engine.ready["stream"]), ("ERROR", 0), engine.ready)
        self.assertEqual(engine.exit_code(), 1)
        return engine.ready["json"]

    def check(self, frame, status, body, content_type=None):
        self.assertEqual(frame["kind"], "RESULT", frame)
        self.assertEqual((frame["status"], frame["body"]), (status, body))
        if content_type is not None:
            self.assertIn(["content-type", content_type], frame["headers"])

    def error(self, frame, kind):
        self.assertEqual(frame["kind"], "ERROR", frame)
        self.assertEqual(frame["json"]["kind"], kind, frame)
        return frame["json"]


class OwnModules(Case):
    """Modules of the function that have the names of standard modules."""

    def test_errors_and_threads_need_none_of_them(self):
        code = """
            import queue, traceback, token
            def handle(event, ctx):
                if event.text == "fail":
                    raise KeyError("own")
                return queue.WHO + traceback.WHO + token.WHO
        """
        for concurrency in (1, 4):
            with tempfile.TemporaryDirectory() as folder:
                with open(os.path.join(folder, "fn.py"), "w", encoding="utf-8") as file:
                    file.write(textwrap.dedent(code))
                for name in ("queue", "traceback", "token", "tokenize", "linecache", "logging"):
                    with open(os.path.join(folder, name + ".py"), "w", encoding="utf-8") as file:
                        file.write("WHO = 'own '\n")
                with Engine(folder, "fn", concurrency=concurrency) as engine:
                    fault = self.error(engine.invoke("/", b"fail"), "KeyError")
                    self.assertIn('in handle', fault["trace"])
                    self.check(engine.invoke("/", b"x"), 200, b"own own own ")


class Seeds(Case):
    """A worker that makes copies of itself."""

    CODE = """
        import asyncio, os, random
        count = 0
        hooks = []
        lines = open(__file__)
        lines.read(1)
        os.register_at_fork(after_in_child=lambda: hooks.append(os.getpid()))
        def handle(event, ctx):
            global count
            count += 1
            print("called", count)
            return "%d %d %s %s %d" % (os.getpid(), count, random.random(), hooks[-1] == os.getpid(), os.lseek(lines.fileno(), 0, 1))
        async def later(event, ctx):
            global count
            count += 1
            await asyncio.sleep(0.001)
            return "%d %d" % (os.getpid(), count)
    """

    def copy(self, engine):
        copy, pid = engine.copy()
        self.addCleanup(copy.sock.close)
        return copy, pid

    def test_copies_serve_and_share_nothing(self):
        engine = self.engine(self.CODE, seed=True)
        self.assertIsInstance(engine.ready["json"]["no_copies"], str)
        (one, first), (two, second) = self.copy(engine), self.copy(engine)
        numbers = set()
        for copy, pid in ((one, first), (two, second)):
            ready = copy.read()
            self.assertEqual((ready["kind"], ready["json"].get("no_copies")), ("READY", None))
            for count in (1, 2):
                words = copy.invoke()["body"].decode().split()
                self.assertEqual([*words[:2], words[3]], [str(pid), str(count), "True"])
                numbers.add(words[2])
            self.assertEqual([log["text"] for log in copy.logs], ["called 1", "called 2"])
        self.assertEqual(len(numbers), 4)
        # A copy ends alone.
        one.send({"kind": "DRAIN", "stream": 0})
        self.assertRaises(EOFError, one.read)
        self.assertIn(b" 3 ", two.invoke()["body"])
        self.assertEqual(self.copy(engine)[0].read()["kind"], "READY")
        engine.sock.shutdown(2)
        self.assertEqual(engine.exit_code(), 0)

    def test_loops_are_renewed(self):
        engine = self.engine(self.CODE, "fn:later", seed=True)
        copies = [self.copy(engine) for _ in range(2)]
        for copy, _ in copies:
            self.assertEqual(copy.read()["kind"], "READY")
        for count in (1, 2):
            for copy, pid in copies:
                self.check(copy.invoke(), 200, b"%d %d" % (pid, count))


SHAPES = '''
class Duck:
    status, headers, body = 202, {"X-A": "b", "Content-Length": "99"}, "duck"
class Unprintable(Exception):
    def __str__(self): raise ValueError
def chunks():
    yield "a"
    yield b"b"
    yield bytearray(b"c")
def fails_at_once():
    raise KeyError("early")
    yield
def fails_later():
    yield "first"
    raise KeyError("late")
def exits(): raise SystemExit(3)
def unprintable(): raise Unprintable
def recursive():
    value = []
    value.append(value)
    return value
VALUES = {
    "/str": lambda: "h\\u00e9", "/bytes": lambda: b"\\x00\\xff", "/bytearray": lambda: bytearray(b"x"),
    "/dict": lambda: {"a": "\\u00e9"}, "/list": lambda: [1, None], "/int": lambda: 7, "/float": lambda: 1.5,
    "/bool": lambda: False, "/none": lambda: None, "/empty": lambda: "",
    "/tuple2": lambda: ("made", 201), "/tuple3": lambda: ({"a": 1}, 418, {"X-One": 1, "Content-Type": "x/y"}),
    "/pairs": lambda: ("x", 200, [("Set-Cookie", "a=1"), ("Set-Cookie", "b=2")]),
    "/none-200": lambda: (None, 200), "/body-204": lambda: ("gone", 204), "/duck": Duck, "/unicode-header": lambda: ("x", 200, {"x-u": "\\u20ac"}),
    "/generator": chunks, "/iterator": lambda: iter([b"1", b"2"]), "/map": lambda: map(str, range(3)),
    "/empty-generator": lambda: (x for x in ()),
    "/early": fails_at_once, "/late": fails_later, "/exit": exits, "/unprintable": unprintable,
    "/bad-status": lambda: ("x", 199), "/bool-status": lambda: ("x", True), "/nan": lambda: float("nan"),
    "/set": lambda: {1}, "/object": object, "/deep": recursive, "/surrogate": lambda: "\\ud800",
    "/lf": lambda: ("x", 200, {"a": "b\\nc"}), "/cr": lambda: ("x", 200, {"a": "b\\rc"}),
    "/nul": lambda: ("x", 200, {"a": "b\\0c"}), "/name": lambda: ("x", 200, {"a b": "c"}),
    "/much": lambda: ("x", 200, {"a": "b" * 70000}), "/bad-chunk": lambda: iter([1]),
    "/framing": lambda: ("x", 200, {"Transfer-Encoding": "chunked", "connection": "close", "Keep-Alive": "1"}),
}
'''


class ReturnValues(Case):
    def run_all(self, engine):
        ok, invoke = self.check, engine.invoke
        ok(invoke("/str"), 200, "hé".encode(), "text/plain; charset=utf-8")
        ok(invoke("/empty"), 200, b"", "text/plain; charset=utf-8")
        ok(invoke("/bytes"), 200, b"\x00\xff", "application/octet-stream")
        ok(invoke("/bytearray"), 200, b"x", "application/octet-stream")
        ok(invoke("/dict"), 200, '{"a":"é"}'.encode(), "application/json")
        ok(invoke("/list"), 200, b"[1,null]", "application/json")
        ok(invoke("/int"), 200, b"7", "application/json")
        ok(invoke("/float"), 200, b"1.5", "application/json")
        ok(invoke("/bool"), 200, b"false", "application/json")
        ok(invoke("/none"), 204, b"")
        ok(invoke("/none-200"), 200, b"")
        ok(invoke("/body-204"), 204, b"")
        ok(invoke("/tuple2"), 201, b"made", "text/plain; charset=utf-8")
        frame = invoke("/tuple3")
        ok(frame, 418, b'{"a":1}')
        self.assertEqual(frame["headers"], [["x-one", "1"], ["content-type", "x/y"]])
        self.assertEqual(invoke("/pairs")["headers"][1:], [["set-cookie", "a=1"], ["set-cookie", "b=2"]])
        self.assertEqual(invoke("/framing")["headers"], [["content-type", "text/plain; charset=utf-8"]])
        self.assertIn(["x-u", "\u20ac".encode().decode("latin-1")], invoke("/unicode-header")["headers"])
        frame = invoke("/duck")
        ok(frame, 202, b"duck", "text/plain; charset=utf-8")
        self.assertEqual(sorted(frame["headers"])[1:], [["x-a", "b"]])
        ok(invoke("/generator"), 200, b"abc", "application/octet-stream")
        ok(invoke("/iterator"), 200, b"12")
        ok(invoke("/map"), 200, b"012")
        ok(invoke("/empty-generator"), 200, b"")
        for path in ("bad-status", "bool-status", "nan", "set", "object", "deep", "surrogate", "lf", "cr", "nul", "name", "much", "bad-chunk"):
            self.error(invoke("/" + path), "BadReply")
        self.assertEqual(self.error(invoke("/early"), "KeyError")["message"], "'early'")
        self.error(invoke("/late"), "KeyError")
        self.error(invoke("/exit"), "SystemExit")
        self.error(invoke("/unprintable"), "Unprintable")
        ok(invoke("/str"), 200, "hé".encode())

    def test_inline(self):
        engine = self.engine(SHAPES + "def handle(event, ctx): return VALUES[event.path]()")
        self.assertEqual(engine.ready["json"]["shape"], "handle")
        self.assertEqual(engine.ready["json"]["concurrency"], 1)
        self.run_all(engine)

    def test_threads(self):
        engine = self.engine(SHAPES + "def handle(event): return VALUES[event.path]()", concurrency=4)
        self.assertEqual(engine.ready["json"]["concurrency"], 4)
        self.run_all(engine)

    def test_async(self):
        engine = self.engine(SHAPES + "async def handle(event, ctx): return VALUES[event.path]()")
        self.assertEqual(engine.ready["json"]["shape"], "async handle")
        self.assertEqual(engine.ready["json"]["concurrency"], 100)
        self.run_all(engine)


class Bodies(Case):
    def run_sizes(self, engine):
        for size in SIZES:
            body = os.urandom(size)
            frame = engine.invoke("/", body)
            self.assertEqual(frame["kind"], "RESULT", frame)
            self.assertTrue(frame["body"] == body, size)

    def test_inline(self):
        self.run_sizes(self.engine("def handle(event, ctx): return event.body"))

    def test_chunks_of_a_whole_body(self):
        self.run_sizes(self.engine("def handle(event, ctx): return event.stream"))

    def test_threads(self):
        self.run_sizes(self.engine("def handle(event, ctx): return event.body", concurrency=2))

    def test_generator_in_threads(self):
        self.run_sizes(self.engine("def handle(event, ctx):\n for chunk in event.stream: yield chunk", concurrency=2))

    def test_async(self):
        self.run_sizes(self.engine("async def handle(event, ctx): return event.body"))

    def test_async_streaming_both_ways(self):
        self.run_sizes(self.engine("""
            stream_request = True
            async def handle(event, ctx):
                async for chunk in event.astream(): yield chunk
            """))

    def test_body_that_still_arrives_says_so(self):
        engine = self.engine("stream_request = True\nasync def handle(event, ctx): return event.body")
        self.error(engine.invoke("/", b"x" * 70000), "RuntimeError")
        self.check(engine.invoke("/", b"x"), 200, b"x")


class EventAndContext(Case):
    def test_event(self):
        engine = self.engine("""
            def handle(event, ctx):
                assert event.json() == {"a": "é"}, event.body
                assert event.text == '{"a":"é"}'
                assert (event.method, event.path, event.query) == ("PUT", "/p%20q", "x=1&y=&x=2")
                assert event.args == {"x": "2", "y": ""}
                assert event.headers["ACCEPT"] == "1, 2" and event.headers.getall("Accept") == ["1", "2"]
                assert event.headers.get("none") is None and "host" in event.headers and 3 not in event.headers
                assert list(event.headers) == ["host", "accept"] and len(event.headers) == 2
                assert (event.trigger, event.id) == ("coap", "0000000000000000000000000Z")
                assert list(event.stream) == [event.body]
                assert (ctx.function, ctx.revision, ctx.cancelled) == ("fn", 3, False)
                assert 0 <= ctx.remaining_ms() <= 10000
                try: event.nothing
                except AttributeError: return "fine"
            """)
        fields = dict(method="PUT", query="x=1&y=&x=2", trigger=2, id=31, headers=[["host", "h"], ["accept", "1"], ["accept", "2"]])
        self.check(engine.invoke("/p%20q", '{"a":"é"}'.encode(), **fields), 200, b"fine")

    def test_caller(self):
        engine = self.engine("def handle(event, ctx): return repr(event.caller)")
        self.check(engine.invoke("/", headers=[["mote-caller", "web"]]), 200, b"'web'")
        self.check(engine.invoke("/", headers=[["host", "h"]]), 200, b"None")

    def test_params(self):
        engine = self.engine("def handle(event, ctx): return event.params")
        headers = [["mote-params", "id=a%20b%2Bc&rest=x/%C3%A9&none="]]
        params = '{"id":"a b+c","rest":"x/é","none":""}'.encode()
        self.check(engine.invoke("/", headers=headers), 200, params)
        self.check(engine.invoke("/", headers=[["host", "h"]]), 200, b"{}")

    def test_deadline(self):
        engine = self.engine("def handle(event, ctx): return ctx.remaining_ms()")
        self.assertLessEqual(int(engine.invoke(sent_ns=time.monotonic_ns(), remaining_ms=5000)["body"]), 5000)
        self.assertGreater(int(engine.invoke(sent_ns=time.monotonic_ns(), remaining_ms=3_600_000)["body"]), 5000)
        self.assertEqual(engine.invoke(sent_ns=1, remaining_ms=1)["body"], b"0")

    def test_time_stamps(self):
        engine = self.engine("def handle(event): return 'x'")
        before = time.monotonic_ns()
        frame = engine.invoke()
        self.assertTrue(before <= frame["entered_ns"] <= frame["returned_ns"] <= time.monotonic_ns())
        self.assertGreater(engine.ready["json"]["init_ns"], 0)


class Loading(Case):
    def test_init_env_packages_and_directory(self):
        packages = tempfile.TemporaryDirectory()
        self.addCleanup(packages.cleanup)
        with open(os.path.join(packages.name, "dep.py"), "w") as file:
            file.write("value = 'packaged'")
        code = """
            import os, dep
            seen = []
            %s init(ctx):
                seen.append((ctx.function, ctx.remaining_ms(), os.environ["UNIT"], os.path.exists("fn.py"), dep.value))
                print("initialised")
            def handle(event, ctx): return [list(one) for one in seen]
            """
        for define in ("def", "async def"):
            engine = self.engine(code % define, env={"UNIT": "C"}, packages_dir=packages.name)
            frame = engine.invoke()
            self.assertEqual(json.loads(frame["body"]), [["fn", None, "C", True, "packaged"]])
            self.assertEqual([(log["stream"], log["text"]) for log in engine.logs], [(0, "initialised")])

    def test_packages_do_not_replace_the_standard_library(self):
        packages = tempfile.TemporaryDirectory()
        self.addCleanup(packages.cleanup)
        for name in ("colorsys", "ours"):
            with open(os.path.join(packages.name, name + ".py"), "w") as file:
                file.write("OWN = True\n")
        code = "import colorsys, ours\ndef handle(event, ctx):\n    return [hasattr(colorsys, 'OWN'), ours.OWN]\n"
        engine = self.engine(code, packages_dir=packages.name)
        self.assertEqual(json.loads(engine.invoke("/")["body"]), [False, True])

    def test_entries(self):
        body = "def {0}(event, ctx): return '{0}'\n"
        for entry, name in (("fn", "handle"), ("fn.py", "handle"), ("fn:other", "other"), ("fn.py:other", "other")):
            engine = self.engine(body.format("other") + body.format("main") + body.format("handle"), entry)
            self.check(engine.invoke(), 200, name.encode())
        for name in ("handler", "main"):
            self.check(self.engine(body.format(name)).invoke(), 200, name.encode())

    def test_callables(self):
        self.check(self.engine("def handle(): return 'none'").invoke(), 200, b"none")
        self.check(self.engine("def handle(event, *more): return str(len(more))").invoke(), 200, b"1")
        self.check(self.engine("def handle(event, ctx, extra=5): return str(extra)").invoke(), 200, b"5")
        self.check(self.engine("class C:\n def __call__(self, event): return 'object'\nhandle = C()").invoke(), 200, b"object")
        self.check(self.engine("class C:\n def run(self, event, ctx): return 'bound'\nhandle = C().run").invoke(), 200, b"bound")
        decorated = """
            import functools
            def deco(f):
                @functools.wraps(f)
                def inner(*args): return f(*args)
                return inner
            @deco
            def handle(event): return "decorated"
            """
        self.check(self.engine(decorated).invoke(), 200, b"decorated")

    def test_load_errors(self):
        self.assertIn("nowhere", self.load_error("import nowhere")["message"])
        self.assertEqual(self.load_error("def handle(:")["kind"], "SyntaxError")
        self.assertIn("none of handle", self.load_error("x = 1")["message"])
        self.assertEqual(self.load_error("x = 1", "fn:y")["kind"], "AttributeError")
        said = self.load_error("def app(scope, receive, send): pass", "fn:handle")["message"]
        self.assertEqual(said, """module 'fn' has no attribute 'handle'; to use its `app`: entry = "fn:app" in mote.toml""")
        said = self.load_error("def application(environ, start): pass", "fn:handle")["message"]
        self.assertIn('to use its `application`: entry = "fn:application" in mote.toml', said)
        self.assertEqual(self.load_error("raise SystemExit(0)")["kind"], "SystemExit")
        error = self.load_error("def init(ctx): 1 / 0\ndef handle(event): pass")
        self.assertEqual(error["kind"], "ZeroDivisionError")
        self.assertIn("in init", error["trace"])
        self.assertNotIn("mote_shim", error["trace"])
        self.assertEqual(self.load_error("handle = 3", "fn:handle")["kind"], "TypeError")
        self.assertEqual(self.load_error("def handle(a, b, c, d): pass")["kind"], "TypeError")


class Logs(Case):
    CODE = """
        import logging, os, sys, threading, warnings
        def handle(event, ctx):
            print("out", 1)
            sys.stdout.write("a"); sys.stdout.write("b\\nc")
            print("err", file=sys.stderr)
            sys.stdout.buffer.write(b"raw\\n")
            ctx.log.warning("careful\\ntwice")
            logging.getLogger("lib").error("bad")
            logging.getLogger("lib").debug("unseen")
            warnings.warn("old")
            thread = threading.Thread(target=print, args=("thread",)); thread.start(); thread.join()
            os.write(1, b"direct\\n")
            print("x" * 20000)
            return "done"
        """

    def test_lines(self):
        for options in ({}, {"concurrency": 3}):
            engine = self.engine(self.CODE, **options)
            self.check(engine.invoke(), 200, b"done")
            logs = engine.logs
            self.assertEqual({log["stream"] for log in logs}, {101})
            seen = [(log["source"], log["level"], log["text"]) for log in logs]
            for line in ((1, 2, "out 1"), (1, 2, "ab"), (1, 2, "craw"), (2, 2, "err"), (3, 3, "fn: careful"),
                         (3, 3, "twice"), (3, 4, "lib: bad"), (1, 2, "thread")):  # fmt: skip
                self.assertIn(line, seen)
            self.assertTrue(any("UserWarning: old" in text for _, _, text in seen))
            self.assertFalse(any("unseen" in text or "direct" in text for _, _, text in seen))
            self.assertEqual([len(text) for _, _, text in seen if set(text) == {"x"}], [16384])
            engine.send({"kind": "DRAIN", "stream": 0})
            self.assertEqual(engine.process.communicate()[0], b"direct\n")

    def test_a_line_logged_at_import_does_not_hide_later_ones(self):
        for first, expected in (
            ('logging.info("loading")', (3, 2, "root: ran")),
            ('logging.basicConfig(level=logging.INFO, format="mine %(message)s")', (2, 2, "mine ran")),
        ):
            engine = self.engine(f"""
                import logging
                {first}
                def handle(event, ctx):
                    logging.info("ran")
                """)
            self.check(engine.invoke(), 204, b"")
            seen = [(log["source"], log["level"], log["text"]) for log in engine.logs]
            self.assertIn(expected, seen)

    def test_async_lines_stay_with_their_invocation(self):
        engine = self.engine("""
            import asyncio
            gate = asyncio.Event()
            async def handle(event, ctx):
                if event.path == "/open": gate.set(); return
                await gate.wait()
                await asyncio.to_thread(print, event.path) if hasattr(asyncio, "to_thread") else print(event.path)
            """)
        for stream in (11, 12):
            engine.send({"kind": "INVOKE", "stream": stream, "end": True, "path": "/%d" % stream})
        engine.send({"kind": "INVOKE", "stream": 13, "end": True, "path": "/open"})
        for _ in range(3):
            self.assertEqual(engine.read()["kind"], "RESULT")
        self.assertEqual(sorted((log["stream"], log["text"]) for log in engine.logs), [(11, "/11"), (12, "/12")])


class Processes(Case):
    def test_children_do_not_touch_the_connection(self):
        engine = self.engine("""
            import multiprocessing, os, subprocess
            def child(queue):
                print("from a child")
                queue.put(6 * 7)
            def handle(event, ctx):
                if event.path == "/fds":
                    return subprocess.run(["ls", "/proc/self/fd"], capture_output=True, text=True).stdout
                if event.path == "/fork":
                    pid = os.fork()
                    if pid == 0: return "from a child"
                    return str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])) if hasattr(os, "waitstatus_to_exitcode") else "0"
                context = multiprocessing.get_context("fork")
                queue = context.Queue()
                process = context.Process(target=child, args=(queue,)); process.start()
                value = queue.get(); process.join()
                return str(value)
            """)
        self.assertNotIn(b"3\n4\n", engine.invoke("/fds")["body"])
        self.check(engine.invoke("/multi"), 200, b"42")
        self.check(engine.invoke("/fork"), 200, b"0")
        self.check(engine.invoke("/multi"), 200, b"42")
        self.assertEqual(engine.logs, [])


class Cancellation(Case):
    def cancel(self, engine, stream):
        engine.send({"kind": "CANCEL", "stream": stream})

    def test_inline_handler_sees_it(self):
        engine = self.engine("""
            def handle(event, ctx):
                if event.path == "/ok": return "ok"
                print("running")
                while not ctx.cancelled: pass
                raise RuntimeError("stopped")
            """)
        engine.send({"kind": "INVOKE", "stream": 1, "end": True}, {"kind": "INVOKE", "stream": 2, "end": True, "path": "/ok"})
        self.assertEqual(engine.read(logs=True)["text"], "running")
        self.cancel(engine, 2)
        self.cancel(engine, 1)
        self.assertEqual({engine.read()["stream"] for _ in range(2)}, {1, 2})
        self.check(engine.invoke("/ok"), 200, b"ok")

    def test_thread_sees_it_and_waiting_ones_end(self):
        engine = self.engine("""
            def handle(event, ctx):
                if event.path == "/ok": return "ok"
                while not ctx.cancelled: pass
                return "late"
            """, concurrency=2)  # fmt: skip
        engine.send(*({"kind": "INVOKE", "stream": stream, "end": True} for stream in (1, 2, 3)))
        self.cancel(engine, 3)
        frame = engine.read()
        self.assertEqual((frame["stream"], frame["json"]["kind"]), (3, "Cancelled"))
        self.cancel(engine, 1)
        self.assertEqual((engine.read()["stream"]), 1)
        self.check(engine.invoke("/ok"), 200, b"ok")
        self.cancel(engine, 2)
        self.assertEqual((engine.read()["stream"]), 2)
        self.assertEqual(engine.alive, [1, 2])

    def test_a_worker_whose_function_does_not_stop_shows_that_it_reads(self):
        engine = self.engine("""
            import asyncio
            async def handle(event, ctx):
                if event.path == "/ok": return "ok"
                print("running")
                while True:
                    try: await asyncio.sleep(60)
                    except asyncio.CancelledError: pass
            """)  # fmt: skip
        engine.send({"kind": "INVOKE", "stream": 1, "end": True})
        # A call that is cancelled before its first step ends like any other.
        self.assertEqual(engine.read(logs=True)["text"], "running")
        self.cancel(engine, 1)
        self.check(engine.invoke("/ok"), 200, b"ok")
        self.assertEqual(engine.alive, [1])

    def test_generators_are_closed(self):
        for options, define in (({}, "def"), ({"concurrency": 2}, "def"), ({}, "async def")):
            engine = self.engine("""
                closed = False
                def of(): pass
                %s handle(event, ctx):
                    global closed
                    if event.path == "/closed":
                        yield str(closed)
                        return
                    try:
                        while True: yield b"x" * 65536
                    finally: closed = True
                """ % define, **options)  # fmt: skip
            engine.send({"kind": "INVOKE", "stream": 1, "end": True})
            seen = 0
            while seen < (256 + 64) << 10:
                frame = engine.read()
                seen += len(frame.get("body", frame["payload"]))
            self.cancel(engine, 1)
            self.assertEqual(engine.read()["json"]["kind"], "Cancelled")
            self.check(engine.invoke("/closed"), 200, b"True")


class Draining(Case):
    def test_threads_finish_first(self):
        engine = self.engine("""
            import threading
            gate = threading.Event()
            def handle(event, ctx):
                if event.path == "/open": gate.set(); return "opened"
                gate.wait()
                return "waited"
            """, concurrency=2)  # fmt: skip
        engine.send({"kind": "INVOKE", "stream": 1, "end": True}, {"kind": "INVOKE", "stream": 2, "end": True, "path": "/open"}, {"kind": "DRAIN", "stream": 0})
        self.assertEqual({bytes(engine.read()["body"]) for _ in range(2)}, {b"opened", b"waited"})
        self.assertEqual(engine.exit_code(), 0)


WSGI = """
    import json
    class Closing:
        closed = 0
        def __init__(self, chunks): self.chunks = iter(chunks)
        def __iter__(self): return self
        def __next__(self): return next(self.chunks)
        def close(self): Closing.closed += 1
    def app(environ, start_response):
        path = environ["PATH_INFO"]
        if path == "/stream":
            start_response("200 OK", [("Content-Type", "text/x")])
            return Closing([b"a", b"", b"b"])
        if path == "/closed":
            start_response("200 OK", [])
            return [str(Closing.closed).encode()]
        if path == "/silent": return [b"x"]
        if path == "/write":
            start_response("200 OK", [])(b"w")
            return [b"r"]
        body = environ["wsgi.input"].read()
        start_response("201 Created", [("Content-Type", "application/json"), ("Set-Cookie", "a"), ("Set-Cookie", "b")])
        names = ("REQUEST_METHOD", "SCRIPT_NAME", "PATH_INFO", "QUERY_STRING", "HTTP_X_TWICE", "CONTENT_TYPE", "CONTENT_LENGTH", "SERVER_NAME", "SERVER_PORT")
        return [json.dumps([len(body)] + [environ.get(name) for name in names]).encode()]
    """


class Wsgi(Case):
    def test_application(self):
        for options in ({}, {"concurrency": 3}):
            engine = self.engine(WSGI, **options)
            self.assertEqual(engine.ready["json"]["shape"], "wsgi")
            headers = [["host", "h:81"], ["content-type", "t/x"], ["x-twice", "1"], ["x_twice", "3"], ["x-twice", "2"]]
            frame = engine.invoke("/a%20b", b"y" * 70000, query="q=1", headers=headers)
            self.assertEqual(frame["status"], 201)
            self.assertEqual(json.loads(frame["body"]), [70000, "POST", "/fn", "/a b", "q=1", "1, 2", "t/x", "70000", "h", "81"])
            self.assertEqual([value for name, value in frame["headers"] if name == "set-cookie"], ["a", "b"])
            self.check(engine.invoke("/stream"), 200, b"ab", "text/x")
            self.check(engine.invoke("/closed"), 200, b"1")
            self.check(engine.invoke("/write"), 200, b"wr")
            self.error(engine.invoke("/silent"), "BadReply")

    def test_flask(self):
        try:
            import flask  # noqa: F401
        except ImportError:
            self.skipTest("SKIPPED: flask is not installed, the hand-written application stands for it")
        engine = self.engine("""
            from flask import Flask, request, url_for
            app = Flask(__name__)
            @app.route("/things/<int:number>", methods=["POST"])
            def things(number): return {"number": number, "sent": request.get_json(), "url": url_for("things", number=1)}
            """)
        frame = engine.invoke("/things/5", b'{"a":1}', headers=[["host", "h"], ["content-type", "application/json"]])
        self.assertEqual(json.loads(frame["body"]), {"number": 5, "sent": {"a": 1}, "url": "/fn/things/1"})
        self.assertEqual(engine.invoke("/none")["status"], 404)


ASGI = """
    import asyncio, json
    started = []
    async def app(scope, receive, send):
        if scope["type"] == "lifespan":
            assert (await receive())["type"] == "lifespan.startup"
            scope["state"]["made"] = "by lifespan"
            await send({"type": "lifespan.startup.complete"})
            await receive()
            print("shut down")
            await send({"type": "lifespan.shutdown.complete"})
            return
        path = scope["path"][len(scope["root_path"]):]
        if path == "/hang":
            while (await receive())["type"] != "http.disconnect": pass
        if path == "/none": return
        if path == "/fail": raise ValueError("boom")
        if path == "/after":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"x"})
            raise ValueError("too late")
        if path == "/scope":
            body = json.dumps([scope["method"], scope["path"], scope["raw_path"].decode(), scope["query_string"].decode(),
                scope["server"], [[a.decode(), b.decode()] for a, b in scope["headers"]], scope["state"]["made"]]).encode()
            await send({"type": "http.response.start", "status": 200, "headers": [(b"x-a", b"1"), (b"content-length", b"9")]})
            await send({"type": "http.response.body", "body": body})
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            message = await receive()
            await send({"type": "http.response.body", "body": message["body"], "more_body": message["more_body"]})
            if not message["more_body"]: return
    """


class Asgi(Case):
    def test_application(self):
        engine = self.engine(ASGI)
        self.assertEqual(engine.ready["json"]["shape"], "asgi")
        frame = engine.invoke("/scope", headers=[["host", "h:81"]], query="a=1", method="GET")
        self.assertEqual(json.loads(frame["body"]), ["GET", "/fn/scope", "/fn/scope", "a=1", ["h", 81], [["host", "h:81"]], "by lifespan"])
        self.assertEqual(frame["headers"], [["x-a", "1"]])
        for size in SIZES:
            body = os.urandom(size)
            self.assertTrue(engine.invoke("/echo", body)["body"] == body, size)
        self.error(engine.invoke("/none"), "BadReply")
        self.error(engine.invoke("/fail"), "ValueError")
        self.check(engine.invoke("/after"), 200, b"x")
        engine.send({"kind": "INVOKE", "stream": 99, "end": True, "path": "/hang"}, {"kind": "CANCEL", "stream": 99})
        self.assertEqual(engine.read()["json"]["kind"], "Cancelled")
        engine.send({"kind": "DRAIN", "stream": 0})
        self.assertEqual(engine.exit_code(), 0)
        with self.assertRaises(EOFError):
            engine.read()
        self.assertEqual(engine.logs[-1]["text"], "shut down")

    def test_without_lifespan(self):
        engine = self.engine("""
            async def app(scope, receive, send):
                assert scope["type"] == "http"
                await send({"type": "http.response.start", "status": 204})
                await send({"type": "http.response.body"})
            """)
        self.check(engine.invoke(), 204, b"")

    def test_lifespan_that_fails(self):
        error = self.load_error("""
            async def app(scope, receive, send):
                await send({"type": "lifespan.startup.failed", "message": "no database"})
            """)
        self.assertIn("no database", error["message"])


if __name__ == "__main__":
    unittest.main()
