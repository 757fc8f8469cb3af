"""Passes an upstream's answer to the client piece by piece, with framing written anew.

Made by `upstream.proxied` for the answers that do not come whole in one read. What comes with one read goes on as one
write, and as one chunk, in however many pieces it came.
"""

from __future__ import annotations

from ostiary_gateway.http1.exchange import STATUS_LINES, Exchange, status_line
from ostiary_gateway.http1.headers import Headers
from ostiary_gateway.http1.response import AnswerHeaders, Framing
from ostiary_gateway.proxy.recorder import Recorder

# Server-sent events: an answer without an end.
_EVENTS = b"text/event-stream"
# A 401 that may be a program's behind the upstream is held back up to here, to see whose it is.
WITHHELD_BYTES = 16 * 1024


class RelayedAnswer:
    """One answer on its way. While it is `withheld`, nothing of it is written."""

    __slots__ = ("_chunked", "_exchange", "_names", "_out", "_pieces", "_recorder", "withheld")

    def __init__(self, exchange: Exchange, names: AnswerHeaders, recorder: Recorder | None, *, withhold: bool) -> None:
        self._exchange = exchange
        self._names = names
        self._recorder = recorder
        # The parts of the body that came with the read under way.
        self._pieces: list[bytes] | None = None
        self._chunked = False
        # The body of an answer that is held back; None once it goes on.
        self.withheld: bytes | None = b"" if withhold else None
        # What waits to be written.
        self._out: list[bytes] = []

    def begin(self, status: int, headers: Headers, framing: Framing, audit_line: bytes) -> None:
        """The head, with what must be said about the end of the answer."""
        exchange = self._exchange
        # The usual reason phrase: the upstream's was not checked for characters that a line must not hold.
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
        """A part of the body."""
        if self._pieces is None:
            self._pieces = [data]
        else:
            self._pieces.append(data)

    def flush(self) -> None:
        """Write what came with one read."""
        if self._pieces is not None:
            self._gather(self._pieces)
        if self._out and self.withheld is None:
            out, self._out = self._out, []
            self._exchange.write(b"".join(out))

    def withheld_to_the_end(self) -> bytes | None:
        """The whole body of an answer that is held back still, now that no more of it comes."""
        if self._pieces is not None:
            self._gather(self._pieces)
        return self.withheld

    def end(self, trailers: Headers) -> None:
        """Write what is left. An answer that was held back goes on, too."""
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
