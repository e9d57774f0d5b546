"""Apache OpenWhisk: `main(args)`, called as a web action is.

Query, form and JSON object become arguments beside `__ow_method` and its siblings. A result with
statusCode, headers or body is an HTTP answer; any other object is answered as JSON.
"""

import base64
import json
import os
import sys
import time
import traceback

import mote_shim
from mote_compat import Known, Query, content_type, nothing_to_call, plain_fields, typed_block
from mote_compat.environment import LateVariables

HTML_BLOCK = typed_block("text/html; charset=UTF-8")
NO_RESULT = {"error": "The action did not return a dictionary or array."}
TEXTUAL = ("text/", "application/json", "application/javascript", "application/xml")


def adapt(worker):
    add_packages(os.path.abspath("virtualenv/lib"))
    # The modules of an archive import each other. The archive starts at `__main__`, a name that
    # belongs to the shim here.
    entry, _, name = worker.spec["entry"].partition(":")
    module = load_main() if entry == "__main__" else mote_shim.find_entry(entry + ":" + (name or "main"))[0]
    action = module
    for part in (name or "main").split("."):
        action = getattr(action, part)
    defaults = json.loads(os.environ.get("OPENWHISK_PARAMETERS") or "{}")
    os.environ["__OW_ACTION_NAME"] = "/_/" + worker.spec["function"]
    os.environ["__OW_ACTION_VERSION"] = "0.0.%d" % worker.spec["revision"]
    os.environ.setdefault("__OW_NAMESPACE", "_")

    late = LateVariables(("__OW_ACTIVATION_ID", "__OW_DEADLINE"), variables)
    worker.text = HTML_BLOCK

    @Known
    def told(head):
        """(arguments, fields) from the head of a request. A caller that uses the platform's API
        gives only arguments and reads the result as it is: for such a head this is None."""
        method, path, query, block = mote_shim.parts_of_head(head)
        fields = plain_fields[block]
        if "x-mote-activation" in fields:
            return None
        args = defaults.copy()
        if query:
            args.update(Query(query))
            args["__ow_query"] = query
        args["__ow_method"] = method.lower()
        args["__ow_headers"] = None
        args["__ow_path"] = "" if path == "/" else path
        return args, fields

    last = (b"", None)  # the head of the call before, and what it made

    def handle(event):
        nonlocal last
        late.event = event
        head, body = mote_shim.head_and_body(event)
        head_before, known = last
        if head != head_before:  # quicker than a hash of it
            known = told[head]
            last = head, known
        if known is None:
            given = json.loads(body) if body else {}
            # In a sequence, the previous result may be an array.
            try:
                return plain(action(given if isinstance(given, list) else {**defaults, **given}))
            except Exception as error:
                traceback.print_exc()
                return {"error": str(error)}, 502
        args, fields = known
        args = args.copy()
        args["__ow_headers"] = fields.copy()
        if body:
            try:
                add_body(args, event, body)
            except ValueError:
                return {"error": "The request content was malformed."}, 400
        result = action(args)
        if type(result) is dict and len(result) == 1:
            body = result.get("body")
            if type(body) is str and body:
                return body
        return answer(result)

    return nothing_to_call(), handle, "handle"


def add_packages(folder):
    """An archive may bring its packages in an environment of this name."""
    if os.path.isdir(folder):
        import site

        for version in os.listdir(folder):
            site.addsitedir(os.path.join(folder, version, "site-packages"))


def variables(event):
    """The variables of an activation. Few actions read them."""
    left_ms = max(0, (event.deadline_ns - time.monotonic_ns()) // 1_000_000)
    return {
        "__OW_ACTIVATION_ID": event.headers.get("x-mote-activation") or event.id,
        "__OW_DEADLINE": str(int(time.time() * 1000) + left_ms),
    }


def load_main():
    import importlib.util

    spec = importlib.util.spec_from_file_location("whisk_main", os.path.join(os.getcwd(), "__main__.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules["whisk_main"] = module
    spec.loader.exec_module(module)
    return module


def add_body(args, event, body):
    """Adds a body to the arguments of an action."""
    kind = content_type(event)
    if kind in ("", "application/json"):
        try:
            value = json.loads(body)
        except ValueError:
            if kind:
                raise
            value = None
        if isinstance(value, dict):
            args.update(value)
            return
        if kind:
            args["__ow_body"] = value
            return
    if kind == "application/x-www-form-urlencoded":
        args.update(Query(event.text))
    elif kind.startswith(TEXTUAL):
        args["__ow_body"] = event.text
    else:
        args["__ow_body"] = base64.b64encode(body).decode()


def plain(result):
    """A result for the platform's API: any object or array; one with an error is 502."""
    if result is None:
        result = {}
    if not isinstance(result, (dict, list)):
        return NO_RESULT, 502
    return result, 502 if isinstance(result, dict) and "error" in result else 200


def answer(result):
    """(body, status, headers) of an action's result."""
    if result is None:
        result = {}
    if not isinstance(result, (dict, list)):
        return NO_RESULT, 502
    failed = isinstance(result, dict) and "error" in result
    web = result
    if failed and isinstance(result["error"], dict) and "statusCode" in result["error"]:
        web = result["error"]
    elif failed:
        return {"error": result["error"]}, 502
    if isinstance(web, list) or not {"statusCode", "headers", "body"} & set(web):
        return web
    body = web.get("body")
    headers = dict(web.get("headers") or {})
    headers = {name: text_of(value) for name, value in headers.items()}
    kind = next((value for name, value in headers.items() if name.lower() == "content-type"), "")
    if isinstance(body, str) and kind and not textual(kind):
        body = base64.b64decode(body)
    elif isinstance(body, (dict, list)):
        body = json.dumps(body)
        if not kind:
            headers["Content-Type"] = "application/json"
    elif body is not None and not isinstance(body, str):
        body = json.dumps(body)
    elif isinstance(body, str) and not kind:
        headers["Content-Type"] = "text/html; charset=UTF-8"
    status = int(web.get("statusCode") or (200 if body else 204))
    return body or "", status, headers


def text_of(value):
    """A field's value: booleans as JSON writes them, several values as they are."""
    if isinstance(value, (list, tuple)):
        return [text_of(one) for one in value]
    return value if isinstance(value, str) else json.dumps(value)


def textual(kind):
    kind = kind.partition(";")[0].strip().lower()
    return kind.startswith(TEXTUAL) or kind.endswith(("+json", "+xml"))
