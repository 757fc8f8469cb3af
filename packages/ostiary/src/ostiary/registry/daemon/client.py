"""Asks the daemon, from the programs that start at every pull.

    connect -> is it ours? -> question -> "asked" -> the finished output
       |            |                        |
       |            |                        +-> cut off: the daemon was ended, and the program does it itself
       |            +-> no: an error. Nobody else may answer in the daemon's place
       +-> nobody there: the program does it itself

A pull waits for every module that is imported here, so there is `_socket`, of which `socket` is the comfortable form
(with `enum` and `selectors`), and nothing else that the bare interpreter does not have.
"""

import os
import sys
from time import monotonic

from ostiary.registry.daemon import protocol

# Until the daemon says that it was asked, which it does before it does anything else.
ATTENTION_SECONDS = 2.0
# For a provider that runs to its limit of a minute.
ANSWER_SECONDS = 70.0
_NOBODY = (2, 20, 111)  # ENOENT, ENOTDIR, ECONNREFUSED
_PERMISSION = (1, 13)  # EPERM, EACCES


class NoAnswer(Exception):
    """There is no answer. *reason*: what to tell about it; empty if there simply is no daemon."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class ForeignSocket(Exception):
    """The socket belongs to somebody else."""


class Overdue(Exception):
    """The daemon was asked, and has not answered in time."""


def ask(path: str, verb: bytes, *texts: bytes, seconds: float = ANSWER_SECONDS) -> tuple[int, bytes, bytes]:
    """Exit code, stdout and stderr. Raises `NoAnswer`, `ForeignSocket` or `Overdue`."""
    import _socket

    if not hasattr(_socket, "SO_PEERCRED"):
        raise NoAnswer
    deadline = monotonic() + ATTENTION_SECONDS
    with_daemon = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
    try:
        with_daemon.settimeout(ATTENTION_SECONDS)
        _connect(with_daemon, path)
        # The kernel says who listens; who may write to the folder of the socket could have put another one there.
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
    """Until the other side closes, or there are *until* bytes."""
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
