"""Network namespaces of the test's own, and lines between them that delay packets, lose some, or carry none.

    with Network() as network:                              # this thread, and what it starts, is in a namespace
        database = network.add_host()                       # another namespace, with an address of its own
        line = network.connect(network.home, database)
        line.set(delay=0.1, loss=0.05)
        subprocess.Popen(database.command("redis-server", "--bind", database.address()))
        line.set(cut=True)

What ``tc netem`` does in the kernel, done by a process between two TUN devices: not every kernel has netem. TCP on
both ends is the kernel's own, so lost packets are sent again and connections hang as they do on a real network.
"""

from __future__ import annotations

import ctypes
import fcntl
import itertools
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from tests.support.tiers import missing

SECONDS = 30.0
_TUN = Path("/dev/net/tun")
_PROJECT = Path(__file__).parents[2]
_CLONE_NEWNET = 0x40000000
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
T = TypeVar("T")


@dataclass(frozen=True)
class Host:
    """A namespace. Its address differs from plane to plane, so that two lines can lead to one host."""

    number: int
    _namespace: int = field(repr=False)

    def address(self, plane: int = 0) -> str:
        return f"10.77.{plane}.{self.number}"

    def command(self, *command: str) -> list[str]:
        """To be started by this process: *command* in the namespace."""
        return [*self.prefix, *command]

    @property
    def prefix(self) -> tuple[str, ...]:
        return ("nsenter", f"--net=/proc/{os.getpid()}/fd/{self._namespace}", "--")

    def call(self, function: Callable[[], T]) -> T:
        """Run *function* in a thread that is in the namespace."""
        results: list[T] = []

        def run() -> None:
            _check(_libc.setns(self._namespace, _CLONE_NEWNET))
            results.append(function())

        thread = threading.Thread(target=run)
        thread.start()
        thread.join(SECONDS)
        return results[0]


class Line:
    """Between two hosts, the same in both directions."""

    def __init__(self, number: int, control: socket.socket, ends: tuple[int, int]) -> None:
        self._number, self._control = number, control
        self._send({}, ends)

    def set(self, **changes: float | bool) -> None:
        """``delay`` in seconds, ``loss`` as a share of the packets, ``cut``: from now on, and for what is under way."""
        self._send(changes, ())

    def _send(self, changes: Mapping[str, object], ends: tuple[int, ...]) -> None:
        message = json.dumps({"line": self._number, **changes}).encode()
        socket.send_fds(self._control, [message], ends)
        assert self._control.recv(1), "the carrier has ended"


class Network:
    def __init__(self) -> None:
        if shutil.which("ip") is None:
            missing("iproute2")
        if os.geteuid() != 0 or not _TUN.exists():
            missing("root")
        self._numbers, self._devices, self._lines = itertools.count(1), itertools.count(), itertools.count()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            before = _own_namespace()
            stack.callback(os.close, before)
            _check(_libc.unshare(_CLONE_NEWNET))
            stack.callback(lambda: _check(_libc.setns(before, _CLONE_NEWNET)))
            self._stack = stack
            self.home = self._prepare(_own_namespace())
            self._control = stack.enter_context(self._carrier())
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def add_host(self) -> Host:
        def unshare() -> int:
            _check(_libc.unshare(_CLONE_NEWNET))
            return _own_namespace()

        return self._prepare(self.home.call(unshare))

    def connect(self, one: Host, other: Host, *, plane: int = 0) -> Line:
        """A line between two hosts, for packets between their addresses of this plane."""
        ends = self._end(one, other, plane), self._end(other, one, plane)
        try:
            return Line(next(self._lines), self._control, ends)
        finally:
            # The carrier has them now.
            for end in ends:
                os.close(end)

    @contextmanager
    def _carrier(self) -> Iterator[socket.socket]:
        """The process that carries the packets. It ends when the socket does."""
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.support.network_carrier"]
        with its, subprocess.Popen(command, stdin=its.fileno(), cwd=_PROJECT) as process:
            try:
                with ours:
                    ours.settimeout(SECONDS)
                    yield ours
            finally:
                process.kill()

    def _prepare(self, namespace: int) -> Host:
        self._stack.callback(os.close, namespace)
        host = Host(next(self._numbers), namespace)
        _run(host.command("ip", "link", "set", "lo", "up"))
        return host

    def _end(self, host: Host, peer: Host, plane: int) -> int:
        """A TUN device on *host*, behind which *peer* is."""
        name = f"line{next(self._devices)}"
        device = host.call(lambda: _open_tun(name))
        own = host.address(plane)
        # Replaced, if another line has brought it already.
        _run(host.command("ip", "address", "replace", f"{own}/32", "dev", "lo"))
        _run(host.command("ip", "link", "set", name, "up"))
        _run(host.command("ip", "route", "add", f"{peer.address(plane)}/32", "dev", name, "src", own))
        return device


# --- what the kernel does ---

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _own_namespace() -> int:
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _open_tun(name: str) -> int:
    device = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    return device


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=SECONDS)
