"""Types for functions in Python, for editors and type checkers.

`mote new` writes this file next to a function. Nothing imports it while the function runs:

    from __future__ import annotations

    TYPE_CHECKING = False
    if TYPE_CHECKING:
        from mote import Context, Event

Type checkers take the variable for true.

An `async def` function has an `AsyncContext`, whose requests to the node must be awaited.
"""

import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Literal, overload

_Trigger = Literal["http", "coap", "mqtt", "admin", "schedule", "function", "unknown"]

class Headers(Mapping[str, str]):
    """Header fields by name, in any case. Duplicates are joined by ", "; `getall` keeps them."""

    pairs: list[tuple[str, str]]
    def __getitem__(self, name: str) -> str: ...
    def __iter__(self) -> Iterator[str]: ...
    def __len__(self) -> int: ...
    def getall(self, name: str) -> list[str]:
        """Every value of this name, in order."""

class Event:
    """One invocation."""

    @property
    def body(self) -> bytes: ...
    @property
    def text(self) -> str: ...
    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str:
        """The path after the function's name."""
    @property
    def query(self) -> str: ...
    @property
    def args(self) -> dict[str, str]:
        """The parameters of the query."""
    @property
    def headers(self) -> Headers: ...
    @property
    def trigger(self) -> _Trigger: ...
    @property
    def id(self) -> str: ...
    @property
    def caller(self) -> str | None:
        """The name that the access mode proves."""
    @property
    def params(self) -> dict[str, str]:
        """The parameters of the route by which the function was called."""
    @property
    def stream(self) -> Iterator[bytes]:
        """The body in chunks."""
    def json(self) -> Any:
        """The body as JSON."""
    def astream(self) -> AsyncIterator[bytes]:
        """The body in chunks, as they arrive when the module says `stream_request = True`."""

class Error(Exception):
    """A request that the node did not carry out. In code: `ctx.kv.Error`."""

    code: Literal["full", "invalid", "denied", "unavailable", "failed", "conflict"]

class Conflict(Error):
    """The entry does not have the required version. In code: `ctx.kv.Conflict`."""

    version: int

class Entry:
    """A value of the state, with the version that a change can require."""

    key: str
    value: bytes
    version: int
    expires_ms: int | None
    @property
    def text(self) -> str: ...
    def json(self) -> Any: ...

class Listing(list[Entry]):
    """Entries in the order of their keys."""

    after: str | None
    """Continues the listing; `None` at its end."""

class Reply:
    """The answer of a called function."""

    status: int
    headers: Headers
    body: bytes
    @property
    def ok(self) -> bool:
        """Whether the status is below 400."""
    @property
    def text(self) -> str: ...
    def json(self) -> Any: ...

