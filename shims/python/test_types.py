"""The types for editors (mote.pyi) name what functions actually receive."""

import ast
import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import mote_cloudevents  # noqa: E402
import mote_services  # noqa: E402
from mote_worker import event  # noqa: E402

CLASSES = {
    "Event": event.Event,
    "Headers": event.Headers,
    "Context": event.Context,
    "AsyncContext": event.Context,
    "Error": mote_services.Error,
    "Conflict": mote_services.Conflict,
    "Entry": mote_services.Entry,
    "Listing": mote_services.Listing,
    "Kv": mote_services.Kv,
    "AsyncKv": mote_services.Kv,
    "Reply": mote_services.Reply,
    "CloudEvent": mote_cloudevents.CloudEvent,
}
# Attributes of instances, and slots that only the worker reads.
OF_INSTANCES = {"code", "version", "pairs", "attributes", "data"}
OF_WORKER = {"sent_ns", "deadline_ns", "header_block"}


def typed():
    """The members that the types give each class, with the parameters of methods."""
    with open(os.path.join(HERE, "mote.pyi"), encoding="utf-8") as file:
        classes = [node for node in ast.parse(file.read()).body if isinstance(node, ast.ClassDef)]
    members = {}
    for one in classes:
        own = members.setdefault(one.name, {})
        for base in one.bases:
            own.update(members.get(getattr(base, "id", ""), {}))
        for node in one.body:
            if isinstance(node, ast.AnnAssign):
                own[node.target.id] = None
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                is_property = any(getattr(mark, "id", "") == "property" for mark in node.decorator_list)
                arguments = node.args.args + node.args.kwonlyargs
                own[node.name] = None if is_property else [argument.arg for argument in arguments]
    return members


class TypesTest(unittest.TestCase):
    def test_each_typed_member_exists(self):
        members = typed()
        for name, real in CLASSES.items():
            for member, parameters in members[name].items():
                with self.subTest(name=name, member=member):
                    if member not in OF_INSTANCES:
                        self.assertTrue(hasattr(real, member))
                    code = getattr(getattr(real, member, None), "__code__", None)
                    if parameters is not None and code is not None and not member.startswith("__"):
                        there = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
                        self.assertLessEqual(set(parameters), set(there))

    def test_each_public_member_is_typed(self):
        members = typed()
        for name, real in CLASSES.items():
            if name in ("Error", "Conflict", "Listing"):
                continue
            public = {member for member in vars(real) if not member.startswith("_")}
            self.assertEqual(public - OF_WORKER - set(members[name]), set(), name)


if __name__ == "__main__":
    unittest.main()
