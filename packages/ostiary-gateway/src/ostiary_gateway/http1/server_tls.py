"""TLS of the gateway's listener. Responds to plain HTTP on a TLS port with a helpful 400.

The first bytes of a connection are checked once, before the handshake, so that requests cost nothing more. Sessions are
resumed only if client certificates do not matter: see `ostiary.keys.openssl`.
"""

from __future__ import annotations

import re
import ssl

from ostiary_gateway.http1.accept import CountedHandshake, CountingContext, use_directly

_BODY = b"this port speaks HTTPS: use https:// in the address\n"
PLAIN_HTTP_ANSWER = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(_BODY), _BODY)
)
# A method and a target. A TLS record begins with the byte 22, which is in no method.
_REQUEST = re.compile(rb"[A-Z][A-Z-]{2,19} [/*a-zA-Z\[]")


class _Handshake(CountedHandshake):
    """The TLS of one connection. `incoming` and `outgoing` are the buffers of the event loop."""

    incoming: ssl.MemoryBIO
    outgoing: ssl.MemoryBIO
    _has_looked = False
    _is_plain = False

    def do_handshake(self) -> None:
        if self._is_plain:
            # More data of the plain request. The event loop closes the connection.
            raise ssl.SSLError("a plain HTTP request came to a TLS port")
        if not self._has_looked:
            if not self.incoming.pending:
                # Called when the connection is made: the client speaks first, and OpenSSL need not report that.
                raise ssl.SSLWantReadError
            self._has_looked = True
            data = self.incoming.read()
            if _REQUEST.match(data):
                self._is_plain = True
                self.outgoing.write(PLAIN_HTTP_ANSWER)
                # The response is sent as part of the handshake, which then waits for the client: it reads the response
                # and disconnects, or the handshake times out.
                raise ssl.SSLWantReadError
            self.incoming.write(data)
        super().do_handshake()

    def check_resumed(self) -> None:
        # Tickets are disabled if clients present certificates. TLS 1.2 also resumes by session id, which not every
        # interpreter can disable.
        if self.getpeercert(binary_form=True) is not None:
            raise ssl.SSLError("a session with a client certificate was resumed, which nobody has checked again")


class ListenerContext(CountingContext):
    """The TLS context of a listener. `certificate` (DER) is its own, which Python does not expose on a connection."""

    sslobject_class = _Handshake
    certificate: bytes | None = None

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        wrapped = super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        assert isinstance(wrapped, _Handshake)
        wrapped.incoming, wrapped.outgoing = incoming, outgoing
        use_directly(wrapped)
        return wrapped
