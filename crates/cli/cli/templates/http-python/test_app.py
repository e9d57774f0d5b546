import unittest
from types import SimpleNamespace

from app import handle


class HelloTest(unittest.TestCase):
    def test_greets_by_name(self):
        event = SimpleNamespace(args={"name": "Ada"})
        self.assertEqual(handle(event, None), {"message": "Hello, Ada!"})

    def test_greets_the_world(self):
        event = SimpleNamespace(args={})
        self.assertEqual(handle(event, None), {"message": "Hello, world!"})
