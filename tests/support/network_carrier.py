"""The program that carries the packets of `tests.support.network`: one process, so that a busy test delays none.

A Unix socket is its standard input. Each message is one line of the network, as JSON: its number, ``delay`` in seconds,
``loss`` as a share, ``cut``; the first one of a line comes with its two TUN devices. Each is answered with a byte.
"""

from __future__ import annotations

import heapq
import itertools
import json
import os
import random
import selectors
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass

_LARGEST_PACKET, _LARGEST_MESSAGE = 2048, 4096
# A line whose queue is full loses packets, as a real one does.
_MOST_UNDER_WAY = 10_000


@dataclass
class CarriedLine:
    ends: tuple[int, int]
    delay: float = 0.0
    loss: float = 0.0
    cut: bool = False

    def other_end(self, end: int) -> int:
        return self.ends[1] if end == self.ends[0] else self.ends[0]


class Carrier:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._lines: dict[int, CarriedLine] = {}
        self._by_end: dict[int, CarriedLine] = {}
        self._under_way: list[tuple[float, int, int, bytes]] = []
        self._order = itertools.count()
        # The same packets are lost in every run, as far as the programs send the same.
        self._random = random.Random(77)
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ)

    def run(self) -> None:
        while True:
            wait = self._under_way[0][0] - time.monotonic() if self._under_way else None
            for key, _ in self._selector.select(wait):
                if key.fileobj is not self._control:
                    self._take(int(key.fd))
                elif not self._obey():
                    return
            self._deliver()

    def _obey(self) -> bool:
        message, ends, _, _ = socket.recv_fds(self._control, _LARGEST_MESSAGE, 2)
        if not message:
            return False
        said = json.loads(message)
        number = said.pop("line")
        if ends:
            line = self._lines[number] = CarriedLine((ends[0], ends[1]))
            for end in ends:
                self._by_end[end] = line
                self._selector.register(end, selectors.EVENT_READ)
        for name, value in said.items():
            setattr(self._lines[number], name, value)
        self._control.send(b"!")
        return True

    def _take(self, end: int) -> None:
        line = self._by_end[end]
        with suppress(BlockingIOError):
            while True:
                packet = os.read(end, _LARGEST_PACKET)
                if self._random.random() >= line.loss and len(self._under_way) < _MOST_UNDER_WAY:
                    due = time.monotonic() + line.delay
                    heapq.heappush(self._under_way, (due, next(self._order), line.other_end(end), packet))

    def _deliver(self) -> None:
        now = time.monotonic()
        while self._under_way and self._under_way[0][0] <= now:
            _, _, end, packet = heapq.heappop(self._under_way)
            if not self._by_end[end].cut:
                # A full queue loses it.
                with suppress(BlockingIOError):
                    os.write(end, packet)


if __name__ == "__main__":
    Carrier(socket.socket(fileno=sys.stdin.fileno())).run()
