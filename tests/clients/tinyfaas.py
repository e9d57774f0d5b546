"""Clients of tinyFaaS' fronts: gRPC with grpcio and protobuf, CoAP with aiocoap.

    tinyfaas.py grpc ADDRESS FUNCTION DATA [NAME=VALUE …]
    tinyfaas.py coap METHOD URI [DATA]

Prints one line of JSON: what was answered, or the code and words of a failure.
"""

import asyncio
import json
import sys


def messages():
    """The messages of tinyFaaS' service, from its description."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(
        name="tinyfaas.proto", package="openfogstack.tinyfaas.tinyfaas", syntax="proto3"
    )
    for name, fields in [("Data", ["functionIdentifier", "data"]), ("Response", ["response"])]:
        message = file.message_type.add(name=name)
        for number, field in enumerate(fields, 1):
            message.field.add(name=field, number=number, type=9, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = message_factory.GetMessageClassesForFiles(["tinyfaas.proto"], pool)
    return found[f"{file.package}.Data"], found[f"{file.package}.Response"]


def call_grpc(address, function, data, *metadata):
    import grpc

    Data, Response = messages()
    with grpc.insecure_channel(address) as channel:
        request = channel.unary_unary(
            "/openfogstack.tinyfaas.tinyfaas.TinyFaaS/Request",
            request_serializer=Data.SerializeToString,
            response_deserializer=Response.FromString,
        )
        pairs = [tuple(pair.split("=", 1)) for pair in metadata]
        try:
            message = Data(functionIdentifier=function, data=data)
            answer = request(message, metadata=pairs, timeout=60)
            return {"response": answer.response}
        except grpc.RpcError as error:
            return {"code": error.code().name, "details": error.details()}


async def call_coap(method, uri, data=""):
    import aiocoap

    context = await aiocoap.Context.create_client_context()
    request = aiocoap.Message(code=getattr(aiocoap, method), uri=uri, payload=data.encode())
    answer = await asyncio.wait_for(context.request(request).response, 60)
    kind = answer.opt.content_format
    result = {
        "code": answer.code.dotted,
        "format": None if kind is None else int(kind),
        "type": answer.mtype.name,
        "payload": answer.payload.decode(),
    }
    await context.shutdown()
    return result


def main():
    verb, *arguments = sys.argv[1:]
    if verb == "grpc":
        result = call_grpc(*arguments)
    else:
        result = asyncio.run(call_coap(*arguments))
    print(json.dumps(result))


main()
