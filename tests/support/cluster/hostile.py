"""Upstreams that break the rules: they reset, stall, lie about lengths, or say what nobody asked for.

A path names what happens: ``/reset-after-head`` does that. Tests can `script` paths of their own. Any other path gets
an honest answer, so that a test can see whether the next request is served, and over which connection.
"""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import trustme

from tests.support.http_server import server_context

Step = Callable[["Conversation"], None]


class Conversation:
    """One connection, as a step sees it."""

    def __init__(self, connection: socket.socket, upstream: Hostile) -> None:
        self.connection, self.upstream = connection, upstream
        self.over = False


# --- steps ---


def send(data: bytes) -> Step:
    return lambda conversation: conversation.connection.sendall(data)


def close(conversation: Conversation) -> None:
    """The end, in good order: TLS says so too."""
    if isinstance(conversation.connection, ssl.SSLSocket):
        conversation.connection.settimeout(1)
        with suppress(OSError):
            conversation.connection.unwrap()
    conversation.over = True


def reset(conversation: Conversation) -> None:
    """The end by RST: what was sent and not yet read may be lost, as when a machine dies."""
    linger_for_no_time = struct.pack("ii", 1, 0)
    conversation.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_for_no_time)
    conversation.over = True


def stall(conversation: Conversation) -> None:
    """Do nothing until the test says `Hostile.release`, or the other side gives up."""
    upstream = conversation.upstream
    upstream.stalled.set()
    while not upstream.released.is_set() and not conversation.over:
        conversation.connection.settimeout(0.02)
        try:
            conversation.over = not conversation.connection.recv(65536)
        except TimeoutError:
            continue
        except OSError:
            conversation.over = True
    conversation.connection.settimeout(None)
    if conversation.over:
        upstream.abandoned.set()


def endlessly(data: bytes) -> Step:
    """Send *data* again and again until the other side has had enough."""

    def run(conversation: Conversation) -> None:
        try:
            while True:
                conversation.connection.sendall(data)
        except OSError:
            conversation.upstream.abandoned.set()
            conversation.over = True

    return run


# --- what can be asked for ---

OK = b"HTTP/1.1 200 OK\r\n"
HONEST = OK + b"Content-Length: 7\r\n\r\nhonest\n"
SMUGGLED = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nsmuggled\n"
"""An answer of the upstream's own making; no client may ever see it as the answer to a request."""

