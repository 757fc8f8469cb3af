"""Handshakes of two TLS contexts without sockets, and a request and its answer over each, as tickets need them."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import trustme

VERSIONS = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)


@dataclass(frozen=True, slots=True)
class Shaken:
    """Both ends of one connection that was established and used once."""

    client: ssl.SSLObject
    server: ssl.SSLObject

    @property
    def resumed(self) -> bool:
        assert self.client.session_reused == self.server.session_reused
        return bool(self.server.session_reused)


def shake_hands(
    server_context: ssl.SSLContext,
    client_context: ssl.SSLContext,
    session: ssl.SSLSession | None = None,
    *,
    name: str = "localhost",
) -> Shaken:
    """Raises what either end raises."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    client = client_context.wrap_bio(to_client, to_server, server_hostname=name, session=session)
    waiting: list[Callable[[], object]] = [client.do_handshake, server.do_handshake]
    for _ in range(10):
        waiting = [step for step in waiting if not _is_through(step)]
    assert not waiting
    client.write(b"request")
    assert server.read(100) == b"request"
    server.write(b"answer")
    assert client.read(100) == b"answer"
    return Shaken(client, server)


def _is_through(step: Callable[[], object]) -> bool:
    try:
        step()
    except ssl.SSLWantReadError:
        return False
    return True


def server_files(folder: Path, ca: trustme.CA) -> tuple[Path, Path]:
    """A certificate for localhost and its key."""
    leaf = ca.issue_cert("localhost")
    certificate, key = folder / "tls.crt", folder / "tls.key"
    certificate.write_bytes(b"".join(part.bytes() for part in leaf.cert_chain_pems))
    leaf.private_key_pem.write_to_path(key)
    return certificate, key


def trusting(ca: trustme.CA, version: ssl.TLSVersion | None = None) -> ssl.SSLContext:
    """A client that speaks *version*, or the latest."""
    context = ssl.create_default_context()
    ca.configure_trust(context)
    if version is not None:
        context.minimum_version = context.maximum_version = version
    return context
