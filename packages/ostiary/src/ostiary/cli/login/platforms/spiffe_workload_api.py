"""A client for one call of the SPIFFE Workload API: fetch a JWT-SVID from the agent over a Unix socket.

The call is gRPC (``SpiffeWorkloadAPI/FetchJWTSVID``) over HTTP/2 by the library h2; its two small messages are encoded
and decoded here. A gRPC library would be a hundred times larger than this module.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import monotonic
from urllib.parse import unquote, urlsplit

from ostiary.cli.login.platforms.proof import LARGEST_TOKEN, no_proof
from ostiary.core.extras import needing
from ostiary.core.redaction import redact
from ostiary.errors import ProviderError

METHOD = "/SpiffeWorkloadAPI/FetchJWTSVID"
SECONDS = 20.0
LARGEST_ANSWER = 4 * LARGEST_TOKEN
_OK, _PERMISSION_DENIED = "0", "7"
_TEXT = 2


@dataclass
class _GrpcReply:
    data: bytearray = field(default_factory=bytearray)
    headers: dict[str, str] = field(default_factory=dict)
    ended: bool = False


def fetch_jwt_svid(endpoint: str, audience: str, *, hint: str, seconds: float = SECONDS) -> str:
    """Return a JWT-SVID for *audience*.

    Raises `CredentialError` if the agent issues none, and `ProviderError` if the agent is unavailable.
    """
    path = _socket_path(endpoint)
    if path is None:
        cause = "it is not the address of a Unix socket"
        raise no_proof(cause, "$SPIFFE_ENDPOINT_SOCKET", "set it to unix:///run/spire/agent.sock, or where yours is")
    failure: str | None = None
    try:
        answer = _call(path, _request(audience), seconds)
    except OSError as error:
        failure = error.strerror or "it did not answer in time"
    if failure is not None:
        raise _unreachable(path, failure)
    status = answer.headers.get("grpc-status", "")
    message = redact(unquote(answer.headers.get("grpc-message", "")))[:300]
    if status == _PERMISSION_DENIED:
        raise no_proof(f"the agent gives this workload no identity: {message}", path, hint)
    if status != _OK:
        raise _unreachable(path, f"it answered with gRPC status {status or 'none'}: {message}")
    token = _first_token(bytes(answer.data[5:]))
    if token is None:
        raise no_proof("the agent's answer holds no JWT-SVID", path, hint)
    return token


def _socket_path(endpoint: str) -> str | None:
    parts = urlsplit(endpoint)
    return parts.path if parts.scheme == "unix" and not parts.netloc and parts.path.startswith("/") else None


def _unreachable(path: str, cause: str) -> ProviderError:
    return ProviderError(
        "the SPIFFE Workload API is unreachable",
        cause=cause,
        where=path,
        hint="check that the agent runs, and that its socket is mounted here",
        code="platform-unreachable",
    )


# --- HTTP/2 ---


def _call(path: str, message: bytes, seconds: float) -> _GrpcReply:
    """Send one message and read the whole response. Raises `OSError`."""
    with needing("spiffe", purpose="the SPIFFE Workload API"):
        from h2.config import H2Configuration
        from h2.connection import H2Connection
        from h2.exceptions import ProtocolError

    deadline = monotonic() + seconds
    http = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
    headers = [(":method", "POST"), (":scheme", "http"), (":path", METHOD), (":authority", "localhost")]
    # Agents reject calls without the last header, which prevents requests forged through another process (SSRF).
    headers += [("content-type", "application/grpc"), ("te", "trailers"), ("workload.spiffe.io", "true")]
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(seconds)
        connection.connect(path)
        http.initiate_connection()
        stream = http.get_next_available_stream_id()
        http.send_headers(stream, headers)
        http.send_data(stream, b"\0" + len(message).to_bytes(4, "big") + message, end_stream=True)
        answer = _GrpcReply()
        while not answer.ended:
            connection.sendall(http.data_to_send())
            remaining = deadline - monotonic()
            if remaining <= 0:
                # Also limits an agent that keeps sending frames without completing the response.
                raise OSError(0, "it did not answer in time")
            connection.settimeout(remaining)
            received = connection.recv(65536)
            if not received:
                raise OSError(0, "it ended the connection")
            try:
                events = http.receive_data(received)
            except ProtocolError:
                raise OSError(0, "it does not speak HTTP/2") from None
            for event in events:
                _take(event, answer, http)
    return answer


def _take(event: object, answer: _GrpcReply, http: object) -> None:
    from h2 import events
    from h2.connection import H2Connection

    assert isinstance(http, H2Connection)
    match event:
        case events.ResponseReceived() | events.TrailersReceived():
            answer.headers |= {str(name): str(value) for name, value in event.headers or ()}
        case events.DataReceived():
            answer.data += event.data or b""
            if len(answer.data) > LARGEST_ANSWER:
                raise OSError(0, "its answer is too large")
            http.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id or 0)
        case events.StreamEnded():
            answer.ended = True
        case events.StreamReset() | events.ConnectionTerminated():
            raise OSError(0, "it ended the call")


# --- messages ---


def _request(audience: str) -> bytes:
    """Encode a ``JWTSVIDRequest``: a list of audiences, field 1."""
    text = audience.encode()
    return b"\x0a" + _varint(len(text)) + text


def _first_token(message: bytes) -> str | None:
    """Return field 2, the token, of the first ``JWTSVID`` (field 1) of a ``JWTSVIDResponse``."""
    try:
        svid = next((content for number, content in _fields(message) if number == 1), b"")
        token = next((content for number, content in _fields(svid) if number == 2), b"")
        return token.decode("ascii") or None
    except (ValueError, IndexError):
        return None


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the length-delimited fields of a message. Fields of other types are skipped."""
    position = 0
    while position < len(message):
        key, position = _read_varint(message, position)
        number, kind = key >> 3, key & 7
        if kind == 0:
            _, position = _read_varint(message, position)
        elif kind == _TEXT:
            length, position = _read_varint(message, position)
            if position + length > len(message):
                raise ValueError("cut")
            yield number, message[position : position + length]
            position += length
        else:
            position += {1: 8, 5: 4}[kind] if kind in (1, 5) else len(message)


def _read_varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise ValueError("too long")


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])
