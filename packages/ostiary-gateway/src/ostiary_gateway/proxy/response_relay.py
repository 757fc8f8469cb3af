"""Relay an upstream's response to the client in parts, with new framing.

Only for responses that are not complete after one read. The data of one read is sent in one write and as one chunk.
"""

from __future__ import annotations

from ostiary_gateway.http1.exchange import STATUS_LINES, Exchange, status_line
from ostiary_gateway.http1.headers import Headers
from ostiary_gateway.http1.response import AnswerHeaders, Framing
from ostiary_gateway.proxy.recorder import Recorder

# Server-sent events: a response without an end.
_EVENTS = b"text/event-stream"
# Maximum size of a 401 that is withheld until it is known whether a workload behind the upstream has sent it.
WITHHELD_BYTES = 16 * 1024


class RelayedAnswer:
    """A response in flight. While it is `withheld`, nothing of it is written."""

    __slots__ = ("_chunked", "_exchange", "_names", "_out", "_pieces", "_recorder", "withheld")

    def __init__(self, exchange: Exchange, names: AnswerHeaders, recorder: Recorder | None, *, withhold: bool) -> None:
        self._exchange = exchange
        self._names = names
        self._recorder = recorder
        # The body parts of the current read.
        self._pieces: list[bytes] | None = None
        self._chunked = False
        # The body of a withheld response; None once it is sent.
        self.withheld: bytes | None = b"" if withhold else None
        # Data to be written.
        self._out: list[bytes] = []

    def begin(self, status: int, headers: Headers, framing: Framing, audit_line: bytes) -> None:
        """Prepare the head, with the framing of the new response."""
        exchange = self._exchange
        # Use the standard reason phrase: the upstream's was not checked for invalid characters.
        out = self._out
        out.append(STATUS_LINES.get(status) or status_line(status))
        out += self._names.lines(headers)
        kind = framing.kind
        if kind == Framing.LENGTH:
            out.append(b"Content-Length: %d\r\n" % framing.length)
        elif kind != Framing.NONE:
            if exchange.request.http10:
                exchange.close_after = True
            else:
                self._chunked = True
                out.append(b"Transfer-Encoding: chunked\r\n")
        elif exchange.request.method == b"HEAD":
            out += _announced_length(headers)
        out += (audit_line, b"\r\n", exchange.connection_header(), b"\r\n")

    def add(self, data: bytes) -> None:
        """Add a part of the body."""
        if self._pieces is None:
            self._pieces = [data]
        else:
            self._pieces.append(data)

    def flush(self) -> None:
        """Write the data of one read."""
        if self._pieces is not None:
            self._gather(self._pieces)
        if self._out and self.withheld is None:
            out, self._out = self._out, []
            self._exchange.write(b"".join(out))

    def withheld_to_the_end(self) -> bytes | None:
        """Return the complete body of a response that is still withheld."""
        if self._pieces is not None:
            self._gather(self._pieces)
        return self.withheld

    def end(self, trailers: Headers) -> None:
        """Write the rest. Also sends a response that was withheld."""
        if self._pieces is not None:
            self._gather(self._pieces)
        if self._chunked:
            self._out.append(b"0\r\n" + b"".join(self._names.lines(trailers)) + b"\r\n" if trailers else b"0\r\n\r\n")
        if self._out:
            self._exchange.write(b"".join(self._out))

    def _gather(self, pieces: list[bytes]) -> None:
        self._pieces = None
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if self.withheld is not None:
            self.withheld += data
            if len(self.withheld) > WITHHELD_BYTES:
                self.withheld = None
        if self._recorder is not None:
            self._recorder.response(data)
        if self._chunked:
            self._out += (b"%x\r\n" % len(data), data, b"\r\n")
        else:
            self._out.append(data)


def is_event_stream(headers: Headers) -> bool:
    return any(name.lower() == b"content-type" and value.lower().startswith(_EVENTS) for name, value in headers)


def _announced_length(headers: Headers) -> list[bytes]:
    return [b"Content-Length: " + value + b"\r\n" for name, value in headers if name.lower() == b"content-length"][:1]
