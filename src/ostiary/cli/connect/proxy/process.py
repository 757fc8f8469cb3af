"""The process of ``ostiary connect``: one for each user, for all contexts, until nobody has used it for a while.

Started by `ostiary.cli.connect.start`, or in the foreground by the command. It holds a lock as long as it lives, so
that there is one, and so that whoever holds the lock may replace a socket that was left behind.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import signal
import sys
from contextlib import suppress
from dataclasses import replace

from ostiary import __version__
from ostiary.cli.connect import record as records
from ostiary.cli.connect.proxy.control_socket import ControlSocket, bind_socket
from ostiary.cli.connect.proxy.idle import IdleTime
from ostiary.cli.connect.proxy.listener import ContextListener
from ostiary.cli.connect.proxy.log_file import log_path, log_to_file
from ostiary.cli.connect.quick_token import socket_path
from ostiary.cli.connect.record import DEFAULT_IDLE_SECONDS
from ostiary.cli.connect.runtime import ensured_folder
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.errors import ConfigurationError, OstiaryError
from ostiary.wire.client_authentication import ExecAnswer, encode_answer

log = logging.getLogger("ostiary.connect")

TICK_SECONDS = 1.0
API = "client.authentication.k8s.io/"
READY, TAKEN = b"ready\n", b"taken\n"


class ConnectProcess:
    """What the process does: `run` until it is stopped or idle for too long."""

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK, has_terminal: bool = False) -> None:
        self._clock = clock
        self._has_terminal = has_terminal
        self._listeners: dict[str, ContextListener] = {}
        self._opening = asyncio.Lock()
        self._idle = IdleTime(clock)
        self._started_at = clock.now()
        self._stopping = asyncio.Event()

    async def run(self, path: str, *, ready: int | None = None) -> None:
        """Serve at the Unix socket *path*; writes to the descriptor *ready* when that is open."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._stopping.set)
        listener = bind_socket(path)
        control = ControlSocket(self.answer)
        server = await control.serve(listener)
        log.info("the proxy of ostiary connect %s has started, as process %d", __version__, os.getpid())
        if ready is not None:
            os.write(ready, READY)
            os.close(ready)
        try:
            await self._serve_until_idle(loop)
        finally:
            # First the socket: whoever comes now starts a new process, which waits for our lock.
            with suppress(OSError):
                os.unlink(path)
            server.close()
            await control.answer_rest()
            for each in self._listeners.values():
                each.close()
            log.info("the proxy of ostiary connect has ended")

    async def _serve_until_idle(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._stopping.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), TICK_SECONDS)
            self.tick(loop.time())

    def tick(self, now: float) -> None:
        """About once a second: end what has waited too long, and the process when it is idle."""
        for listener in self._listeners.values():
            listener.tick(now)
        if self._idle.is_over(self._idle_limit, busy=any(each.busy for each in self._listeners.values())):
            log.info("nobody has used the proxy for a while")
            self._stopping.set()

    @property
    def listeners(self) -> list[ContextListener]:
        return list(self._listeners.values())

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    @property
    def _idle_limit(self) -> float:
        return max((each.record.idle_seconds for each in self._listeners.values()), default=DEFAULT_IDLE_SECONDS)

    # --- questions at the socket ---

    async def answer(self, line: str) -> bytes:
        """The reply to one question; raises `OstiaryError`."""
        question, _, rest = line.partition(" ")
        if question == "token":
            version, _, name = rest.partition(" ")
            return await self._token(name, version)
        if question == "check":
            listener = await self._listener(rest)
            await listener.cluster.check()
            return json.dumps(self._describe(listener)).encode()
        if question == "forget":
            self._close(rest)
        elif question == "stop":
            self._stopping.set()
        elif question != "status":
            raise ConfigurationError("the proxy does not know this question", hint="restart it: ostiary connect --stop")
        return json.dumps(self._status()).encode()

    async def _token(self, name: str, version: str) -> bytes:
        self._idle.touch()
        listener = await self._listener(name)
        # A credential that cannot be had is told here, where a person reads it, and not as the answer to a request.
        await listener.cluster.check()
        token = listener.tokens.current()
        self._idle.touch()
        return encode_answer(ExecAnswer(token.token, None, None, token.expires_at), api_version=API + version).encode()

    async def _listener(self, name: str) -> ContextListener:
        async with self._opening:
            record = records.load(name)
            if record.certificate.is_expired(self._clock.now()):
                raise ConfigurationError(
                    f"the certificate of context {name!r} has expired",
                    hint=f"make a new one: ostiary connect {record.context} --name {name}",
                    code="connect-context-unknown",
                )
            known = self._listeners.get(name)
            if known is not None and replace(known.record, idle_seconds=record.idle_seconds) == record:
                known.record = record
                return known
            self._close(name)
            listener = ContextListener(
                record,
                asyncio.get_running_loop(),
                self._clock,
                has_terminal=self._has_terminal,
                note_use=self._idle.touch,
            )
            await listener.open()
            self._listeners[name] = listener
            log.info("context %s is served at %s", name, record.host)
            return listener

    def _close(self, name: str) -> None:
        known = self._listeners.pop(name, None)
        if known is not None:
            known.close()

    def _status(self) -> dict[str, object]:
        return {
            "running": True,
            "pid": os.getpid(),
            "version": __version__,
            "startedAt": self._started_at.isoformat(timespec="seconds"),
            "idleSecondsLeft": round(self._idle.seconds_left(self._idle_limit)),
            "log": log_path(),
            "contexts": [self._describe(each) for each in self._listeners.values()],
        }

    def _describe(self, listener: ContextListener) -> dict[str, object]:
        return {
            "name": listener.record.name,
            "context": listener.record.context,
            "server": listener.record.server,
            "cluster": listener.cluster.server,
            "connections": listener.connections,
            "requests": listener.forwarding.requests,
        }


def hold_life_lock(folder: str) -> int | None:
    """The descriptor of the lock that the one process of a user holds; None if another process has it."""
    descriptor = os.open(f"{folder}/connect.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def serve_in_foreground() -> bool:
    """Serve until it is stopped; False if another process serves already."""
    folder = ensured_folder()
    if hold_life_lock(folder) is None:
        return False
    asyncio.run(_run(socket_path(folder), has_terminal=True))
    return True


async def _run(path: str, *, ready: int | None = None, has_terminal: bool = False) -> None:
    await ConnectProcess(has_terminal=has_terminal).run(path, ready=ready)


def main() -> None:
    """The process in the background. Its argument is the descriptor that the starter reads."""
    ready = int(sys.argv[1])
    try:
        folder = ensured_folder()
        if hold_life_lock(folder) is None:
            os.write(ready, TAKEN)
            return
        log_to_file()
        asyncio.run(_run(socket_path(folder), ready=ready))
    except OstiaryError as error:
        os.write(ready, json.dumps({"summary": error.summary, **dict(error.lines())}).encode())
    except OSError as error:
        cause = error.strerror or str(error)
        os.write(ready, json.dumps({"summary": "the proxy cannot be started", "cause": cause}).encode())
