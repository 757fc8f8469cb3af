"""A listener of ``ostiary connect`` in the test's own loop, before an upstream over TLS that follows a script."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trustme

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary_gateway.local_proxy.certificate import make_certificate
from ostiary_gateway.local_proxy.listener import ContextListener
from ostiary_gateway.local_proxy.management import free_port
from ostiary_gateway.local_proxy.record import ConnectRecord
from tests.support.http1 import Client, Message, Script, Upstream, upstream
from tests.support.http_server import server_context
from tests.support.plugins import write_kubeconfig

# Made once: every test would wait for it.
CERTIFICATE = make_certificate(SYSTEM_CLOCK)


def connect_record(kubeconfig: Path, *, name: str = "test@ostiary", port: int = 0) -> ConnectRecord:
    return ConnectRecord(name, "test", str(kubeconfig), port or free_port(), CERTIFICATE)


@dataclass
class Served:
    """The listener, the upstream behind it, and a client that has the token."""

    listener: ContextListener
    upstream: Upstream

    @property
    def bearer(self) -> str:
        return f"Authorization: Bearer {self.listener.tokens.current().token.reveal()}"

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        record = self.listener.record
        context = ssl.create_default_context(cadata=record.certificate.authority_pem)
        reader, writer = await asyncio.open_connection("127.0.0.1", record.port, ssl=context)
        client = Client(reader, writer)
        try:
            yield client
        finally:
            await client.close()

    def request(self, target: str, *lines: str, method: str = "GET", body: bytes = b"") -> bytes:
        head = [f"{method} {target} HTTP/1.1", f"Host: {self.listener.record.host}", self.bearer, *lines]
        if body:
            head.append(f"Content-Length: {len(body)}")
        return "\r\n".join([*head, "", ""]).encode() + body

    async def ask(self, target: str, *lines: str, **options: Any) -> Message:
        async with self.client() as client:
            return await client.ask(self.request(target, *lines, **options))


@asynccontextmanager
async def served(
    folder: Path,
    ca: trustme.CA,
    script: Script,
    *,
    user: dict[str, Any],
    path: str = "",
    cluster: dict[str, Any] | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> AsyncIterator[Served]:
    ca.cert_pem.write_to_path(str(folder / "ca.pem"))
    async with upstream(script, tls=server_context(ca, "localhost")) as made:
        kubeconfig = write_kubeconfig(
            folder / "config",
            server=f"https://localhost:{made.port}{path}",
            user=user,
            cluster={"certificate-authority": str(folder / "ca.pem"), **(cluster or {})},
        )
        loop = asyncio.get_running_loop()
        listener = ContextListener(connect_record(kubeconfig), loop, clock, has_terminal=False)
        await listener.open()
        try:
            yield Served(listener, made)
        finally:
            listener.close()
