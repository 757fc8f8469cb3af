"""systemd's end of sd_notify(3): a real socket that keeps what it is sent, and by which process."""

from __future__ import annotations

import socket
import struct
from pathlib import Path
from typing import Self

SECONDS = 30.0


class NotifySocket:
    """*address* as ``NOTIFY_SOCKET`` has it: a path, or an abstract address with "@" for the zero byte."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.settimeout(SECONDS)
        self._socket.bind(f"\0{address[1:]}" if address.startswith("@") else address)

    @classmethod
    def in_folder(cls, folder: Path) -> Self:
        return cls(str(folder / "notify"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def receive(self) -> tuple[dict[str, str], int]:
        """The next message, by its names, and the process that sent it."""
        data, ancillary, _, _ = self._socket.recvmsg(4096, socket.CMSG_SPACE(struct.calcsize("3i")))
        sender = next(struct.unpack("3i", part)[0] for _, kind, part in ancillary if kind == socket.SCM_CREDENTIALS)
        return dict(line.split("=", 1) for line in data.decode().splitlines()), sender

    def waiting(self) -> list[dict[str, str]]:
        """What has arrived and was not received yet."""
        self._socket.setblocking(False)
        messages = []
        try:
            while True:
                messages.append(self.receive()[0])
        except BlockingIOError:
            return messages
        finally:
            self._socket.settimeout(SECONDS)
