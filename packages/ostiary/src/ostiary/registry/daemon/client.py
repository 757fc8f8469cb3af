"""Client of the daemon, for the programs that start on every pull.

    connect -> is it ours? -> request -> "asked" -> the finished output
       |            |                        |
       |            |                        +-> closed early: the daemon was stopped; the program does it itself
       |            +-> no: an error. No other user may respond instead of the daemon
       +-> not running: the program does it itself

Every import delays a pull, so this uses `_socket` instead of `socket` (which imports `enum` and `selectors`), and
otherwise only what the bare interpreter has loaded.
"""

import os
import sys
from time import monotonic

from ostiary.registry.daemon import protocol

# Until the daemon acknowledges the request, which it does before anything else.
ATTENTION_SECONDS = 2.0
# Long enough for a provider that runs to its limit of a minute.
ANSWER_SECONDS = 70.0
_NOBODY = (2, 20, 111)  # ENOENT, ENOTDIR, ECONNREFUSED
_PERMISSION = (1, 13)  # EPERM, EACCES


class NoAnswer(Exception):
    """There is no response. *reason* says why; empty if there is no daemon."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class ForeignSocket(Exception):
    """The socket belongs to another user."""


class Overdue(Exception):
    """The daemon received the request and has not responded in time."""


def ask(path: str, verb: bytes, *texts: bytes, seconds: float = ANSWER_SECONDS) -> tuple[int, bytes, bytes]:
    """Send a request and return exit code, stdout and stderr. Raises `NoAnswer`, `ForeignSocket` or `Overdue`."""
    import _socket

    if not hasattr(_socket, "SO_PEERCRED"):
        raise NoAnswer
    deadline = monotonic() + ATTENTION_SECONDS
    with_daemon = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
    try:
        with_daemon.settimeout(ATTENTION_SECONDS)
        _connect(with_daemon, path)
        # The kernel reports who listens: a user who can write to the socket's folder could have put another one there.
        peer = with_daemon.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
        owner = int.from_bytes(peer[4:8], sys.byteorder)
        if owner not in (0, os.geteuid()):
            raise ForeignSocket(f"the process that listens there belongs to user {owner}")
        with_daemon.sendall(protocol.question(verb, *texts))
        start = _receive(with_daemon, b"", deadline, until=len(protocol.ASKED))
        if not start.startswith(protocol.ASKED):
            raise NoAnswer(_refusal(start))
        rest = _receive(with_daemon, start[len(protocol.ASKED) :], monotonic() + seconds)
    except TimeoutError:
        raise NoAnswer("it does not respond") from None
    except OSError as error:
        raise NoAnswer(f"the connection broke: {error.strerror}") from None
    finally:
        with_daemon.close()
    answer = protocol.read_answer(rest)
    if answer is None:
        raise NoAnswer("it ended before it had answered")
    return answer


def _connect(with_daemon, path: str) -> None:  # type: ignore[no-untyped-def]  # naming the type would import it
    try:
        with_daemon.connect(path)
    except TimeoutError:
        raise
    except OSError as error:
        if error.errno in _NOBODY:
            raise NoAnswer from None
        if error.errno in _PERMISSION:
            raise ForeignSocket("this user may not connect to it") from None
        raise NoAnswer(error.strerror or str(error)) from None


def _receive(with_daemon, data: bytes, deadline: float, until: int = 0) -> bytes:  # type: ignore[no-untyped-def]
    """Read until the peer closes the connection, or there are *until* bytes."""
    while not until or len(data) < until:
        left = deadline - monotonic()
        try:
            if left <= 0:
                raise TimeoutError
            with_daemon.settimeout(left)
            part = with_daemon.recv(1 << 16)
        except TimeoutError:
            if until:
                raise
            raise Overdue from None
        if not part:
            return data
        data += part
        if len(data) > protocol.LARGEST_ANSWER:
            raise NoAnswer("its answer is too large")
    return data


def _refusal(start: bytes) -> str:
    head, _, reason = start.partition(b"\n")
    if head.startswith(protocol.MAGIC + b"cannot "):
        return "it cannot answer: " + reason.decode("utf-8", "replace")
    return "it speaks another version" if head else "it ended before it had answered"
