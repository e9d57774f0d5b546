"""CloudEvents as functions of Knative know them. `mote_cloudevents` reads and writes their bytes."""

import uuid

VERSIONS = ("1.0", "0.3")
codec = None  # the module `mote_cloudevents`, from `use`


def use(worker):
    global codec
    codec = worker.part("mote_cloudevents")


class CloudEvent:
    """An event. Attributes are read by name, as items or through `get_…`, as in the usual
    packages."""

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


def is_event(headers):
    """Whether a request carries an event, as far as its head shows."""
    return (
        "ce-specversion" in headers
        or "ce-id" in headers
        or headers.get("content-type", "").lower().startswith("application/cloudevents")
    )


def read(headers, body):
    """The event of a request; ValueError for one that is incomplete."""
    kind = codec.media_type(headers.get("content-type"))
    if kind == codec.STRUCTURED:
        return CloudEvent(*codec.from_json(codec.parsed(body), VERSIONS))
    if kind.startswith("application/cloudevents"):
        raise ValueError("events of type %s are not read" % kind)
    return CloudEvent(*codec.from_fields(headers.items(), "ce-", body, VERSIONS))


def parts(event):
    """(attributes, data) of an event of this class, of an event of the usual packages, or of a
    dict."""
    if isinstance(event, dict):
        members = dict(event)
        data = members.pop("data", None)
    else:
        members = dict(event.get_attributes())
        data = event.get_data() if hasattr(event, "get_data") else event.data
    members.setdefault("specversion", "1.0")
    members.setdefault("id", str(uuid.uuid4()))
    members = {name: text_of(value) for name, value in members.items() if value is not None}
    return members, data


def text_of(value):
    value = codec.text_of(value)
    return value if isinstance(value, (str, bool, int)) else str(value)


def structured(event):
    """(fields, body) of an event as one JSON object."""
    return codec.structured(*parts(event))


def binary(event):
    """(fields, body) of an event with its attributes in fields."""
    return codec.binary(*parts(event))
