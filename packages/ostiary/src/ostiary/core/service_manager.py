"""Tells systemd how the gateway is: started, reloading, stopping, alive (the protocol of sd_notify(3)).

Called by the process that systemd has started: a worker that serves alone, or the supervisor for all of its workers.
Without ``NOTIFY_SOCKET`` nothing is sent. The gateway serves on if systemd cannot be told. `on_started` tells whoever
else waits for the start.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, MutableMapping
from datetime import timedelta

log = logging.getLogger("ostiary.gateway")

# How long a message may wait for systemd: requests wait meanwhile.
SEND_SECONDS = 1.0
# What a stop may take beyond the draining of requests.
STOP_MARGIN = timedelta(seconds=15)


class ServiceManager:
    """*address* is that of systemd's socket, if it waits for messages; *watchdog*, how often it wants to hear of us."""

    def __init__(self, address: str | None = None, *, watchdog: timedelta | None = None, status: str = "") -> None:
        self._address = address
        self._watchdog = watchdog
        self.status = status
        self.on_started: Callable[[], None] = lambda: None
        self._started = False
        self._feeding: asyncio.Task[None] | None = None

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str] = os.environ) -> ServiceManager:
        """As systemd says it. Taken out of the *environment*: no process that we start speaks for the gateway."""
        address = environment.pop("NOTIFY_SOCKET", None)
        microseconds = environment.pop("WATCHDOG_USEC", "")
        # Set if it is meant for another process: a shell around us that was started with it.
        meant_for = environment.pop("WATCHDOG_PID", str(os.getpid()))
        has_watchdog = microseconds.isdecimal() and int(microseconds) > 0 and meant_for == str(os.getpid())
        return cls(address, watchdog=timedelta(microseconds=int(microseconds)) if has_watchdog else None)

    def tell_started(self) -> None:
        """Requests are answered. Only the first call counts: a worker that is replaced starts, too."""
        if not self._started:
            self._started = True
            self.on_started()
            self._send("READY=1", f"STATUS={self.status}")
            if self._address is not None and self._watchdog is not None:
                self._feeding = asyncio.get_running_loop().create_task(self._feed_watchdog(self._watchdog))

    def tell_reloading(self) -> None:
        # A signal may come before the start is complete, and systemd still waits for that.
        if self._started:
            self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def tell_reloaded(self, trouble: str = "") -> None:
        """The reload is over; with *trouble* it changed nothing."""
        if self._started:
            self._send("READY=1", f"STATUS={self.status}{'; ' if trouble else ''}{trouble}")

    def tell_stopping(self, longest: timedelta) -> None:
        """From now on requests have as long as that to end. systemd waits for it, whatever its unit says."""
        self._send("STOPPING=1", f"EXTEND_TIMEOUT_USEC={(longest + STOP_MARGIN) // timedelta(microseconds=1)}")

    async def _feed_watchdog(self, period: timedelta) -> None:
        # By the loop that answers requests: when it hangs, so does this.
        while True:
            self._send("WATCHDOG=1")
            await asyncio.sleep(period.total_seconds() / 2)

    def _send(self, *lines: str) -> None:
        if self._address is None:
            return
        # An "@" stands for the zero byte with which an abstract address begins.
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
                connection.settimeout(SEND_SECONDS)
                connection.sendto("\n".join(lines).encode(), address)
        except OSError as error:
            log.warning("systemd could not be told", extra={"what": lines[0], "cause": error.strerror or str(error)})
