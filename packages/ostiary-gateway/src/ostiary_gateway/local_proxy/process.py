"""The background process of ``ostiary connect``: one per user, for all contexts, until it is idle for a while.

It is started by `ostiary_gateway.local_proxy.start`, or in the foreground by the command. It holds a lock as long as it
lives, so that there is only one, and so that the owner of the lock may replace a stale socket.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

from ostiary import __version__
from ostiary.cli.quick_token import ERROR, OK, peer_user, socket_path
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.unix_socket import bind_privately
from ostiary.errors import ConfigurationError, OstiaryError
from ostiary.wire.client_authentication import ExecAnswer, encode_answer
from ostiary_gateway.local_proxy import record as records
from ostiary_gateway.local_proxy.listener import ContextListener
from ostiary_gateway.local_proxy.log_file import log_path, log_to_file
from ostiary_gateway.local_proxy.record import DEFAULT_IDLE_SECONDS
from ostiary_gateway.local_proxy.runtime import ensured_folder

# Control socket: clients get their tokens here. Its folder and the socket are accessible to the user only. The peer's
# user id, which the kernel reports, is checked too: it also rejects other users if the permissions of the folder are
# wrong or a descriptor was passed on.

log = logging.getLogger("ostiary.connect")

LONGEST_LINE = 1024
# Timeout for reading a request. The response may take as long as an exec plugin does.
QUESTION_SECONDS = 5.0
MOST_CLIENTS = 64
LAST_SECONDS = 1.0

Answer = Callable[[str], Awaitable[bytes]]


def bind_socket(path: str) -> socket.socket:
    """Bind a new socket at *path*, replacing a stale one. The caller holds the lock."""
    if os.path.lexists(path):
        os.unlink(path)
    listener = bind_privately(path, backlog=MOST_CLIENTS)
    listener.setblocking(False)
    return listener


class ControlSocket:
    """Serve the requests of this user's processes. *answer* may raise `OstiaryError`."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._clients = 0
        self._all_answered = asyncio.Event()
        self._all_answered.set()

    async def answer_rest(self) -> None:
        """Wait a moment for in-flight requests: the process is ending."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._all_answered.wait(), LAST_SECONDS)

    async def serve(self, listener: socket.socket) -> asyncio.Server:
        return await asyncio.start_unix_server(self._serve_client, sock=listener, limit=LONGEST_LINE)

    async def _serve_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            user = peer_user(writer.get_extra_info("socket"))
            if user != os.geteuid():
                log.warning("a process of the user %s was refused at the socket", user)
            else:
                self._clients += 1
                self._all_answered.clear()
                try:
                    await self._reply(reader, writer)
                finally:
                    self._clients -= 1
                    if not self._clients:
                        self._all_answered.set()
        except OSError:
            # The client disconnected.
            pass
        finally:
            writer.close()

    async def _reply(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_full = self._clients > MOST_CLIENTS
        try:
            # Read the request even if too many are in flight: otherwise the client might not receive the response.
            line = (await asyncio.wait_for(reader.readline(), QUESTION_SECONDS)).decode()
        except (OSError, ValueError):
            # The client disconnected, timed out or sent an invalid line.
            return
        if is_full:
            log.error("a question at the socket was refused: %d others are being answered", MOST_CLIENTS)
            reply = _error_reply(_unavailable(f"it is answering {MOST_CLIENTS} others"))
        else:
            reply = await self._reply_to(line.rstrip("\n"))
        writer.write(reply)
        await writer.drain()

    async def _reply_to(self, line: str) -> bytes:
        try:
            return OK + await self._answer(line)
        except OstiaryError as error:
            return _error_reply(error)
        except Exception as error:
            # Without a response the client would assume that the process is dead, and start another one.
            log.error("a question at the socket failed inside the proxy", exc_info=error)
            return _error_reply(_unavailable(f"it failed with {type(error).__name__}, and its log says where"))


def _unavailable(cause: str) -> OstiaryError:
    return OstiaryError("the proxy cannot answer", cause=cause, code="connect-unavailable")


def _error_reply(error: OstiaryError) -> bytes:
    return ERROR + json.dumps({"summary": error.summary, **dict(error.lines())}).encode()


class IdleTime:
    """Idle timeout: the time since the last activity. Call `touch` for every activity."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since = clock.monotonic()

    def touch(self) -> None:
        self._since = self._clock.monotonic()

    def seconds_left(self, limit: float) -> float:
        """Return the seconds until *limit* has passed."""
        return self._since + limit - self._clock.monotonic()

    def is_over(self, limit: float, *, busy: bool) -> bool:
        """Report whether *limit* seconds have passed without activity; never while a request is in flight."""
        if busy:
            self.touch()
        return self.seconds_left(limit) <= 0


TICK_SECONDS = 1.0
API = "client.authentication.k8s.io/"
READY, TAKEN = b"ready\n", b"taken\n"


class ConnectProcess:
    """The process: `run` serves until it is stopped or idle for too long."""

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK, has_terminal: bool = False) -> None:
        self._clock = clock
        self._has_terminal = has_terminal
        self._listeners: dict[str, ContextListener] = {}
        self._opening = asyncio.Lock()
        self._idle = IdleTime(clock)
        self._started_at = clock.now()
        self._stopping = asyncio.Event()

    async def run(self, path: str, *, ready: int | None = None) -> None:
        """Serve at the Unix socket *path*. Writes to the descriptor *ready* when the socket is open."""
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
            # Remove the socket first: a new client then starts a new process, which waits for the lock of this one.
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
        """Close timed-out connections, and stop the process when it is idle. Called about once a second."""
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

    # --- requests at the control socket ---

    async def answer(self, line: str) -> bytes:
        """Return the response to one request. Raises `OstiaryError`."""
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
        # Report a missing credential here, where the user sees the error, and not as the response to a request.
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
    """Take the lock of the user's only process and return its descriptor, or None if another process has it."""
    descriptor = os.open(f"{folder}/connect.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def serve_in_foreground() -> bool:
    """Serve until stopped. Returns False if another process already serves."""
    folder = ensured_folder()
    if hold_life_lock(folder) is None:
        return False
    asyncio.run(_run(socket_path(folder), has_terminal=True))
    return True


async def _run(path: str, *, ready: int | None = None, has_terminal: bool = False) -> None:
    await ConnectProcess(has_terminal=has_terminal).run(path, ready=ready)


def main() -> None:
    """Run the background process. Its argument is the descriptor that the starter reads."""
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