BEHAVIOURS: Mapping[str, tuple[Step, ...]] = {
    "close-without-answer": (close,),
    "reset-without-answer": (reset,),
    "reset-in-head": (send(OK + b"Content-Le"), reset),
    "reset-after-head": (send(OK + b"Content-Length: 100\r\n\r\n"), reset),
    "reset-in-body": (send(OK + b"Content-Length: 100\r\n\r\nhalf"), reset),
    "stall-without-answer": (stall, send(HONEST)),
    "stall-in-head": (send(OK + b"Content-Le"), stall, send(b"ngth: 7\r\n\r\nhonest\n")),
    "stall-in-body": (send(OK + b"Content-Length: 7\r\n\r\nhon"), stall, send(b"est\n")),
    "body-too-short": (send(OK + b"Content-Length: 100\r\n\r\nhonest\n"), close),
    "body-too-long": (send(HONEST + SMUGGLED),),
    "body-after-no-content": (send(b"HTTP/1.1 204 No Content\r\n\r\n" + SMUGGLED),),
    "length-of-no-number": (send(OK + b"Content-Length: +7\r\n\r\nhonest\n"),),
    "two-lengths": (send(OK + b"Content-Length: 7\r\nContent-Length: 0\r\n\r\nhonest\n"),),
    "length-and-chunked": (send(OK + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED),),
    "unknown-coding": (send(OK + b"Transfer-Encoding: cow\r\n\r\nhonest\n"), close),
    "chunks-without-end": (send(OK + b"Transfer-Encoding: chunked\r\n\r\n4\r\nhone\r\n"), close),
    "chunk-of-no-size": (send(OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nhonest\n\r\n0\r\n\r\n"),),
    "garbage": (send(b"\x16\x03\x01 SSH-2.0 <html>\r\n\r\n\x00\xff"), close),
    "not-http1": (send(b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n"),),
    "status-of-no-number": (send(b"HTTP/1.1 abc OK\r\nContent-Length: 0\r\n\r\n"),),
    "header-without-colon": (send(OK + b"Content-Length: 0\r\nnonsense\r\n\r\n"),),
    "header-with-nul": (send(OK + b"Content-Length: 0\r\nX-Nul: a\x00b\r\n\r\n"),),
    "header-folded": (send(OK + b"X-Folded: a\r\n b\r\nContent-Length: 0\r\n\r\n"),),
    "header-huge": (send(OK + b"X-Huge: " + b"a" * (1 << 20) + b"\r\nContent-Length: 0\r\n\r\n"),),
    "headers-without-end": (send(OK), endlessly(b"X-More: and more\r\n" * 64)),
    "interim-without-end": (endlessly(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 64),),
    "switch-unasked": (
        send(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n" + SMUGGLED),
    ),
    "redirect": (send(b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n"),),
    "body-without-end": (
        send(OK + b"Transfer-Encoding: chunked\r\n\r\n"),
        endlessly(b"1000\r\n" + b"a" * 4096 + b"\r\n"),
    ),
    "close-after-promise": (send(HONEST), close),
}
"""By name, and so by path. ``close-after-promise`` offers to keep the connection and closes it at once."""


@dataclass(frozen=True, slots=True)
class Heard:
    """The head of one request, and the number of the connection it came on."""

    connection: int
    head: bytes

    @property
    def target(self) -> bytes:
        return self.head.split(b" ", 2)[1]


class Hostile:
    """``with Hostile(ca) as upstream``: TLS with *ca*, plain HTTP without. One thread per connection."""

    def __init__(self, ca: trustme.CA | None = None) -> None:
        self.requests: list[Heard] = []
        self.connections = 0
        self.stalled, self.released, self.abandoned = threading.Event(), threading.Event(), threading.Event()
        """A stall was reached; it may go on; the other side gave up first."""
        self._scripts: dict[str, tuple[Step, ...]] = {f"/{name}": steps for name, steps in BEHAVIOURS.items()}
        self._tls = None if ca is None else server_context(ca, "localhost", "127.0.0.1")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self._open: set[socket.socket] = set()
        self.port: int = self._listener.getsockname()[1]
        self.url = f"{'http' if ca is None else 'https'}://localhost:{self.port}"

    def script(self, path: str, *steps: Step) -> None:
        self._scripts[path] = steps

    def release(self) -> None:
        self.released.set()

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.released.set()
        for each in (self._listener, *self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        self._listener.close()

    def _start(self, function: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=function, args=args)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._start(self._converse, connection, self.connections)

    def _converse(self, connection: socket.socket, number: int) -> None:
        with suppress(OSError), connection:
            # A connection that is being torn down must not keep the test.
            self._open.add(connection)
            wrapped = self._tls.wrap_socket(connection, server_side=True) if self._tls else connection
            self._open.add(wrapped)
            with wrapped:
                conversation = Conversation(wrapped, self)
                while not conversation.over and (head := _read_head(wrapped)):
                    heard = Heard(number, head)
                    self.requests.append(heard)
                    self._play(conversation, self._scripts.get(heard.target.decode("latin-1"), (send(HONEST),)))

    def _play(self, conversation: Conversation, steps: Iterable[Step]) -> None:
        for step in steps:
            if not conversation.over:
                step(conversation)


def _read_head(connection: socket.socket) -> bytes:
    """Byte by byte, so that what follows is not taken with it; empty when the other side has closed."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        if not byte:
            return b""
        head += byte
    return head
