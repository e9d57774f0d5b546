"""Finds the function of a LOAD frame, and tells from its signature how it is to be called.

This part imports the code of the function. It never calls the function.
"""

import json
import os
import sys

from mote_worker.wire import ProtocolError


def parse_load(payload):
    try:
        spec = json.loads(payload)
        spec = {"packages_dir": None, "concurrency": None, "env": {}, **spec}
        spec["function"], spec["revision"], spec["code_dir"], spec["entry"]
        return spec
    except (ValueError, KeyError, TypeError) as error:
        raise ProtocolError("LOAD: %r" % error) from None


def missing(module, name):
    """The message for a module that lacks the object to call, with candidates that it does have."""
    text = "module %r has no attribute %r" % (module.__name__, name)
    for other in ("new", "handle", "app", "application", "handler", "main"):
        if callable(getattr(module, other, None)):
            return '%s; to use its `%s`: entry = "%s:%s" in mote.toml' % (text, other, module.__name__, other)
    return text


def find_entry(entry):
    """(module, object, its name) of `module:object`, `module`, or a file name."""
    path, _, name = entry.partition(":")
    if path.endswith(".py"):
        path = path[:-3]
    path = path.strip("./").replace("/", ".")
    __import__(path)  # what importlib.import_module does; the first import of importlib takes 1 ms
    module = sys.modules[path]
    if name:
        found = module
        for part in name.split("."):
            if found is module and not hasattr(module, part):
                raise AttributeError(missing(module, part))
            found = getattr(found, part)
        return module, found, name
    for name in ("handle", "app", "handler", "main"):
        if callable(getattr(module, name, None)):
            return module, getattr(module, name), name
    raise LookupError("module %s has none of handle, app, handler, main" % module.__name__)


def let_debug(port):
    """Lets a debugger attach at this port, on a node for one developer."""
    # Without this variable, debugpy warns about modules of Python itself.
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    try:
        import debugpy
    except ImportError:
        print("no debugger can attach: add a line `debugpy` to requirements.txt", file=sys.stderr)
        return
    # debugpy's usual adapter is another process, which would need a share of the function's memory.
    debugpy.listen(("127.0.0.1", port), in_process_debug_adapter=True)


def adapted(worker):
    """What `find_entry` returns for a function of another platform: its adapter's handler."""
    import importlib.util

    name, folder = worker.spec["compat"], os.path.join(worker.folder, "compat")
    if not os.path.isfile(os.path.join(folder, name + ".py")):
        raise LookupError("there is no adapter for %s" % name)
    found = importlib.util.spec_from_file_location(
        "mote_compat", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    package = importlib.util.module_from_spec(found)
    sys.modules["mote_compat"] = package
    found.loader.exec_module(package)
    return importlib.import_module("mote_compat." + name).adapt(worker)


def code_of(function):
    """(code object, number of bound arguments) of a callable, through decorators; or (None, 0)."""
    bound = 0
    for _ in range(32):
        if hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif hasattr(function, "__func__"):
            function, bound = function.__func__, 1
        elif hasattr(function, "__code__"):
            return function.__code__, bound
        elif hasattr(type(function).__call__, "__code__"):
            return type(function).__call__.__code__, 1
        else:
            break
    return None, 0


def shape_of(handler, name):
    """Which of the four shapes an entry has, judged by its signature without a call."""
    if not callable(handler):
        raise TypeError("%s is not callable" % name)
    code, bound = code_of(handler)
    if code is None:
        return "handle"
    names = code.co_varnames[bound : code.co_argcount]
    plain = hasattr(handler, "__code__")
    if len(names) == 3 and not (plain and names[:2] == ("event", "ctx")):
        return "asgi"
    if hasattr(handler, "wsgi_app") or (len(names) == 2 and names[1] == "start_response"):
        return "wsgi"
    if not plain and name in ("app", "application") and len(names) == 2:
        return "wsgi"
    # 0x80 marks a coroutine function, 0x200 an async generator (see `inspect`).
    return "async handle" if code.co_flags & 0x280 else "handle"


def arguments_of(function):
    """How many positional arguments a callable names, or None if it takes any number."""
    code, bound = code_of(function)
    return None if code is None or code.co_flags & 0x04 else code.co_argcount - bound


def with_arguments(function, count):
    """`function`, called with as many of `count` arguments as it takes."""
    takes = arguments_of(function)
    if takes is None:
        return function
    if takes >= count:
        defaults = getattr(function, "__defaults__", None) or ()
        if takes - len(defaults) > count:
            raise TypeError("the handler takes %d arguments, at most %d are given" % (takes, count))
        return function
    if takes == 1:
        return lambda event, _: function(event)
    return lambda *_: function()


def in_trace(handler):
    """Lets the spans that a handler makes with OpenTelemetry continue the trace of the call."""
    import inspect

    from opentelemetry import context, propagate

    is_async = inspect.iscoroutinefunction(handler)
    handler = with_arguments(handler, 2)

    async def call_async(event, ctx):
        token = context.attach(propagate.extract(event.headers))
        try:
            return await handler(event, ctx)
        finally:
            context.detach(token)

    def call(event, ctx):
        token = context.attach(propagate.extract(event.headers))
        try:
            return handler(event, ctx)
        finally:
            context.detach(token)

    return call_async if is_async else call
