"""Answers HTTP requests as a component for wasi:http."""

from componentize_py_types import Err, Ok
from wit_world import exports
from wit_world.imports.streams import StreamError_Closed
from wit_world.imports.types import Fields, OutgoingBody, OutgoingResponse, ResponseOutparam


class IncomingHandler(exports.IncomingHandler):
    def handle(self, request, response_out):
        path = (request.path_with_query() or "/").split("?")[0]
        text = read(request).upper() if path == "/upper" else b"hello from Python"
        response = OutgoingResponse(Fields.from_list([("content-type", b"text/plain")]))
        body = response.body()
        ResponseOutparam.set(response_out, Ok(response))
        with body.write() as stream:
            stream.blocking_write_and_flush(text)
        OutgoingBody.finish(body, None)


def read(request):
    parts = []
    with request.consume() as body, body.stream() as stream:
        try:
            while True:
                parts.append(stream.blocking_read(16384))
        except Err as error:
            if not isinstance(error.value, StreamError_Closed):
                raise
    return b"".join(parts)
