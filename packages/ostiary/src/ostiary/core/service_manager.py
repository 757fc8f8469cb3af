"""Reports the state of the gateway to systemd: started, reloading, stopping, alive (sd_notify(3)).

Used by the process that systemd has started: a single worker, or the supervisor of all workers. Without
``NOTIFY_SOCKET`` nothing is sent. The gateway continues if systemd cannot be notified. `on_started` notifies other code
that waits for the start.
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

# Timeout for sending a message to systemd: requests wait meanwhile.
SEND_SECONDS = 1.0
# How long stopping may take after requests have drained.
STOP_MARGIN = timedelta(seconds=15)


class ServiceManager:
    """*address* is systemd's notification socket, if there is one; *watchdog* is the interval of watchdog messages."""

    def __init__(self, address: str | None = None, *, watchdog: timedelta | None = None, status: str = "") -> None:
        self._address = address
        self._watchdog = watchdog
        self.status = status
        self.on_started: Callable[[], None] = lambda: None
        self._started = False
        self._feeding: asyncio.Task[None] | None = None

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str] = os.environ) -> ServiceManager:
        """Read systemd's settings from *environment* and remove them, so that no child process notifies for us."""
        address = environment.pop("NOTIFY_SOCKET", None)
        microseconds = environment.pop("WATCHDOG_USEC", "")
        # Differs from our process id if the watchdog is meant for another process, such as the shell that started us.
        meant_for = environment.pop("WATCHDOG_PID", str(os.getpid()))
        has_watchdog = microseconds.isdecimal() and int(microseconds) > 0 and meant_for == str(os.getpid())
        return cls(address, watchdog=timedelta(microseconds=int(microseconds)) if has_watchdog else None)

    def tell_started(self) -> None:
        """Report that requests are served. Only the first call counts, because a replaced worker starts again."""
        if not self._started:
            self._started = True
            self.on_started()
            self._send("READY=1", f"STATUS={self.status}")
            if self._address is not None and self._watchdog is not None:
                self._feeding = asyncio.get_running_loop().create_task(self._feed_watchdog(self._watchdog))

    def tell_reloading(self) -> None:
        # A signal may arrive before the start is complete, and systemd still waits for the start then.
        if self._started:
            self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def tell_reloaded(self, trouble: str = "") -> None:
        """Report the end of a reload. With *trouble* it failed and changed nothing."""
        if self._started:
            self._send("READY=1", f"STATUS={self.status}{'; ' if trouble else ''}{trouble}")

    def tell_stopping(self, longest: timedelta) -> None:
        """Report that we are stopping.

        Requests have *longest* to complete, and systemd waits for it regardless of its unit.
        """
        self._send("STOPPING=1", f"EXTEND_TIMEOUT_USEC={(longest + STOP_MARGIN) // timedelta(microseconds=1)}")

    async def _feed_watchdog(self, period: timedelta) -> None:
        # In the event loop that serves requests: when it hangs, the watchdog messages stop.
        while True:
            self._send("WATCHDOG=1")
            await asyncio.sleep(period.total_seconds() / 2)

    def _send(self, *lines: str) -> None:
        if self._address is None:
            return
        # A leading "@" stands for the zero byte of an abstract address.
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
                connection.settimeout(SEND_SECONDS)
                connection.sendto("\n".join(lines).encode(), address)
        except OSError as error:
            log.warning("systemd could not be told", extra={"what": lines[0], "cause": error.strerror or str(error)})
