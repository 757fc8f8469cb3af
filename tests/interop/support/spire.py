"""A real SPIRE: servers of trust domains, and agents on this machine, with PostgreSQL as their datastore.

    with Spire(ca) as spire:
        with spire.server("example.org") as server, spire.agent(server, "/ns/shop/sa/deployer") as agent:
            token = agent.fetch_jwt("https://gateway.example.com")

SPIRE's SQLite needs cgo, which ``scripts/interop-build`` does without. An agent proves itself with a join token, and
knows workloads by the uid of their process: every process of these tests is the same workload.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import trustme

from tests.interop.support.process import Server
from tests.interop.support.programs import SPIRE, not_built, spire
from tests.support.ports import free_port
from tests.support.postgresql import PostgresServer, running
from tests.support.tiers import missing

SECONDS = 60
# No rotation by itself: the tests say when.
_SERVER = """\
server {{
  trust_domain = "{domain}"
  bind_address = "127.0.0.1"
  bind_port = {port}
  socket_path = "{folder}/server.sock"
  data_dir = "{folder}"
  ca_ttl = "24h"
  default_jwt_svid_ttl = "5m"
  federation {{
    bundle_endpoint {{
      address = "127.0.0.1"
      port = {bundle_port}
      profile "https_web" {{
        serving_cert_file {{
          cert_file_path = "{folder}/endpoint.pem"
          key_file_path = "{folder}/endpoint.key"
          file_sync_interval = "1h"
        }}
      }}
    }}
  }}
  experimental {{
    cache_reload_interval = "1s"
  }}
}}
plugins {{
  DataStore "sql" {{
    plugin_data {{
      database_type = "postgres"
      connection_string = "{database}"
    }}
  }}
  NodeAttestor "join_token" {{
    plugin_data {{}}
  }}
  KeyManager "memory" {{
    plugin_data {{}}
  }}
}}
"""
_AGENT = """\
agent {{
  trust_domain = "{domain}"
  server_address = "127.0.0.1"
  server_port = {port}
  socket_path = "{folder}/agent.sock"
  data_dir = "{folder}"
  trust_bundle_path = "{folder}/bootstrap.pem"
  join_token = "{join_token}"
  experimental {{
    sync_interval = "1s"
  }}
}}
plugins {{
  NodeAttestor "join_token" {{
    plugin_data {{}}
  }}
  KeyManager "memory" {{
    plugin_data {{}}
  }}
  WorkloadAttestor "unix" {{
    plugin_data {{}}
  }}
}}
"""


class SpireCommandFailed(Exception):
    """A command of SPIRE ended with an error; its text is what SPIRE said."""


def _run(program: str, *words: str | Path) -> str:
    command = [spire(program), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise SpireCommandFailed(f"{program} {words[0]}: {done.stderr or done.stdout}")
    return done.stdout


def _succeeds(program: str, *words: str | Path) -> bool:
    try:
        _run(program, *words)
    except SpireCommandFailed:
        return False
    return True


@dataclass(frozen=True)
class SpireServer:
    """The server of a trust domain. `bundle_url` is its bundle endpoint, with a certificate of the tests' authority."""

    domain: str
    folder: Path
    port: int
    bundle_url: str

    def id(self, path: str) -> str:
        return f"spiffe://{self.domain}{path}"

    def run(self, *words: str) -> str:
        return _run("spire-server", *words, "-socketPath", self.folder / "server.sock")

    def answer(self, *words: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.run(*words, "-output", "json"))
        return document

    def bundle(self) -> str:
        """The trust bundle in SPIFFE's format, as the how-to page takes it."""
        return self.run("bundle", "show", "-format", "spiffe")

    def mint_jwt(self, path: str, audience: str) -> str:
        """A JWT-SVID from the server itself: an agent gives out what it has cached."""
        return self.run("jwt", "mint", "-spiffeID", self.id(path), "-audience", audience).strip()

    def register(self, parent: str, path: str) -> None:
        """Processes with our uid, below the agent *parent*, are the workload *path*."""
        names = ("-parentID", parent, "-spiffeID", self.id(path))
        self.run("entry", "create", *names, "-selector", f"unix:uid:{os.getuid()}")

    # --- the key that signs JWT-SVIDs ---

    def active_key(self) -> str:
        return str(self.answer("localauthority", "jwt", "show")["active"]["authority_id"])

    def rotate_key(self) -> str:
        """From now on another key signs; the one before, whose id this gives, stays in the bundle."""
        old = self.active_key()
        prepared = self.answer("localauthority", "jwt", "prepare")["prepared_authority"]["authority_id"]
        self.run("localauthority", "jwt", "activate", "-authorityID", prepared)
        return old

    def taint_key(self, key: str) -> None:
        """Agents drop what *key* has signed, when they next ask."""
        self.run("localauthority", "jwt", "taint", "-authorityID", key)

    def revoke_key(self, key: str) -> None:
        self.run("localauthority", "jwt", "revoke", "-authorityID", key)


