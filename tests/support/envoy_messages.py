"""Envoy's messages of external authorization, by the real runtime of protobuf: what our own reader is tried against.

The subset that Envoy 1.40 really sends, by the names and numbers of its published ``.proto`` files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]

METHOD = "/envoy.service.auth.v3.Authorization/Check"
_FIELD = descriptor_pb2.FieldDescriptorProto
_TEXT, _BYTES, _INT64, _INT32, _BOOL = (
    _FIELD.TYPE_STRING,
    _FIELD.TYPE_BYTES,
    _FIELD.TYPE_INT64,
    _FIELD.TYPE_INT32,
    _FIELD.TYPE_BOOL,
)
# name: (number, type or message, whether it is repeated)
Field = tuple[int, "int | str", bool]
_MESSAGES: Mapping[str, Mapping[str, Field]] = {
    "SocketAddress": {"protocol": (1, _INT32, False), "address": (2, _TEXT, False), "port_value": (3, _INT32, False)},
    "Pipe": {"path": (1, _TEXT, False)},
    "Address": {"socket_address": (1, "SocketAddress", False), "pipe": (2, "Pipe", False)},
    "Peer": {"address": (1, "Address", False), "service": (2, _TEXT, False), "principal": (4, _TEXT, False)},
    "HeaderValue": {"key": (1, _TEXT, False), "value": (2, _TEXT, False), "raw_value": (3, _BYTES, False)},
    "HeaderMap": {"headers": (1, "HeaderValue", True)},
    "Entry": {"key": (1, _TEXT, False), "value": (2, _TEXT, False)},
    "HttpRequest": {
        "id": (1, _TEXT, False),
        "method": (2, _TEXT, False),
        "headers": (3, "Entry", True),
        "header_map": (13, "HeaderMap", False),
        "path": (4, _TEXT, False),
        "host": (5, _TEXT, False),
        "scheme": (6, _TEXT, False),
        "size": (9, _INT64, False),
        "protocol": (10, _TEXT, False),
        "body": (11, _TEXT, False),
    },
    "Timestamp": {"seconds": (1, _INT64, False), "nanos": (2, _INT32, False)},
    "Request": {"time": (1, "Timestamp", False), "http": (2, "HttpRequest", False)},
    "Metadata": {},
    "AttributeContext": {
        "source": (1, "Peer", False),
        "destination": (2, "Peer", False),
        "request": (4, "Request", False),
        "context_extensions": (10, "Entry", True),
        "metadata_context": (11, "Metadata", False),
        "route_metadata_context": (13, "Metadata", False),
    },
    "CheckRequest": {"attributes": (1, "AttributeContext", False)},
    "BoolValue": {"value": (1, _BOOL, False)},
    "HeaderValueOption": {
        "header": (1, "HeaderValue", False),
        "append": (2, "BoolValue", False),
        "append_action": (3, _INT32, False),
        "keep_empty_value": (4, _BOOL, False),
    },
    "HttpStatus": {"code": (1, _INT32, False)},
    "DeniedHttpResponse": {
        "status": (1, "HttpStatus", False),
        "headers": (2, "HeaderValueOption", True),
        "body": (3, _TEXT, False),
    },
    "OkHttpResponse": {"headers": (2, "HeaderValueOption", True), "headers_to_remove": (5, _TEXT, True)},
    "Status": {"code": (1, _INT32, False), "message": (2, _TEXT, False)},
    "CheckResponse": {
        "status": (1, "Status", False),
        "denied_response": (2, "DeniedHttpResponse", False),
        "ok_response": (3, "OkHttpResponse", False),
    },
}


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="check.proto", package="check", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind, repeated) in fields.items():
            label = _FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL
            if isinstance(kind, str):
                message.field.add(
                    name=field, number=number, label=label, type=_FIELD.TYPE_MESSAGE, type_name=f".check.{kind}"
                )
            else:
                message.field.add(name=field, number=number, label=label, type=kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"check.{name}")) for name in _MESSAGES}


_CLASSES = _classes()
CheckRequest, CheckResponse, HeaderMap = (_CLASSES[name] for name in ("CheckRequest", "CheckResponse", "HeaderMap"))


def check_request(
    headers: Sequence[tuple[str, bytes]],
    *,
    context: Mapping[str, str] | None = None,
    address: str = "192.0.2.7",
    port: int = 40000,
    number: int = 1,
) -> bytes:
    """As Envoy writes it, with ``encode_raw_headers``; *headers* with the pseudo-headers."""
    request = CheckRequest()
    attributes = request.attributes
    attributes.source.address.socket_address.address = address
    attributes.source.address.socket_address.port_value = port
    attributes.destination.address.socket_address.address = "127.0.0.1"
    attributes.destination.address.socket_address.port_value = 8080
    attributes.request.time.seconds, attributes.request.time.nanos = 1_700_000_000, number
    http = attributes.request.http
    values = {name: value.decode("utf-8", "replace") for name, value in headers}
    http.id, http.scheme, http.protocol = str(number), "http", "HTTP/1.1"
    http.method, http.path, http.host = (values.get(name, "") for name in (":method", ":path", ":authority"))
    for name, value in headers:
        http.header_map.headers.add(key=name, raw_value=value)
    for key, text in (context or {}).items():
        attributes.context_extensions.add(key=key, value=text)
    attributes.metadata_context.SetInParent()
    attributes.route_metadata_context.SetInParent()
    data: bytes = request.SerializeToString()
    return data


def check_response(data: bytes) -> Any:
    """The answer, read by the runtime of protobuf."""
    response = CheckResponse()
    response.ParseFromString(data)
    return response
