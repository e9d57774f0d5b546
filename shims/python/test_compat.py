"""Objects that adapters make of a call: what is made late or kept between calls must not be
visible."""

import importlib.util
import json
import os
import tempfile
import textwrap
import unittest

from engine_double import Engine

FIELDS = [["host", "here"], ["x-two", "1"], ["x-two", "2"], ["content-type", "application/json; charset=utf-8"]]


class Case(unittest.TestCase):
    def engine(self, compat, code, entry="fn", files=(), **more):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        for name, text in {"fn.py": code, **dict(files)}.items():
            path = os.path.join(folder.name, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(textwrap.dedent(text))
        engine = Engine(folder.name, entry, compat=compat, **more)
        self.addCleanup(engine.__exit__)
        self.assertEqual(engine.ready["kind"], "READY", engine.ready)
        return engine

    def check(self, frame, wanted, status=200, kind=None):
        self.assertEqual(frame["kind"], "RESULT", frame)
        body = frame["body"] if isinstance(wanted, bytes) else json.loads(frame["body"])
        self.assertEqual((frame["status"], body), (status, wanted))
        if kind:
            self.assertEqual(frame["headers"], [["content-type", kind]])

    def check_twice(self, engine, wanted):
        """Calls with equal fields: the second call does not see what the first does to its dict."""
        for _ in range(2):
            self.check(engine.invoke("/", b'{"a":1}', headers=FIELDS), wanted)


class Imports(Case):
    """Which module a function gets if it has a file with the name of a standard library module."""

    OWN = {"queue.py": "OWN = True\n", "secrets.py": "OWN = True\n", "logger.py": "OWN = True\n", "sub/deep.py": "VALUE = 3\n"}
    SEEN = """
        import logger, queue, concurrent.futures, secrets
        SEEN = [hasattr(module, "OWN") for module in (queue, secrets, logger)]
        """

    def check_seen(self, compat, entry, code, wanted, **more):
        engine = self.engine(compat, textwrap.dedent(self.SEEN) + code, entry, files=self.OWN, **more)
        self.check(engine.invoke("/"), wanted)

    def test_openfaas_finds_own_files_in_the_package_function_and_last_by_their_name(self):
        code = (
            "from .secrets import OWN\nfrom function.queue import OWN as again\nfrom .sub.deep import VALUE\n"
            "def handle(event, context):\n    return {'body': [SEEN, OWN, again, VALUE]}\n"
        )
        self.check_seen("openfaas", "fn:handle", code, [[False, False, True], True, True, 3], template="python3-http")

    def test_fission_finds_own_files_last(self):
        self.check_seen("fission", "fn:main", "def main():\n    return {'seen': SEEN}\n", {"seen": [False, False, True]})

    def test_fission_loads_a_single_file_from_its_path(self):
        code = "import queue\ndef main():\n    return {'standard': hasattr(queue, 'Queue')}\n"
        engine = self.engine("fission", "", "queue:main", files={"queue.py": code})
        self.check(engine.invoke("/"), {"standard": True})

    def test_platforms_whose_program_lies_beside_the_function_find_own_files_first(self):
        for compat, entry, code in (
            ("nuclio", "fn:handler", "def handler(context, event):\n    return SEEN\n"),
            ("kubeless", "fn:handler", "def handler(event, context):\n    return SEEN\n"),
            ("openwhisk", "fn:main", "def main(args):\n    return SEEN\n"),
        ):
            with self.subTest(compat):
                self.check_seen(compat, entry, code, [True, True, True])


class FieldsOfACall(Case):
    def test_tinyfaas_a_plain_dict_with_the_first_of_each_name(self):
        engine = self.engine("tinyfaas", """
            import json
            def fn(input, headers):
                text = json.dumps([input, type(headers).__name__, headers])
                headers.clear()
                return text
            """, "fn:fn")
        fields = {"Content-Type": "application/json; charset=utf-8", "X-Two": "1", "Host": "here"}
        self.check_twice(engine, ['{"a":1}', "dict", fields])
        self.check(engine.invoke("/"), [None, "dict", {}])

    def test_openwhisk_a_plain_dict_with_values_joined(self):
        engine = self.engine("openwhisk", """
            import copy, pickle
            def main(args):
                whole = copy.deepcopy(args)
                assert pickle.loads(pickle.dumps(args)) == args
                assert type(args["__ow_headers"]) is dict
                args["__ow_headers"]["x-new"] = "1"
                args.clear()
                return whole
            """, "fn:main")
        fields = {"host": "here", "x-two": "1, 2", "content-type": "application/json; charset=utf-8"}
        self.check_twice(engine, {"__ow_method": "post", "__ow_path": "", "__ow_headers": fields, "a": 1})

    def test_blocks_that_are_not_kept(self):
        code = "def main(args):\n    return {name: len(value) for name, value in args['__ow_headers'].items()}\n"
        engine = self.engine("openwhisk", code, "fn:main")
        for size in (1, 900, 2000):
            self.check(engine.invoke("/", headers=[["x-long", "y" * size]]), {"x-long": size})
        for number in range(200):
            self.check(engine.invoke("/", headers=[["x-%d" % number, "y"]]), {"x-%d" % number: 1})


class OpenWhisk(Case):
    RESULTS = """
        def main(args):
            return {
                "text": {"body": "<p>é</p>"}, "empty": {"body": ""}, "status": {"body": "x", "statusCode": 201},
                "fields": {"body": "x", "headers": {"content-type": "text/plain"}}, "object": {"body": {"a": 1}},
                "failed": {"body": "x", "error": "no"}, "other": {"a": 1, "body": "x"}, "none": None,
            }[args["case"]]
        """

    def test_results_of_web_actions(self):
        engine = self.engine("openwhisk", self.RESULTS, "fn:main")
        html = "text/html; charset=UTF-8"
        for case, body, status, kind in (
            ("text", "<p>é</p>".encode(), 200, html), ("empty", b"", 204, html), ("status", b"x", 201, html),
            ("fields", b"x", 200, "text/plain"), ("object", {"a": 1}, 200, "application/json"),
            ("failed", {"error": "no"}, 502, "application/json"), ("other", b"x", 200, html), ("none", {}, 200, "application/json"),
        ):  # fmt: skip
            with self.subTest(case):
                self.check(engine.invoke("/", query="case=" + case), body, status, kind)

    def test_a_call_through_the_platforms_api(self):
        code = "import os\ndef main(args):\n    return {**args, 'id': os.environ['__OW_ACTIVATION_ID']}\n"
        engine = self.engine("openwhisk", code, "fn:main")
        for name in ("one", "two"):
            self.check(engine.invoke("/", b'{"a":1}', headers=[["x-mote-activation", name]]), {"a": 1, "id": name})

    def test_an_exception_is_told_to_callers_of_the_platforms_api_only(self):
        engine = self.engine("openwhisk", "def main(args):\n    raise ValueError('no ' + args['a'])\n", "fn:main")
        frame = engine.invoke("/", b'{"a":"b"}', headers=[["x-mote-activation", "one"]])
        self.check(frame, {"error": "no b"}, 502)
        self.assertEqual(engine.invoke("/", b'{"a":"b"}')["kind"], "ERROR")

    def test_a_function_at_a_path_with_dots(self):
        code = "class Actions:\n    @staticmethod\n    def one(args):\n        return {'x': 1}\n"
        self.check(self.engine("openwhisk", code, "fn:Actions.one").invoke("/"), {"x": 1})

    def test_bodies(self):
        engine = self.engine("openwhisk", "def main(args):\n    return {'got': args.get('__ow_body', args.get('a'))}\n", "fn:main")
        for kind, body, wanted in (
            ("application/json", b'{"a":2}', 2), ("application/json", b'[1]', [1]), ("text/plain", b"x", "x"), ("image/png", b"\xff", "/w=="),
            ("application/x-www-form-urlencoded", b"a=3", "3"), ("", b'{"a":4}', 4),
        ):
            with self.subTest(kind):
                fields = [["content-type", kind]] if kind else []
                self.check(engine.invoke("/", body, headers=fields), {"got": wanted})
        frame = engine.invoke("/", b"{", headers=[["content-type", "application/json"]])
        self.check(frame, {"error": "The request content was malformed."}, 400)


class OpenFaas(Case):
    def test_parameters_and_fields_as_flask_has_them(self):
        engine = self.engine("openfaas", """
            def handle(event, context):
                query, fields = event.query, event.headers
                seen = [query.get("n", type=int), query.get("x", default=5, type=int), query.get("none", 1, int)]
                seen += [query.getlist("l"), query.to_dict(flat=False), fields.get("X-N", type=int), fields["x-n"]]
                return {"body": seen + [[k for k, v in fields], dict(fields), "x-N" in fields]}
            """, "fn:handle", template="python3-http")
        frame = engine.invoke("/", query="n=4&x=y&l=1&l=2", headers=[["x-n", "7"]])
        lists = {"n": ["4"], "x": ["y"], "l": ["1", "2"]}
        self.check(frame, [4, 5, 1, ["1", "2"], lists, 7, "7", ["X-N"], {"X-N": "7"}, True])

    def test_results(self):
        engine = self.engine("openfaas", """
            def handle(event, context):
                return {
                    "/text": {"statusCode": 201, "body": "x"}, "/plain": "x", "/none": None, "/pair": ("x", 202),
                    "/object": {"body": {"a": 1}}, "/number": {"body": 7}, "/empty": {},
                    "/fields": {"body": "x", "headers": {"Content-Type": "text/plain"}},
                }[event.path]
            """, "fn:handle", template="python3-http")
        html = "text/html; charset=utf-8"
        for path, body, status, kind in (
            ("/text", b"x", 201, html), ("/plain", b"x", 200, html), ("/none", b"", 200, html), ("/pair", b"x", 202, html),
            ("/object", {"a": 1}, 200, "application/json"), ("/number", b"7", 200, html), ("/empty", b"", 200, html),
            ("/fields", b"x", 200, "text/plain"),
        ):
            with self.subTest(path):
                self.check(engine.invoke(path), body, status, kind)

    def test_flask_template_answers_an_object_as_json(self):
        engine = self.engine("openfaas", "def handle(req):\n    return {'body': req}\n", "fn:handle", template="python3-flask")
        self.check(engine.invoke("/", b"x"), {"body": "x"}, 200, "application/json")

    def test_flask_knows_the_request_of_a_function_that_imports_it_when_called(self):
        if importlib.util.find_spec("flask") is None:
            self.skipTest("SKIPPED: flask is not installed")
        code = "def %s:\n    from flask import request\n    return %s\n"
        seen = "request.path + request.args['a']"
        for compat, head, answer, more in (
            ("openfaas", "handle(req)", seen, {"template": "python3-flask"}),
            ("openfaas", "handle(req)", seen, {}),
            ("openfaas", "handle(event, context)", "{'body': %s}" % seen, {"template": "python3-http"}),
            ("fission", "main()", seen, {}),
        ):
            with self.subTest(compat, more=more):
                entry = "fn:" + head.partition("(")[0]
                engine = self.engine(compat, code % (head, answer), entry, **more)
                self.check(engine.invoke("/b", b"x", query="a=1"), b"/b1")

    def test_the_event_can_be_changed_and_copied(self):
        engine = self.engine("openfaas", """
            import copy
            def handle(event, context):
                event.body, event.mine = b"own", 1
                event.headers["X-New"] = "n"
                other = copy.copy(event)
                return {"body": [other.body.decode(), other.mine, other.headers["x-two"], other.headers["x-new"], dict(event.query)]}
            """, "fn:handle", template="python3-http")
        for _ in range(2):
            self.check(engine.invoke("/", query="a=1", headers=FIELDS), ["own", 1, "1,2", "n", {"a": "1"}])


class Nuclio(Case):
    def test_the_event_tells_of_itself(self):
        engine = self.engine("nuclio", """
            import json
            def handler(context, event):
                written = json.loads(event.to_json())
                assert repr(event) == event.to_json() and written["timestamp"]
                names = "body", "path", "method", "fields", "trigger", "headers"
                return [[written[name] for name in names], event.get_header("X-TWO"), event.get_header("x-none")]
            """, "fn:handler")
        fields = {"Host": "here", "X-Two": "1,2", "Content-Type": "application/json; charset=utf-8"}
        http = {"kind": "http", "name": "default-http"}
        seen = [{"b": 2}, "/p", "POST", {"a": "1"}, http, fields]
        self.check(engine.invoke("/p", b'{"b":2}', query="a=1", headers=FIELDS), [seen, "1,2", None])
        self.check(engine.invoke("/p", b"x"), [["eA==", "/p", "POST", {}, http, {}], None, None])

    def test_json_that_is_none_is_bytes(self):
        engine = self.engine("nuclio", "def handler(context, event):\n    return event.body\n", "fn:handler")
        self.check(engine.invoke("/", b"{bad", headers=FIELDS), b"{bad", 200, "text/plain")

    def test_results(self):
        engine = self.engine("nuclio", """
            import datetime
            def handler(context, event):
                at = datetime.date(2020, 1, 2)
                return {
                    "/number": 7, "/flag": True, "/none": None, "/pair": (201, {"a": 1}), "/text": (201, "x"),
                    "/scalar": (200, 7), "/date": {"at": at}, "/bytes": b"x", "/list": [1],
                    "/whole": context.Response(body={"a": at}, content_type="text/html", status_code=202),
                }[event.path]
            """, "fn:handler")
        plain, kind = "text/plain", "application/json"
        for path, body, status, type_ in (
            ("/number", b"7", 200, plain), ("/flag", b"True", 200, plain), ("/none", b"", 200, plain),
            ("/pair", {"a": 1}, 201, kind), ("/text", b"x", 201, plain), ("/scalar", b"7", 200, kind),
            ("/date", {"at": "datetime.date(2020, 1, 2)"}, 200, kind), ("/bytes", b"x", 200, plain),
            ("/list", [1], 200, kind), ("/whole", {"a": "datetime.date(2020, 1, 2)"}, 202, kind),
        ):
            with self.subTest(path):
                self.check(engine.invoke(path), body, status, type_)


    def test_handlers_with_another_number_of_parameters(self):
        for parameters, wanted in (
            ("", []), ("context", ["Context"]), ("context, event, more=7", ["Context", "Incoming", 7]), ("*args", ["Context", "Incoming"]),
        ):  # fmt: skip
            for start in ("def", "async def"):
                with self.subTest(parameters + start):
                    body = "return [x if x == 7 else type(x).__name__ for x in (args if 'args' in locals() else locals().values())]"
                    engine = self.engine("nuclio", "%s handler(%s):\n    %s\n" % (start, parameters, body), "fn:handler")
                    self.check(engine.invoke("/"), wanted)

    def test_a_handler_with_a_third_parameter_that_nothing_fills_is_refused(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        with open(os.path.join(folder.name, "fn.py"), "w", encoding="utf-8") as file:
            file.write("def handler(context, event, more):\n    return 1\n")
        engine = Engine(folder.name, "fn:handler", compat="nuclio")
        self.addCleanup(engine.__exit__)
        self.assertEqual(engine.ready["kind"], "ERROR", engine.ready)
        self.assertIn("takes 3 arguments, at most 2 are given", str(engine.ready))


class Paths(Case):
    def test_platforms_whose_servers_decode_the_path_give_it_decoded(self):
        http = "def handle(event, context):\n    return {'body': [event.path]}\n"
        flask = "def handle(req):\n    from flask import request\n    return [request.path]\n"
        classic = "import json, os\ndef handle(req):\n    return json.dumps([os.environ['Http_Path']])\n"
        nuclio = "def handler(context, event):\n    return [event.path]\n"
        for compat, code, entry, template in (
            ("openfaas", http, "fn:handle", "python3-http"),
            ("openfaas", flask, "fn:handle", "python3-flask"),
            ("openfaas", classic, "fn:handle", "python3"),
            ("nuclio", nuclio, "fn:handler", None),
        ):
            with self.subTest(compat, template=template):
                if "flask" in code and importlib.util.find_spec("flask") is None:
                    self.skipTest("SKIPPED: flask is not installed")
                engine = self.engine(compat, code, entry, **({"template": template} if template else {}))
                self.check(engine.invoke("/a%26b/c%20d/%C3%BC"), ["/a&b/c d/ü"])
                self.check(engine.invoke("/plain"), ["/plain"])


class Kubeless(Case):
    def test_the_event_is_a_plain_dict(self):
        engine = self.engine("kubeless", """
            def handler(event, context):
                extensions = event.pop("extensions")
                request, response = extensions["request"], extensions["response"]
                seen = [sorted(extensions), type(extensions).__name__, request.method, request.path, request.query_string,
                        request.params["a"], request.url, request.content_length, request.get_header("x-two"), request.json]
                response.status = "201 Created"
                response.set_header("X-Kind", "test")
                return {"event": event, "seen": seen, "context": sorted(context)}
            """, "fn:handler")
        fields = [*FIELDS, ["event-id", "7"], ["event-type", "t"], ["event-time", "now"], ["event-namespace", "n"]]
        frame = engine.invoke("/p", b'{"b":2}', query="a=1", headers=fields)
        event = {"data": {"b": 2}, "event-id": "7", "event-type": "t", "event-time": "now", "event-namespace": "n"}
        seen = [["request", "response"], "dict", "POST", "/p", "a=1", "1", "/p?a=1", 7, "1,2", {"b": 2}]
        context = ["function-name", "memory-limit", "runtime", "timeout"]
        self.check(frame, {"event": event, "seen": seen, "context": context}, 201)
        self.assertIn(["x-kind", "test"], frame["headers"])

    def test_a_status_alone_is_heard(self):
        code = "def handler(event, context):\n    event['extensions']['response'].status = 418\n    return 'x'\n"
        self.check(self.engine("kubeless", code, "fn:handler").invoke("/"), b"x", 418, "text/plain; charset=utf-8")

    def test_nothing_of_an_event_in_a_call_without_one(self):
        code = "def handler(event, context):\n    return [event['data'].decode(), event['event-id'], event['event-type']]\n"
        self.check(self.engine("kubeless", code, "fn:handler").invoke("/", b"x"), ["x", None, None])


class Knative(Case):
    CODE = """
        async def handle(scope, receive, send):
            body = (await receive())["body"].decode()
            event = scope["event"]["id"] if scope.get("event") else None
            text = repr([scope["path"], scope["raw_path"], scope["root_path"], body, event])
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": text.encode()})
        """

    def test_a_function_has_the_address_for_itself(self):
        engine = self.engine("knative", self.CODE, "fn:handle")
        for path, text in (("/", "['/', b'/', '', 'x', None]"), ("/a%20b", "['/a b', b'/a%20b', '', 'x', None]")):
            self.check(engine.invoke(path, b"x"), text.encode())
        self.check(engine.invoke("/health/liveness"), b"OK")
        self.assertEqual(engine.invoke("/", headers=[["ce-id", "1"]])["status"], 400)
        # Another field's name contains the letters of such a field.
        self.check(engine.invoke("/", b"x", headers=[["x-service-name", "a"]]), b"['/', b'/', '', 'x', None]")
        event = [["ce-id", "7"], ["ce-source", "/s"], ["ce-type", "t"], ["ce-specversion", "1.0"]]
        self.check(engine.invoke("/", b"x", headers=event), b"['/', b'/', '', 'x', '7']")

    def test_what_cloudevents_2_has_by_another_name(self):
        code = """
            import os, sys
            # A package laid out as that one is from its second version on.
            where = os.path.join(os.path.dirname(__file__), "cloudevents", "v1", "http")
            os.makedirs(where)
            for folder in (where, os.path.dirname(where), os.path.dirname(os.path.dirname(where))):
                open(os.path.join(folder, "__init__.py"), "w").close()
            with open(os.path.join(where, "event.py"), "w") as file:
                file.write("class CloudEvent(dict):\\n    pass\\n")
            with open(os.path.join(where, "__init__.py"), "w") as file:
                file.write("from cloudevents.v1.http.event import CloudEvent\\n")
            from cloudevents.http import CloudEvent
            from cloudevents.http.event import CloudEvent as Same
            try:
                import cloudevents.nowhere
            except ImportError as error:
                said = str(error)
            async def handle(scope, receive, send):
                text = repr([CloudEvent.__module__, CloudEvent is Same, said])
                await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
                await send({"type": "http.response.body", "body": text.encode()})
            """
        wanted = b"['cloudevents.v1.http.event', True, \"No module named 'cloudevents.nowhere'\"]"
        self.check(self.engine("knative", code, "fn:handle").invoke("/"), wanted)


if __name__ == "__main__":
    unittest.main()
