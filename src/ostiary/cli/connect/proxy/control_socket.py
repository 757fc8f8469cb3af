"""The Unix socket of the proxy: who may have a token asks here.

The folder is the user's alone, and so is the socket; and the kernel tells whose process is at the other end, so that
neither a folder with other permissions nor a descriptor that was passed on lets anybody else in.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

from ostiary.cli.connect.quick_token import ERROR, OK, peer_user
from ostiary.core.net.unix_socket import bind_privately
from ostiary.errors import OstiaryError

log = logging.getLogger("ostiary.connect")

LONGEST_LINE = 1024
# One question; the answer may take as long as a plugin does.
QUESTION_SECONDS = 5.0
MOST_CLIENTS = 64
LAST_SECONDS = 1.0

Answer = Callable[[str], Awaitable[bytes]]


def bind_socket(path: str) -> socket.socket:
    """A new socket at *path*, in the place of one that a process has left behind. The caller holds the lock."""
    if os.path.lexists(path):
        os.unlink(path)
    listener = bind_privately(path, backlog=MOST_CLIENTS)
    listener.setblocking(False)
    return listener


class ControlSocket:
    """Answers the questions of this user's processes with *answer*, which may raise `OstiaryError`."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._clients = 0
        self._all_answered = asyncio.Event()
        self._all_answered.set()

    async def answer_rest(self) -> None:
        """Wait a moment for the replies that are under way: the process is ending."""
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
            # It went away.
            pass
        finally:
            writer.close()

    async def _reply(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_full = self._clients > MOST_CLIENTS
        try:
            # Also where there is no room: a reply to what was not read would be lost.
            line = (await asyncio.wait_for(reader.readline(), QUESTION_SECONDS)).decode()
        except (OSError, ValueError):
            # It went away, or said nothing that is a question.
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
            # Without a reply the client would take us for dead, and start another proxy.
            log.error("a question at the socket failed inside the proxy", exc_info=error)
            return _error_reply(_unavailable(f"it failed with {type(error).__name__}, and its log says where"))


def _unavailable(cause: str) -> OstiaryError:
    return OstiaryError("the proxy cannot answer", cause=cause, code="connect-unavailable")


def _error_reply(error: OstiaryError) -> bytes:
    return ERROR + json.dumps({"summary": error.summary, **dict(error.lines())}).encode()
