"""A request that Envoy carries, as the engine sees it; and the engine's answer, as a ``CheckResponse``.

Made by the handler for each call.
"""

from __future__ import annotations

from functools import lru_cache

from ostiary.gateway.doors.check.call import Call
from ostiary.gateway.doors.check.framing import INTERNAL
from ostiary.gateway.doors.forward.carried import CarriedExchange
from ostiary.gateway.http1.request_head import RequestHead
from ostiary.wire.envoy_check import allowing_response, denying_response

# For the gateway only. The printed configuration takes out all that begin with ``impersonate``.
REMOVED = (b"authorization", b"impersonate-user", b"impersonate-group", b"impersonate-uid")
# What the names of headers with cookies and JWTs begin with.
_OWN_HEADERS = b"X-Ostiary-"
_LONGEST_KEPT = 4096


class CheckExchange(CarriedExchange):
    """The request that a call is about, and the answer to it."""

    __slots__ = ("_call",)

    def __init__(self, call: Call, request: RequestHead, address: str) -> None:
        super().__init__(call.connection, request, address)
        self._call = call

    @property
    def gone(self) -> bool:
        return self._call.ended or self.connection.transport.is_closing()

    def allow(self, identity: bytes) -> None:
        self._end(_remembered_message(identity) if may_be_kept(identity) else allowing_message(identity))

    def respond(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        self._end(denying_response(status, [(name.lower(), value) for name, value in headers], body))

    def abort(self) -> None:
        self.responder = None
        self._call.fail(INTERNAL, b"the gateway failed")

    def _end(self, message: bytes) -> None:
        self.head_sent = self.ended = True
        self.responder = None
        self._call.answer(message)


def allowing_message(identity: bytes) -> bytes:
    """The answer that lets a request pass with these header lines."""
    headers = [line.partition(b": ") for line in identity.split(b"\r\n")[:-1]]
    return allowing_response([(name.lower(), value) for name, _, value in headers], REMOVED)


def may_be_kept(identity: bytes) -> bool:
    """Whether the message may stay in memory: cookies and JWTs are for one request alone."""
    return _OWN_HEADERS not in identity and len(identity) <= _LONGEST_KEPT


# Most users ask again soon.
_remembered_message = lru_cache(maxsize=1024)(allowing_message)
