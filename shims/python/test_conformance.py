"""Replays the fixtures in shims/conformance: frames through the codec, dialogues against a worker."""

import os
import unittest

import engine_double
from engine_double import CONFORMANCE, Engine, decode, fixtures
from mote_worker.event import Event
from mote_worker.wire import ProtocolError
from mote_worker.worker import Worker

TO_WORKER = ("LOAD", "INVOKE", "BODY", "CANCEL", "CREDIT", "DRAIN", "RESPONSE")


def shim_decode(data):
    """What the shim's own parser makes of one frame: an event, or None if it waits for more."""

    class Recorder(Worker):
        def __init__(self):
            super().__init__(None)
            self.spec, self.filed = {}, None

        def file_frame(self, *frame):
            self.filed = frame

    worker = Recorder()
    used = worker.parse(data)
    if not used:
        return None
    if worker.ready:
        return worker.ready[0]
    return next(iter(worker.incoming.values()), None) or worker.filed


class Frames(unittest.TestCase):
    def test_frames_for_a_worker(self):
        for case in fixtures("frames"):
            data = bytes.fromhex(case["hex"])
            with self.subTest(case["name"]):
                if case.get("incomplete"):
                    self.assertIsNone(shim_decode(data))
                elif "error" in case:
                    # `file_frame` checks the other frames, which are not tested here.
                    if not case["name"].startswith(("result", "request", "response")):
                        with self.assertRaises(ProtocolError):
                            shim_decode(data)
                elif case["ok"]["kind"] == "INVOKE":
                    self.check_invoke(shim_decode(data), case["ok"])
                elif case["ok"]["kind"] in TO_WORKER:
                    kind, flags, stream, payload = shim_decode(data)
                    self.assertEqual(kind, engine_double.KINDS.index(case["ok"]["kind"]) + 1)
                    self.assertEqual((bool(flags), stream), (case["ok"]["end"], case["ok"]["stream"]))
                    if "payload" in case["ok"]:
                        self.assertEqual(payload.hex(), case["ok"]["payload"])

    def check_invoke(self, event, ok):
        words = {1: "http", 2: "coap", 3: "admin"}
        self.assertEqual(event._stream, ok["stream"])
        self.assertEqual(event.sent_ns, ok["sent_ns"])
        self.assertEqual(event.deadline_ns, ok["sent_ns"] + ok["remaining_ms"] * 1_000_000)
        self.assertEqual((event.id, event.trigger), (ok["id"], words[ok["trigger"]]))
        self.assertEqual((event.method, event.path, event.query), (ok["method"], ok["path"], ok["query"]))
        self.assertEqual([list(pair) for pair in event.headers.pairs], ok["headers"])
        if ok["end"]:
            self.assertEqual(event.body.hex(), ok["body"])

    def test_frames_of_a_worker(self):
        for case in fixtures("frames"):
            data = bytes.fromhex(case["hex"])
            with self.subTest(case["name"]):
                if case.get("incomplete"):
                    self.assertEqual(decode(data), (None, 0))
                elif "error" in case and not case["name"].startswith("invoke"):
                    with self.assertRaisesRegex(ValueError, case["error"]):
                        decode(data)
                elif "ok" in case and case["ok"]["kind"] in ("HELLO", "READY", "RESULT", "ERROR", "LOG", "REQUEST"):
                    frame, used = decode(data)
                    self.assertEqual(used, len(data))
                    for name, value in case["ok"].items():
                        seen = frame[name].hex() if name in ("body", "payload") else frame[name]
                        self.assertEqual(seen, value, name)

    def test_what_the_shim_encodes_decodes(self):
        worker = Worker(None)
        event = Event(7, b"", (), 0)
        worker.put_result(event, 1, 2, 201, b"a\nb\n", b"xyz")
        expected = next(case for case in fixtures("frames") if case["name"] == "result with its whole body")
        self.assertEqual(b"".join(worker.out).hex(), expected["hex"])


class Dialogues(unittest.TestCase):
    argv = None  # of the worker; the Python shim's own

    def test_dialogues(self):
        for dialogue in fixtures("dialogues"):
            with self.subTest(dialogue["name"]):
                self.replay(dialogue)

    def replay(self, dialogue):
        code_dir = os.path.realpath(os.path.join(CONFORMANCE, "functions"))
        ready = dialogue.get("ready", True)
        with Engine(code_dir, dialogue["entry"], dialogue["load"], ready, dialogue.get("concurrency"), argv=self.argv,
                    services=["state", "functions", "notify", "publish"]) as engine:
            self.assertEqual((engine.hello["kind"], engine.hello["version"]), ("HELLO", 1))
            if dialogue["load"] and ready:
                self.assertEqual(engine.ready["kind"], "READY", engine.ready)
            for step in dialogue["steps"]:
                self.step(engine, step)

    def step(self, engine, step):
        if "send" in step:
            engine.send(*step["send"])
        elif "expect" in step:
            wanted = list(step["expect"])
            logs = any(frame["kind"] == "LOG" for frame in wanted)
            while wanted:
                frame = engine.read(logs)
                if frame["kind"] == "CREDIT":
                    continue
                at = 0
                if step.get("any_order"):
                    at = next(i for i, one in enumerate(wanted) if one["stream"] == frame["stream"])
                self.compare(frame, wanted.pop(at))
        elif "expect_bytes" in step:
            seen, end = 0, False
            while seen < step["expect_bytes"]:
                frame = engine.read()
                self.assertEqual((frame["kind"], frame["stream"]), ("BODY", step["stream"]))
                self.assertFalse(end)
                seen, end = seen + len(frame["payload"]), frame["end"]
            self.assertEqual((seen, end), (step["expect_bytes"], step.get("end", False)))
        elif "expect_credit" in step:
            seen = 0
            while seen < step["expect_credit"]:
                frame = engine.read()
                self.assertEqual((frame["kind"], frame["stream"]), ("CREDIT", step["stream"]))
                seen += frame["credit"]
        elif "close" in step:
            engine.sock.close()
        elif "exit" in step:
            self.assertEqual(engine.exit_code(), step["exit"])

    def compare(self, frame, wanted):
        for name, value in wanted.items():
            if name == "json":
                self.assertEqual({key: frame["json"][key] for key in value}, value, frame)
            elif name == "headers_sorted":
                self.assertEqual(sorted(frame["headers"]), value)
            elif name == "payload_hex":
                self.assertEqual(frame["payload"].hex(), value)
            elif name == "body_bytes":
                self.assertEqual(len(frame["body"]), value)
            else:
                seen = frame[name]
                self.assertEqual(seen.decode() if isinstance(seen, bytes) else seen, value, (name, frame))


if __name__ == "__main__":
    unittest.main()
