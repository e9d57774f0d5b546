"""Replays shims/conformance/cloudevents.json: which messages are events, and which are refused."""

import datetime
import unittest

import mote_cloudevents
from engine_double import fixtures


def body_of(case):
    return bytes.fromhex(case["body_hex"]) if "body_hex" in case else case["body"].encode()


def data_of(case):
    if "data_hex" in case:
        return bytes.fromhex(case["data_hex"])
    return case.get("data", case.get("data_text"))


class Reading(unittest.TestCase):
    def test_messages(self):
        for case in fixtures("cloudevents"):
            with self.subTest(case["name"]):
                pairs = [tuple(pair) for pair in case["headers"]]
                message = (pairs, case.get("mqtt", False), lambda case=case: body_of(case))
                if "error" in case:
                    with self.assertRaises(mote_cloudevents.CloudEventError) as caught:
                        mote_cloudevents.received(*message)
                    self.assertIn(case["error"], str(caught.exception))
                    self.assertEqual(caught.exception.mote_answer, ("not a CloudEvent: %s\n" % caught.exception, 400))
                    continue
                is_batch, events = mote_cloudevents.received(*message)
                self.assertEqual(is_batch, "events" in case)
                wanted = case.get("events", [case] if "event" in case else [])
                self.assertEqual([(one.attributes, one.data) for one in events], [(one["event"], data_of(one)) for one in wanted])

    def test_a_body_is_not_read_without_an_event(self):
        self.assertEqual(mote_cloudevents.received([("content-type", "a/b")], False, None), (False, []))


class Writing(unittest.TestCase):
    def test_what_is_written_is_read_again(self):
        values = [{"a": "ü"}, "text", b"\xff\0", None, 0, [], ""]
        for data, kind in [*((value, None) for value in values), ("grün", "text/plain"), ("ü", "text/plain; charset=latin-1")]:
            with self.subTest(repr(data)):
                subject = ' "50%" + grün\u3000€😀\\ '
                event = mote_cloudevents.made("/a b", "t", data, subject=subject, count=-1, flag=True, datacontenttype=kind)
                pairs = [(name, value.strip(" ")) for name, value in event.headers]
                self.assertTrue(all(value.isascii() and value.isprintable() for _, value in pairs))
                _, (read,) = mote_cloudevents.received(pairs, False, lambda event=event: event.body)
                written = {name: "true" if value is True else str(value) for name, value in event.attributes.items()}
                self.assertEqual({**read.attributes, "datacontenttype": 0}, {**written, "datacontenttype": 0})
                self.assertEqual(read.data, data)

    def test_what_is_no_event_is_not_made(self):
        for wrong in ({"source": ""}, {"my_ext": "x"}, {"time": "now"}, {"ext": 1.5}, {"subject": "a\nb"}, {"id": 1}):
            with self.subTest(wrong), self.assertRaises(mote_cloudevents.CloudEventError) as caught:
                mote_cloudevents.made(**{"source": "/s", "type": "t", **wrong})
            self.assertFalse(hasattr(caught.exception, "mote_answer"), "it is not the caller's mistake")
        with self.assertRaises(mote_cloudevents.CloudEventError):
            _ = mote_cloudevents.made("/s", "t", {"a": object()}).body

    def test_times(self):
        time = datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc)
        self.assertEqual(mote_cloudevents.made("/s", "t", time=time).time, "2026-01-02T00:00:00Z")


if __name__ == "__main__":
    unittest.main()
