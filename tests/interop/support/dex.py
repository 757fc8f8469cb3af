"""A real Dex, with the small program of ``modules/dex``: an issuer with people of its own, kept in memory.

    with running_dex(folder, ca, "https://localhost:8443/auth/dex/provider") as dex:
        dex.issuer

The connector ``local`` asks for a password in a form. The other one, ``mock``, signs in one person without asking, and
knows a group.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import bcrypt
import httpx
import pytest
import trustme

from tests.interop.support.process import Server
from tests.interop.support.programs import DEX, dex, reason_not_built
from tests.support.ports import free_port

CLIENT, SECRET = "gateway", "secret-of-the-gateway"
PASSWORD = "typed at Dex"
SECONDS = 60.0


@dataclass(frozen=True)
class Dex:
    """A running one. `restart` forgets all that it gave out: it keeps nothing but in memory."""

    issuer: str
    trust: ssl.SSLContext
    server: Server

    def answers(self) -> bool:
        try:
            with httpx.Client(verify=self.trust, timeout=SECONDS, trust_env=False) as http:
                return http.get(f"{self.issuer}/.well-known/openid-configuration").is_success
        except httpx.TransportError:
            return False

    def restart(self) -> None:
        self.server.stop()
        self.server.__enter__()
        self.server.wait_until(self.answers)


@contextmanager
def running_dex(folder: Path, ca: trustme.CA, *redirects: str) -> Iterator[Dex]:
    """Skips the test, and says why, where this machine has no Dex."""
    if not dex().exists():
        pytest.skip(reason_not_built(DEX))
    port = free_port()
    issuer = f"https://localhost:{port}/dex"
    leaf = ca.issue_cert("localhost")
    leaf.private_key_pem.write_to_path(str(folder / "tls.key"))
    (folder / "tls.pem").write_bytes(b"".join(pem.bytes() for pem in leaf.cert_chain_pems))
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(10)).decode()
    config = {
        "issuer": issuer,
        "listen": f"127.0.0.1:{port}",
        "tlsCert": str(folder / "tls.pem"),
        "tlsKey": str(folder / "tls.key"),
        "clients": [{"id": CLIENT, "secret": SECRET, "name": "The gateway", "redirectURIs": list(redirects)}],
        "passwords": [{"email": "ann@example.com", "username": "ann", "userID": "1", "hash": hashed}],
    }
    (folder / "config.json").write_text(json.dumps(config))
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    ca.configure_trust(trust)
    with Server([dex(), folder / "config.json"], log=folder / "log") as server:
        running = Dex(issuer, trust, server)
        server.wait_until(running.answers)
        yield running
