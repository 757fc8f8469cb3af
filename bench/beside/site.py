"""What all candidates of a run share: a folder, a backend, and certificates if both sides speak TLS."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trustme

from bench.peers import LOAD_CORE, MEASURED_CORE, Peer, free_port, nginx_command, started

NAME = "localhost"
KIBIBYTE = "x" * 1024


@dataclass(frozen=True, slots=True)
class Certificates:
    """One certificate for all servers, and the authority that they and the proxies trust."""

    authority: Path
    chain: Path
    key: Path
    # Chain and key in one file, as HAProxy wants them.
    both: Path


@dataclass(frozen=True, slots=True)
class Candidate:
    """What is measured: where it listens, and all processes that do its work."""

    name: str
    port: int
    processes: tuple[Peer, ...]
    secure: bool = False
    # What the load sends to it; most have the requests of everybody.
    requests: str = ""
    # What it knows runs out while others are measured, so that it is asked for a second right before each pair.
    forgets: bool = False

    @property
    def url(self) -> str:
        return f"{'https' if self.secure else 'http'}://127.0.0.1:{self.port}/"

    def cpu_seconds(self) -> float:
        return sum(process.cpu_seconds() for process in self.processes)


@dataclass(frozen=True, slots=True)
class Site:
    folder: Path
    upstream: int
    backend: Peer
    certificates: Certificates | None

    @property
    def scheme(self) -> str:
        return "https" if self.certificates else "http"

    @contextmanager
    def candidate(
        self, name: str, command: list[str], port: int, *others: Peer, cwd: Path | None = None, requests: str = ""
    ) -> Iterator[Candidate]:
        """*command* on the core of what is measured. What *others* do meanwhile counts as its work."""
        with started(command, core=MEASURED_CORE, port=port, cwd=cwd or self.folder) as process:
            processes = (Peer(name, port, process.pid), *others)
            yield Candidate(name, port, processes, secure=bool(self.certificates), requests=requests)


@contextmanager
def site(folder: Path, *, secure: bool, locations: str = "") -> Iterator[Site]:
    """A backend in *folder*, which answers with a kilobyte where *locations*, of nginx, say nothing else."""
    certificates = make_certificates(folder) if secure else None
    port = free_port()
    answer = f'location / {{ default_type application/json; return 200 "{KIBIBYTE}"; }}'
    server = f"client_max_body_size 0; {nginx_listen(port, certificates)} {locations or answer}"
    command = nginx_command(folder, "backend", f"server {{ {server} }}")
    with started(command, core=LOAD_CORE, port=port, cwd=folder) as process:
        yield Site(folder, port, Peer("backend", port, process.pid), certificates)


def nginx_listen(port: int, certificates: Certificates | None) -> str:
    """The directives of nginx with which a server listens."""
    if certificates is None:
        return f"listen 127.0.0.1:{port} backlog=2048;"
    files = f"ssl_certificate {certificates.chain}; ssl_certificate_key {certificates.key};"
    return f"listen 127.0.0.1:{port} ssl backlog=2048; ssl_protocols TLSv1.3; {files}"


def make_certificates(folder: Path) -> Certificates:
    authority = trustme.CA()
    leaf = authority.issue_cert(NAME, "127.0.0.1")
    made = Certificates(folder / "ca.pem", folder / "server.pem", folder / "server.key", folder / "server-both.pem")
    authority.cert_pem.write_to_path(str(made.authority))
    made.chain.write_bytes(b"".join(pem.bytes() for pem in leaf.cert_chain_pems))
    made.key.write_bytes(leaf.private_key_pem.bytes())
    made.both.write_bytes(leaf.private_key_and_cert_chain_pem.bytes())
    return made
