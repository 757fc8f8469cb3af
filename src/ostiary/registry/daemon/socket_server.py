"""The daemon's Unix socket: who may ask, how much, and that each question is noticed at once.

Called by ``ostiary registry serve``. Only our own user and root may ask: what is answered are secrets, and what is
asked makes us run programs. Everything is bounded; whoever is turned away runs the provider itself.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from contextlib import suppress

from ostiary.core.net.unix_socket import peer_user
from ostiary.registry.daemon import protocol
from ostiary.registry.daemon.engine import CredentialDaemon

MOST_CONNECTIONS = 1024
BACKLOG = 1024
# For the whole question, which is there when the program has connected.
QUESTION_SECONDS = 5.0
# How long a stop waits for providers that run.
DRAIN_SECONDS = 10.0

log = logging.getLogger("ostiary.registry")


class SocketServer:
    """Serves on *listener* from `start` to `close`."""

    def __init__(self, daemon: CredentialDaemon, listener: socket.socket) -> None:
        self._daemon = daemon
        self._listener = listener
        self._users = frozenset({0, os.geteuid()})
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    @property
    def connections(self) -> int:
        return len(self._open)

    async def start(self) -> None:
        if sys.version_info >= (3, 13):
            # The socket's file is removed by whoever made it, which may be systemd.
            self._server = await asyncio.start_unix_server(
                self._serve, sock=self._listener, limit=protocol.LARGEST_TEXT, cleanup_socket=False
            )
        else:
            self._server = await asyncio.start_unix_server(
                self._serve, sock=self._listener, limit=protocol.LARGEST_TEXT
            )

    async def close(self) -> None:
        """Take no more questions, and wait a while for the answers that are under way."""
        assert self._server is not None
        self._server.close()
        if self._open:
            await asyncio.wait(self._open, timeout=DRAIN_SECONDS)
        for task in list(self._open):
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            # A program that went away is no news, and what it was answered is kept for the next one.
            with suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
                await self._converse(reader, writer)
        finally:
            self._open.discard(task)
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        user = peer_user(writer.get_extra_info("socket"))
        if user not in self._users:
            log.warning("a process of user %d was refused at the socket", user)
            return
        if len(self._open) > MOST_CONNECTIONS:
            writer.write(protocol.refusal("too many ask at once"))
            return
        async with asyncio.timeout(QUESTION_SECONDS):
            question = await _read_question(reader)
        if question is None:
            writer.write(protocol.refusal("it does not know this question: the versions differ"))
            await writer.drain()
            return
        writer.write(protocol.ASKED)
        await writer.drain()
        writer.write(await self._daemon.answer(*question))
        await writer.drain()


async def _read_question(reader: asyncio.StreamReader) -> tuple[bytes, list[bytes]] | None:
    try:
        head = await reader.readuntil(b"\n")
    except asyncio.LimitOverrunError:
        return None
    parsed = protocol.question_head(head)
    if parsed is None:
        return None
    verb, lengths = parsed
    return verb, [await reader.readexactly(length) for length in lengths]
