"""A real Dex: an issuer with people of its own, kept in memory.

    with running_dex(folder, ca, "https://localhost:8443/auth/provider") as dex:
        dex.issuer

The connector ``local`` asks for a password in a form. The other one, ``mock``, signs in one person without asking, and
knows a group.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import bcrypt
import httpx
import pytest
import trustme
import yaml

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
    issuer = f"https://localhost:{free_port()}/dex"
    leaf = ca.issue_cert("localhost")
    leaf.private_key_pem.write_to_path(str(folder / "tls.key"))
    (folder / "tls.pem").write_bytes(b"".join(pem.bytes() for pem in leaf.cert_chain_pems))
    (folder / "config.yaml").write_text(yaml.safe_dump(_config(folder, issuer, redirects)))
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    ca.configure_trust(trust)
    with Server([dex(), "serve", folder / "config.yaml"], log=folder / "log") as server:
        running = Dex(issuer, trust, server)
        server.wait_until(running.answers)
        yield running


def _config(folder: Path, issuer: str, redirects: tuple[str, ...]) -> dict[str, object]:
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(10)).decode()
    return {
        "issuer": issuer,
        "storage": {"type": "memory"},
        "web": {
            "https": issuer.removeprefix("https://").removesuffix("/dex").replace("localhost", "127.0.0.1"),
            "tlsCert": str(folder / "tls.pem"),
            "tlsKey": str(folder / "tls.key"),
        },
        "oauth2": {"skipApprovalScreen": True},
        "enablePasswordDB": True,
        "staticPasswords": [{"email": "ann@example.com", "username": "ann", "userID": "1", "hash": hashed}],
        "staticClients": [{"id": CLIENT, "secret": SECRET, "name": "The gateway", "redirectURIs": list(redirects)}],
        # Signs in Kilgore Trout, who is in the group "authors".
        "connectors": [{"type": "mockCallback", "id": "mock", "name": "Mock"}],
    }
