"""CloudEvents 1.0 over HTTP, both modes: attributes in `ce-` fields, or the whole event as JSON."""

import base64
import datetime
import json
import uuid
from urllib.parse import quote, unquote

STRUCTURED = "application/cloudevents+json"
REQUIRED = ("id", "source", "type", "specversion")


class CloudEvent:
    """An event. Attributes by name, as items or through `get_…`, as in the usual packages."""

    def __init__(self, attributes, data=None):
        self._attributes = dict(attributes)
        self._attributes.setdefault("specversion", "1.0")
        self._attributes.setdefault("id", str(uuid.uuid4()))
        self.data = data

    def __getitem__(self, name):
        return self._attributes[name]

    def __contains__(self, name):
        return name in self._attributes

    def get(self, name, default=None):
        return self._attributes.get(name, default)

    def get_attributes(self):
        return dict(self._attributes)

    def get_data(self):
        return self.data

    def get_id(self):
        return self._attributes["id"]

    def get_source(self):
        return self._attributes["source"]

    def get_type(self):
        return self._attributes["type"]

    def get_specversion(self):
        return self._attributes["specversion"]

    def get_datacontenttype(self):
        return self._attributes.get("datacontenttype")

    def get_dataschema(self):
        return self._attributes.get("dataschema")

    def get_subject(self):
        return self._attributes.get("subject")

    def get_time(self):
        return self._attributes.get("time")

    def get_extension(self, name):
        return self._attributes.get(name)

    def __repr__(self):
        return "CloudEvent(%r, %r)" % (self._attributes, self.data)


def is_json(kind):
    kind = (kind or "").partition(";")[0].strip().lower()
    return kind.endswith(("/json", "+json"))


def is_event(headers):
    """Whether a request carries an event, as far as its head tells."""
    return (
        "ce-specversion" in headers
        or "ce-id" in headers
        or headers.get("content-type", "").lower().startswith("application/cloudevents")
    )


def read(headers, body):
    """The event of a request; ValueError for one that is incomplete."""
    kind = headers.get("content-type", "")
    if kind.partition(";")[0].strip().lower() == STRUCTURED:
        members = json.loads(body)
        if not isinstance(members, dict):
            raise ValueError("the event is no object")
        data = members.pop("data", None)
        if isinstance(members.get("data_base64"), str):
            data = base64.b64decode(members.pop("data_base64"))
    elif kind.lower().startswith("application/cloudevents"):
        raise ValueError("events of type %s are not read" % kind)
    else:
        members = {name[3:]: unquote(value) for name, value in headers.items() if name.startswith("ce-")}
        if kind:
            members["datacontenttype"] = kind
        data = body or None
        if body and is_json(kind):
            data = json.loads(body)
        elif body and kind.startswith("text/"):
            data = body.decode("utf-8", "replace")
    check(members)
    return CloudEvent(members, data)


def check(members):
    for name in REQUIRED:
        if not isinstance(members.get(name), str) or not members[name]:
            raise ValueError("the event has no %s" % name)
    if members["specversion"] not in ("1.0", "0.3"):
        raise ValueError("the event's specversion is %s" % members["specversion"])


def parts(event):
    """(attributes, data) of an event of this class, of the usual packages, or of a dict."""
    if isinstance(event, dict):
        members = dict(event)
        data = members.pop("data", None)
    else:
        members = dict(event.get_attributes())
        data = event.get_data() if hasattr(event, "get_data") else event.data
    members.setdefault("specversion", "1.0")
    members.setdefault("id", str(uuid.uuid4()))
    members = {name: text_of(value) for name, value in members.items() if value is not None}
    check(members)
    return members, data


def text_of(value):
    if isinstance(value, datetime.datetime):
        return value.isoformat().replace("+00:00", "Z")
    return value if isinstance(value, (str, bool, int)) else str(value)


def structured(event):
    """(fields, body) of an event as one JSON object."""
    members, data = parts(event)
    if isinstance(data, (bytes, bytearray)):
        members["data_base64"] = base64.b64encode(data).decode()
    elif data is not None:
        members["data"] = data
    return [("content-type", STRUCTURED)], json.dumps(members).encode()


def binary(event):
    """(fields, body) of an event with its attributes in fields."""
    members, data = parts(event)
    kind = members.pop("datacontenttype", None)
    fields = [("ce-" + name, quote(written(value), safe=" !#$&'()*+,/:;=?@[]^`{|}~<>\\")) for name, value in members.items()]
    if data is None:
        return fields, b""
    if isinstance(data, (bytes, bytearray)):
        kind = kind or "application/octet-stream"
    elif isinstance(data, str) and kind and not is_json(kind):
        data = data.encode()
    else:
        kind, data = kind or "application/json", json.dumps(data).encode()
    return [*fields, ("content-type", kind)], bytes(data)


def written(value):
    return str(value).lower() if isinstance(value, bool) else str(value)
