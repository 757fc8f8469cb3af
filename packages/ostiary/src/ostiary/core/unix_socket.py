"""Unix sockets that only one user of this machine can reach, and who is at the other end of them.

Used by what serves secrets on one: ``ostiary connect`` and the daemon of the registry door. The kernel says
which user connects; the mode of the socket alone would not keep out whoever can write to its folder.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import MutableMapping

PROBE_SECONDS = 5.0
# The first descriptor that systemd passes: sd_listen_fds(3).
FIRST_PASSED = 3
_PEER = struct.Struct("3i")


def peer_user(connection: socket.socket) -> int:
    """The user of the process at the other end, as the kernel knows it."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    uid: int = _PEER.unpack(credentials)[1]
    return uid


def _remove_stale(path: str) -> None:
    """Remove the socket of a process that has ended; `OSError` if one still listens there, or if it is no socket."""
    if os.path.lexists(path) and not stat.S_ISSOCK(os.lstat(path).st_mode):
        raise OSError("there is a file that is no socket")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(PROBE_SECONDS)
        try:
            probe.connect(path)
        except FileNotFoundError:
            return
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise OSError("another process listens there")


def listen_privately(path: str, *, backlog: int) -> socket.socket:
    """A socket at *path* that only this user (and root) can connect to; raises `OSError`.

    Its folder is made if it is missing. It must be one where nobody else can put another socket in our place.
    """
    folder = os.path.dirname(path) or "."
    os.makedirs(folder, mode=0o700, exist_ok=True)
    status = os.stat(folder)
    others_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX
    if others_write or status.st_uid not in (0, os.geteuid()):
        raise OSError(f"others may write to its folder {folder}")
    _remove_stale(path)
    return bind_privately(path, backlog=backlog)


def bind_privately(path: str, *, backlog: int) -> socket.socket:
    """A listening socket at *path*, where nothing is and nobody else can put anything; raises `OSError`."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Nobody else may connect in the moment before a mode could be set.
    before = os.umask(0o177)
    try:
        listener.bind(path)
        listener.listen(backlog)
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(before)
    return listener


def passed_socket(environment: MutableMapping[str, str] = os.environ) -> socket.socket | None:
    """The socket that systemd has opened for us; None if it has passed none. Raises `OSError` for another kind.

    Taken out of the *environment*: no process that we start is meant.
    """
    meant_for, count = environment.pop("LISTEN_PID", ""), environment.pop("LISTEN_FDS", "")
    environment.pop("LISTEN_FDNAMES", None)
    if meant_for != str(os.getpid()) or not count:
        return None
    if count != "1":
        raise OSError(f"systemd has passed {count} sockets, and one is wanted")
    listener = socket.socket(fileno=FIRST_PASSED)
    os.set_inheritable(FIRST_PASSED, False)
    is_listening = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if listener.family is not socket.AF_UNIX or listener.type is not socket.SOCK_STREAM or not is_listening:
        raise OSError("what systemd has passed is no listening Unix socket (ListenStream=)")
    return listener