class CloudEvent:
    """An event. Extensions are read as `event["name"]`."""

    status: int
    @property
    def headers(self) -> list[tuple[str, str]]:
        """The fields of the event as an answer."""
    @property
    def body(self) -> bytes: ...
    attributes: dict[str, Any]
    data: Any
    @property
    def id(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def specversion(self) -> str: ...
    @property
    def subject(self) -> str | None: ...
    @property
    def time(self) -> Any: ...
    @property
    def datacontenttype(self) -> str | None: ...
    @property
    def dataschema(self) -> str | None: ...
    @property
    def extensions(self) -> dict[str, Any]: ...
    def __getitem__(self, name: str) -> Any: ...
    def __contains__(self, name: object) -> bool: ...
    def get(self, name: str, default: Any = None) -> Any: ...

class Kv:
    """The state of the function: keys and values that the node keeps."""

    Error: type[Error]
    Conflict: type[Conflict]
    def shared(self, name: str) -> Kv:
        """The shared namespace of this name, which the manifest must list in `[kv] shared`."""
    @overload
    def get(self, key: str) -> bytes | None: ...
    @overload
    def get(self, key: str, default: bytes) -> bytes: ...
    def entry(self, key: str) -> Entry | None: ...
    def put(
        self, key: str, value: Any, *, ttl: float | None = None, version: int | None = None, durable: bool = True
    ) -> int:
        """Writes a value and returns its version. `ttl` is in seconds. With `version`, the entry must
        have that version (0: there must be no entry), otherwise `Conflict` is raised."""
    def delete(self, key: str, *, version: int | None = None, durable: bool = True) -> bool:
        """Removes a key and returns whether it existed."""
    def list(self, prefix: str = "", *, limit: int = 0, after: str | None = None, values: bool = True) -> Listing: ...
    def increment(self, key: str, by: int = 1, *, ttl: float | None = None, durable: bool = True) -> int:
        """Adds to a whole number and returns the sum. A missing entry counts as 0."""

class AsyncKv:
    """The state of the function, for an `async def` function."""

    Error: type[Error]
    Conflict: type[Conflict]
    def shared(self, name: str) -> AsyncKv: ...
    @overload
    async def get(self, key: str) -> bytes | None: ...
    @overload
    async def get(self, key: str, default: bytes) -> bytes: ...
    async def entry(self, key: str) -> Entry | None: ...
    async def put(
        self, key: str, value: Any, *, ttl: float | None = None, version: int | None = None, durable: bool = True
    ) -> int: ...
    async def delete(self, key: str, *, version: int | None = None, durable: bool = True) -> bool: ...
    async def list(
        self, prefix: str = "", *, limit: int = 0, after: str | None = None, values: bool = True
    ) -> Listing: ...
    async def increment(self, key: str, by: int = 1, *, ttl: float | None = None, durable: bool = True) -> int: ...

class _Context:
    @property
    def function(self) -> str: ...
    @property
    def revision(self) -> int: ...
    @property
    def log(self) -> logging.Logger:
        """A logger whose lines belong to this invocation."""
    @property
    def cancelled(self) -> bool:
        """Whether the caller has gone."""
    @property
    def cloudevent(self) -> CloudEvent | None: ...
    @property
    def cloudevents(self) -> list[CloudEvent]: ...
    def new_cloudevent(
        self, type: str, data: Any = None, *, source: str | None = None, **attributes: Any
    ) -> CloudEvent: ...
    def remaining_ms(self) -> int | None:
        """Milliseconds until the deadline, at least 0; `None` inside `init`."""

class Context(_Context):
    """The context of an invocation of a `def` function."""

    @property
    def kv(self) -> Kv: ...
    def call(
        self,
        name: str,
        body: Any = None,
        *,
        method: str = "POST",
        path: str = "/",
        query: str = "",
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Reply:
        """Calls another function of the node."""
    def call_async(
        self,
        name: str,
        body: Any = None,
        *,
        method: str = "POST",
        path: str = "/",
        query: str = "",
        headers: Mapping[str, str] | None = None,
        delay: float = 0,
        key: str | None = None,
        order: str | None = None,
    ) -> str:
        """Hands a call to the node, which makes it later, and returns its id."""
    def publish(
        self,
        topic: str,
        body: Any = None,
        *,
        qos: Literal[0, 1, 2] = 1,
        retain: bool = False,
        content_type: str | None = None,
        response_topic: str | None = None,
        correlation: bytes | str | None = None,
        user: Mapping[str, str] | None = None,
    ) -> None:
        """Publishes a message at the function's MQTT broker."""
    def notify(
        self,
        path: str,
        body: Any = None,
        *,
        content_type: str | None = None,
        max_age: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        """Tells the observers of a resource its new state, and returns how many they are."""

class AsyncContext(_Context):
    """The context of an invocation of an `async def` function."""

    @property
    def kv(self) -> AsyncKv: ...
    async def call(
        self,
        name: str,
        body: Any = None,
        *,
        method: str = "POST",
        path: str = "/",
        query: str = "",
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Reply: ...
    async def call_async(
        self,
        name: str,
        body: Any = None,
        *,
        method: str = "POST",
        path: str = "/",
        query: str = "",
        headers: Mapping[str, str] | None = None,
        delay: float = 0,
        key: str | None = None,
        order: str | None = None,
    ) -> str: ...
    async def publish(
        self,
        topic: str,
        body: Any = None,
        *,
        qos: Literal[0, 1, 2] = 1,
        retain: bool = False,
        content_type: str | None = None,
        response_topic: str | None = None,
        correlation: bytes | str | None = None,
        user: Mapping[str, str] | None = None,
    ) -> None: ...
    async def notify(
        self,
        path: str,
        body: Any = None,
        *,
        content_type: str | None = None,
        max_age: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> int: ...