@dataclass(frozen=True)
class SpireAgent:
    folder: Path

    @property
    def endpoint(self) -> str:
        """For ``SPIFFE_ENDPOINT_SOCKET``."""
        return f"unix://{self._socket}"

    @property
    def _socket(self) -> Path:
        return self.folder / "agent.sock"

    def fetch_jwt(self, audience: str) -> str:
        words = ("api", "fetch", "jwt", "-audience", audience, "-output", "json", "-socketPath", self._socket)
        svids = json.loads(_run("spire-agent", *words))[0]["svids"]
        return str(svids[0]["svid"])

    def has_identity(self) -> bool:
        return _succeeds("spire-agent", "api", "fetch", "x509", "-silent", "-socketPath", self._socket)

    def write_x509(self, folder: Path) -> tuple[Path, Path, Path]:
        """The certificate, its key and the authorities of the trust domain, as files."""
        folder.mkdir()
        _run("spire-agent", "api", "fetch", "x509", "-write", folder, "-silent", "-socketPath", self._socket)
        return folder / "svid.0.pem", folder / "svid.0.key", folder / "bundle.0.pem"


class Spire:
    """Where servers and agents run; the folder is a short one, for sockets lie in it."""

    def __init__(self, ca: trustme.CA) -> None:
        lacking = not_built(lambda module: module == SPIRE)
        if lacking:
            missing(*lacking, "`make interop` builds them")
        self._ca = ca
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with self._stack as stack:
            self.folder = Path(tempfile.mkdtemp(prefix="ostiary-spire-", dir="/tmp"))
            stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
            self._database: PostgresServer = stack.enter_context(running())
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._stack.__exit__(kind, error, trace)

    @contextmanager
    def server(self, domain: str, *, name: str = "") -> Iterator[SpireServer]:
        """*name* tells servers of one trust domain apart, which know nothing of each other."""
        name = name or domain
        folder = self._new_folder(name)
        leaf = self._ca.issue_cert("localhost", "127.0.0.1")
        (folder / "endpoint.pem").write_bytes(b"".join(pem.bytes() for pem in leaf.cert_chain_pems))
        (folder / "endpoint.key").write_bytes(leaf.private_key_pem.bytes())
        database = name.replace(".", "_").replace("-", "_")
        self._database.sql(f"CREATE DATABASE {database}", database="postgres")
        # Over the Unix socket, where nobody is asked for a password.
        place = f"host={self._database.folder} port={self._database.port} user=postgres sslmode=disable"
        port, bundle_port = free_port(), free_port()
        config = _SERVER.format(
            domain=domain,
            folder=folder,
            port=port,
            bundle_port=bundle_port,
            database=f"{place} dbname={database}",
        )
        server = SpireServer(domain, folder, port, f"https://localhost:{bundle_port}/")
        with self._process("spire-server", folder, config) as process:
            health = ("healthcheck", "-socketPath", folder / "server.sock")
            process.wait_until(lambda: _succeeds("spire-server", *health))
            yield server

    @contextmanager
    def agent(self, server: SpireServer, workload: str = "") -> Iterator[SpireAgent]:
        """An agent; with *workload*, the path of a SPIFFE ID, the processes of the tests have that identity."""
        token = server.answer("token", "generate")["value"]
        if workload:
            # Before it starts: what an agent finds on its first question it need not wait for.
            server.register(server.id(f"/spire/agent/join_token/{token}"), workload)
        folder = self._new_folder(f"agent-{token[:8]}")
        (folder / "bootstrap.pem").write_text(server.run("bundle", "show"))
        config = _AGENT.format(domain=server.domain, port=server.port, folder=folder, join_token=token)
        agent = SpireAgent(folder)
        with self._process("spire-agent", folder, config) as process:
            health = ("healthcheck", "-socketPath", folder / "agent.sock")
            process.wait_until(lambda: _succeeds("spire-agent", *health))
            if workload:
                process.wait_until(agent.has_identity)
            yield agent

    def _process(self, program: str, folder: Path, config: str) -> Server:
        (folder / "config.conf").write_text(config)
        command: list[str | Path] = [spire(program), "run", "-config", folder / "config.conf"]
        return Server(command, log=folder / "log")

    def _new_folder(self, name: str) -> Path:
        folder = self.folder / name
        folder.mkdir(mode=0o700)
        return folder
