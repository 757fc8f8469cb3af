"""Unix sockets that only one local user can connect to, and the peer's user.

Used to serve secrets, by ``ostiary connect`` and the registry daemon. The kernel reports which user connects; the
socket's mode alone would not exclude users who can write to its folder.
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
    """Return the user of the peer process, as reported by the kernel."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    uid: int = _PEER.unpack(credentials)[1]
    return uid


def _remove_stale(path: str) -> None:
    """Remove the socket of a process that has ended.

    Raises `OSError` if a process listens there, or if it is no socket.
    """
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
    """Return a listening socket at *path* that only this user (and root) can connect to; raises `OSError`.

    Its folder is created if it is missing. It must be one where no other user can replace the socket.
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
    """Return a listening socket at *path*, which must be free and not writable for other users; raises `OSError`."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # No other user may connect before a mode could be set.
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
    """Return the socket that systemd has opened for us; None if it passed none. Raises `OSError` for another kind.

    The variables are removed from *environment*, because they are not meant for processes that we start.
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
