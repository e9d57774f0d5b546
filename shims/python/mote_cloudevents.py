"""CloudEvents 1.0: `ctx.cloudevent`, `ctx.cloudevents` and `ctx.new_cloudevent`.

The worker loads this file when a function first uses one of them, so that others do not pay for it.
It knows the HTTP binding (attributes in `ce-` fields), the MQTT binding (attributes in user
properties, which the node passes as `mqtt-user-` fields), the JSON format and its batches. It is
strict: a message that claims to be an event and breaks a rule raises `CloudEventError`. The adapter
for Knative reads and writes its events with the functions below. `shims/conformance/cloudevents.json`
has the cases that this file, `mote_cloudevents.cjs` and the Go package `mote` agree on.
"""

import base64
import binascii
import datetime
import json
import re
import uuid

STRUCTURED = "application/cloudevents+json"
BATCH = "application/cloudevents-batch+json"
REQUIRED = ("specversion", "id", "source", "type")
OF_DATA = ("data", "data_base64")
NAME = re.compile(r"[a-z0-9]+\Z")
FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
TIME = re.compile(
    r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])[Tt]([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?"
    r"([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)\Z"
)
MEDIA_TYPE = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+/[!#$%&'*+\-.^_`|~0-9A-Za-z]+\s*(;|\Z)")
ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:.")
# These characters must be encoded in a field.
TO_ENCODE = re.compile(r'[^\x21-\x7e]|["%]')
ENCODED = re.compile(r"%(.{0,2})", re.DOTALL)


class CloudEventError(ValueError):
    """An event that breaks a rule. If the event came with a call, the caller receives 400 with the
    text, unless the function catches the exception."""


class CloudEvent:
    """An event. Its attributes are read as `event.type` or, with extensions, as `event["name"]`."""

    def __init__(self, attributes, data=None):
        self.attributes = attributes
        self.data = data

    id = property(lambda self: self.attributes["id"])
    source = property(lambda self: self.attributes["source"])
    type = property(lambda self: self.attributes["type"])
    specversion = property(lambda self: self.attributes["specversion"])
    subject = property(lambda self: self.attributes.get("subject"))
    time = property(lambda self: self.attributes.get("time"))
    datacontenttype = property(lambda self: self.attributes.get("datacontenttype"))
    dataschema = property(lambda self: self.attributes.get("dataschema"))

    @property
    def extensions(self):
        """The attributes that the specification does not define."""
        return {name: value for name, value in self.attributes.items() if name not in DEFINED}

    def __getitem__(self, name):
        return self.attributes[name]

    def __contains__(self, name):
        return name in self.attributes

    def get(self, name, default=None):
        return self.attributes.get(name, default)

    def __eq__(self, other):
        return isinstance(other, CloudEvent) and (self.attributes, self.data) == (other.attributes, other.data)

    __hash__ = None

    def __repr__(self):
        return "CloudEvent(%r, %r)" % (self.attributes, self.data)

    # These are the three parts of an answer, so a function that returns an event answers in binary
    # mode.
    status = 200
    headers = property(lambda self: binary(self.attributes, self.data)[0])
    body = property(lambda self: binary(self.attributes, self.data)[1])


DEFINED = (*REQUIRED, "subject", "time", "datacontenttype", "dataschema")


def received(pairs, is_mqtt, body):
    """(is a batch, events) of a message; `pairs` are its header fields, with names in lower case. A
    message that does not claim to be an event has no events. `body` is a function, called only for
    events."""
    try:
        return read(pairs, is_mqtt, body)
    except CloudEventError as error:
        error.mote_answer = ("not a CloudEvent: %s\n" % error, 400)
        raise


def read(pairs, is_mqtt, body):
    kinds = [plain(value, name) if is_mqtt else value for name, value in pairs if name == "content-type"]
    kind = media_type(kinds[0]) if kinds else ""
    if kind.startswith("application/cloudevents"):
        if len(kinds) > 1:
            raise CloudEventError("there are two fields content-type")
        if kind == STRUCTURED:
            return False, [CloudEvent(*from_json(parsed(body())))]
        if kind == BATCH:
            return True, batch(parsed(body()))
        raise CloudEventError("the format %s is not known" % kind)
    prefix = "mqtt-user-" if is_mqtt else "ce-"
    marks = ("specversion",) if is_mqtt else ("specversion", "id", "type", "source")
    if not any(name == prefix + mark for name, _ in pairs for mark in marks):
        return False, []
    return False, [CloudEvent(*from_fields(pairs, prefix, body()))]


def from_fields(pairs, prefix, body, versions=("1.0",)):
    """(attributes, data) of an event in binary mode."""
    is_mqtt = prefix != "ce-"
    attributes = {}
    for name, value in pairs:
        if name == "content-type":
            key, value = "datacontenttype", plain(value, name) if is_mqtt else value
        elif name.startswith(prefix):
            key, value = name[len(prefix) :], plain(value, name) if is_mqtt else decoded(value, name)
            if is_mqtt and not NAME.match(key):
                continue  # a user property that is no attribute
            if key == "datacontenttype":
                raise CloudEventError("datacontenttype has a field of its own, which is content-type")
        else:
            continue
        if key in attributes:
            raise CloudEventError("the attribute %s is there twice" % key)
        attributes[key] = value
    check(attributes, versions)
    return attributes, content(body, attributes.get("datacontenttype")) if body else None


def from_json(event, versions=("1.0",)):
    """(attributes, data) of an event in the JSON format."""
    if not isinstance(event, dict):
        raise CloudEventError("the event is no JSON object")
    attributes = {name: value for name, value in event.items() if name not in OF_DATA and value is not None}
    check(attributes, versions)
    kind, coded = attributes.get("datacontenttype"), event.get("data_base64")
    if coded is None:
        return attributes, event.get("data")
    if "data" in event:
        raise CloudEventError("the event has both data and data_base64")
    try:
        return attributes, content(base64.b64decode(coded.encode("ascii"), validate=True), kind)
    except (AttributeError, UnicodeEncodeError, binascii.Error):
        raise CloudEventError("data_base64 is not base64") from None


def batch(events):
    if not isinstance(events, list):
        raise CloudEventError("the batch is no JSON array")
    found = []
    for number, event in enumerate(events):
        try:
            found.append(CloudEvent(*from_json(event)))
        except CloudEventError as error:
            raise CloudEventError("event %d of the batch: %s" % (number, error)) from None
    return found


def parsed(body):
    try:
        return json.loads(body.decode("utf-8-sig"), parse_constant=not_json)
    except (ValueError, RecursionError):
        raise CloudEventError("the body is not JSON") from None


def not_json(word):
    raise ValueError(word)


def check(attributes, versions=("1.0",)):
    """Raises for attributes that break a rule of the specification."""
    for name in REQUIRED:
        if not isinstance(attributes.get(name), str) or not attributes[name]:
            raise CloudEventError("the event has no %s" % name)
    if attributes["specversion"] not in versions:
        raise CloudEventError("specversion is %s, not 1.0" % attributes["specversion"])
    for name, value in attributes.items():
        if name == "data":
            raise CloudEventError("no attribute may be called data")
        if not NAME.match(name):
            raise CloudEventError("the attribute name %r has other characters than a-z and 0-9" % name)
        if name in DEFINED and (not isinstance(value, str) or not value):
            raise CloudEventError("%s is not a text, or is empty" % name)
        if isinstance(value, bool):
            continue
        if isinstance(value, int):
            if not -(2**31) <= value < 2**31:
                raise CloudEventError("%s is not a number of 32 bits" % name)
        elif not isinstance(value, str):
            raise CloudEventError("%s is neither a text, a whole number nor a boolean" % name)
        elif FORBIDDEN.search(value):
            raise CloudEventError("%s holds a control character" % name)
    if "time" in attributes and not TIME.match(attributes["time"]):
        raise CloudEventError("time is not a timestamp of RFC 3339")
    if "datacontenttype" in attributes and not MEDIA_TYPE.match(attributes["datacontenttype"]):
        raise CloudEventError("datacontenttype is not a media type")
    if "dataschema" in attributes and not ABSOLUTE.match(attributes["dataschema"]):
        raise CloudEventError("dataschema is not an absolute URI")


def media_type(kind):
    return (kind or "").partition(";")[0].strip(" \t").lower()


def is_json(kind):
    """Whether data of this type is JSON; data without a type is, in the JSON format."""
    return media_type(kind).endswith(("/json", "+json"))


def is_text(kind):
    kind = media_type(kind)
    return kind.startswith("text/") or kind.endswith(("/xml", "+xml"))


def charset(kind):
    found = re.search(r';\s*charset="?([^";\s]+)', kind, re.IGNORECASE)
    return found[1] if found else "utf-8"


def content(body, kind):
    """Data as a function receives it: JSON and text are decoded, everything else is bytes."""
    try:
        if is_json(kind):
            return json.loads(body.decode("utf-8-sig"), parse_constant=not_json)
        if is_text(kind):
            return body.decode(charset(kind))
    except (ValueError, RecursionError):
        raise CloudEventError("the data is not %s" % kind) from None
    except LookupError:
        pass  # a character set that is not known
    return body


def decoded(value, name):
    """An attribute from a field: quotes are taken off first, then one round of percent-encoding."""
    if value.startswith('"'):
        if len(value) < 2 or not re.match(r'"(?:[^"\\]|\\.)*"\Z', value):
            raise CloudEventError("%s has an opening quote without an end" % name)
        value = re.sub(r"\\(.)", r"\1", value[1:-1])
    return plain(value, name)


def plain(value, name):
    """A value without its percent-encoding. The node encodes user properties of MQTT the same way."""
    if not value.isascii():
        raise CloudEventError("%s holds characters that are not percent-encoded" % name)
    if "%" not in value:
        return value

    def byte(found):
        try:
            if not found[1].isalnum() or len(found[1]) != 2:
                raise ValueError
            return chr(int(found[1], 16))
        except ValueError:
            raise CloudEventError("%s holds a %% without two hexadecimal digits" % name) from None

    try:
        return ENCODED.sub(byte, value).encode("latin-1").decode("utf-8")
    except UnicodeDecodeError:
        raise CloudEventError("%s is not UTF-8" % name) from None


def encoded(value):
    """An attribute as a field has it."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return TO_ENCODE.sub(lambda found: "".join("%%%02X" % byte for byte in found[0].encode()), text)


def binary(attributes, data):
    """(fields, body) of an event with its attributes in fields."""
    check(attributes, (attributes.get("specversion"),))
    fields = [("ce-" + name, encoded(value)) for name, value in attributes.items() if name != "datacontenttype"]
    kind = attributes.get("datacontenttype")
    if data is None:
        return [*fields, ("content-type", kind)] if kind else fields, b""
    if isinstance(data, (bytes, bytearray, memoryview)):
        kind, data = kind or "application/octet-stream", bytes(data)
    elif isinstance(data, str) and kind and not is_json(kind):
        data = data.encode(charset(kind))
    else:
        kind, data = kind or "application/json", json_of(data)
    return [*fields, ("content-type", kind)], data


def structured(attributes, data):
    """(fields, body) of an event as one JSON object."""
    check(attributes, (attributes.get("specversion"),))
    members = dict(attributes)
    if isinstance(data, (bytes, bytearray, memoryview)):
        members["data_base64"] = base64.b64encode(data).decode()
    elif data is not None:
        members["data"] = data
    return [("content-type", STRUCTURED)], json_of(members)


def json_of(value):
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise CloudEventError("the data is not JSON: %s" % error) from None


def text_of(value):
    """The text of an attribute's value: a time as in RFC 3339, everything else as it is."""
    if isinstance(value, datetime.datetime):
        return value.isoformat().replace("+00:00", "Z")
    return value


def made(source, type, data=None, **attributes):
    """A new event; `id` and `time` are filled in."""
    given = {
        "specversion": "1.0",
        "id": str(uuid.uuid4()),
        "source": source,
        "type": type,
        "time": datetime.datetime.now(datetime.timezone.utc),
        **attributes,
    }
    event = CloudEvent({name: text_of(value) for name, value in given.items() if value is not None}, data)
    check(event.attributes)
    return event
