"""The messages of Envoy's external authorization, ``envoy.service.auth.v3.Authorization/Check``. Pure.

Only the fields that the gateway reads and writes are defined here, by their numbers in Envoy's published ``.proto``
files (``external_auth``, ``attribute_context``, ``core/v3/base`` and ``address``, ``type/v3/http_status``,
``google/rpc/status``); unknown fields are skipped, as in any protobuf reader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ostiary_gateway.wire.protobuf import ProtobufError, bytes_field, fields_of, number_field

METHOD = b"/envoy.service.auth.v3.Authorization/Check"

Headers = list[tuple[bytes, bytes]]

# CheckRequest, AttributeContext, AttributeContext.Request, AttributeContext.HttpRequest
_ATTRIBUTES = 1
_SOURCE, _REQUEST, _CONTEXT_EXTENSIONS = 1, 4, 10
_HTTP = 2
_HEADER_MAP = 13
# Peer, Address, SocketAddress: each nested in the previous one
_PEER_ADDRESS, _SOCKET_ADDRESS, _SOCKET_HOST = 1, 1, 2
# An entry of a map; HeaderMap, HeaderValue
_MAP_KEY, _MAP_VALUE = 1, 2
_HEADERS = 1
_KEY, _VALUE, _RAW_VALUE = 1, 2, 3
# CheckResponse, DeniedHttpResponse, OkHttpResponse, HeaderValueOption, HttpStatus, google.rpc.Status
_STATUS, _DENIED, _OK = 1, 2, 3
_DENIED_STATUS, _ANSWER_HEADERS, _DENIED_BODY, _HEADERS_TO_REMOVE = 1, 2, 3, 5
_HEADER, _APPEND_ACTION, _CODE = 1, 3, 1
# A HeaderAppendAction. It must be explicit: by default, a new Envoy appends to the client's header.
OVERWRITE_IF_EXISTS_OR_ADD = 2
PERMISSION_DENIED = 7


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """A request as Envoy describes it. `headers` is an undecoded message, which `header_map` reads.

    `address` is that of the client, as text; empty if it has none. `context` are the extensions that the route in the
    proxy's configuration adds; a client cannot set them.
    """

    headers: bytes
    address: bytes
    context: Mapping[bytes, bytes]


def check_request(data: bytes) -> CheckRequest:
    """Decode a ``CheckRequest``; raises `ProtobufError`, also for a repeated field.

    Readers differ in whether they merge repeated fields or take the last, and Envoy writes each once.
    """
    source: bytes | None = None
    request: bytes | None = None
    context: dict[bytes, bytes] = {}
    for number, value in fields_of(_message(data, _ATTRIBUTES)):
        if number == _CONTEXT_EXTENSIONS:
            entry = _bytes(value)
            key = _message(entry, _MAP_KEY)
            if key in context:
                raise ProtobufError("a key of a map stands twice")
            context[key] = _message(entry, _MAP_VALUE)
        elif number == _SOURCE:
            source = _once(source, value)
        elif number == _REQUEST:
            request = _once(request, value)
    headers = _message(_message(request or b"", _HTTP), _HEADER_MAP)
    address = _message(_message(_message(source or b"", _PEER_ADDRESS), _SOCKET_ADDRESS), _SOCKET_HOST)
    return CheckRequest(headers, address, context)


def header_map(data: bytes) -> Headers:
    """Decode the headers of a ``HeaderMap``, with the client's original values; raises `ProtobufError`."""
    headers: Headers = []
    for number, value in fields_of(data):
        if number == _HEADERS:
            entry = _bytes(value)
            headers.append((_message(entry, _KEY), _message(entry, _RAW_VALUE)))
    return headers


def allowing_response(headers: Sequence[tuple[bytes, bytes]], remove: Sequence[bytes]) -> bytes:
    """Encode: allow the request, with *headers* replacing the client's, and without those in *remove*."""
    response = b"".join([_header_option(name, value) for name, value in headers])
    response += b"".join([bytes_field(_HEADERS_TO_REMOVE, name) for name in remove])
    return bytes_field(_STATUS, b"") + bytes_field(_OK, response)


def denying_response(status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> bytes:
    """Encode: respond to the client with this HTTP *status* and *body*, which is text."""
    response = bytes_field(_DENIED_STATUS, number_field(_CODE, status))
    response += b"".join([_header_option(name, value) for name, value in headers])
    response += bytes_field(_DENIED_BODY, body)
    return bytes_field(_STATUS, number_field(_CODE, PERMISSION_DENIED)) + bytes_field(_DENIED, response)


def _header_option(name: bytes, value: bytes) -> bytes:
    header = bytes_field(_HEADER, bytes_field(_KEY, name) + bytes_field(_VALUE, value))
    return bytes_field(_ANSWER_HEADERS, header + number_field(_APPEND_ACTION, OVERWRITE_IF_EXISTS_OR_ADD))


def _message(data: bytes, wanted: int) -> bytes:
    """Return the field *wanted* of a message; empty if it is absent."""
    content: bytes | None = None
    for number, value in fields_of(data):
        if number == wanted:
            content = _once(content, value)
    return content or b""


def _once(before: bytes | None, value: bytes | int) -> bytes:
    if before is not None:
        raise ProtobufError("a field stands twice")
    return _bytes(value)


def _bytes(value: bytes | int) -> bytes:
    if isinstance(value, int):
        raise ProtobufError("a field has another type than it should")
    return value
