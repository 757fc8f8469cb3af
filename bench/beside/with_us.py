"""The gateway itself, on one interpreter or two, and Envoy and HAProxy that ask another one, which has doors."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import yaml

from bench.beside.plain import envoy, envoy_program, haproxy_bind
from bench.beside.site import NAME, Candidate, Site
from bench.gateway import ON_SYSTEM_PYTHON, gateway, system_python
from bench.haproxy import write_config
from bench.peers import Peer, free_port
from ostiary_gateway.cli import main

OURS = "ostiary"
US = (OURS, ON_SYSTEM_PYTHON)
ENVOY_ASKS, HAPROXY_KEEPS = "Envoy with ext_authz to ostiary", "HAProxy with ostiary's decisions"
SECRET = "the-secret-of-the-door"
# As `bench.gateway` calls it.
UPSTREAM = "b"


@dataclass(frozen=True, slots=True)
class OurGateway:
    """`on_system_python` is None if that is the interpreter of the first one. Proxies ask `asked`, with `config`."""

    candidate: Candidate
    on_system_python: Candidate | None
    asked: Peer
    config: Path
    tokens: tuple[str, ...]


@contextmanager
def our_gateway(site: Site, *, role: str, with_doors: bool) -> Iterator[OurGateway]:
    """Gateways that do all of their work, an audit event in a file included.

    One more for proxies to ask is started only *with_doors*: also without a load it takes a moment of the core now and
    then, which shows in latencies.
    """
    (site.folder / "secret").write_text(SECRET)
    python, other = system_python(), None
    start = partial(gateway, site.folder, site.upstream, role=role, certificates=site.certificates)
    with ExitStack() as stack:
        peer = stack.enter_context(start())
        if python:
            other = stack.enter_context(start(name="system", python=python, tokens_of="gateway"))
        asked = peer
        if with_doors:
            asked = stack.enter_context(start(name="doors", extra=_doors(site.folder), tokens_of="gateway"))
        targets = (site.folder / "gateway" / "targets").read_text().splitlines()
        yield OurGateway(
            _candidate(site, OURS, peer),
            None if other is None else _candidate(site, ON_SYSTEM_PYTHON, other),
            asked,
            site.folder / "doors" / "gateway.yaml",
            tuple(sorted({line.split()[0] for line in targets})),
        )


def _candidate(site: Site, name: str, peer: Peer) -> Candidate:
    return Candidate(name, peer.port, (peer,), secure=bool(site.certificates))


def _doors(folder: Path) -> str:
    callers = f"callers: {{tokenFile: {folder}/secret}}"
    asks = f"{{name: asks, proxy: envoy, {callers}}}"
    agent = f'agent: {{address: "127.0.0.1:{free_port()}"}}, decisions: {{socket: {folder}/haproxy.sock}}'
    return f"doors: [{asks}, {{name: keeps, proxy: haproxy, {agent}, {callers}}}]"


def envoy_that_asks(site: Site, ours: OurGateway) -> AbstractContextManager[Candidate] | None:
    """Envoy with what ``ostiary-gateway door envoy`` prints."""
    program = envoy_program()
    if program is None:
        return None
    port, out = free_port(), io.StringIO()
    options = ["--config", str(ours.config), "--door", "asks", "--listen", f"127.0.0.1:{port}"]
    if site.certificates:
        options += ["--ca", str(site.certificates.authority)]
    with redirect_stdout(out), redirect_stderr(io.StringIO()):
        main(["door", "envoy", *options])
    text = out.getvalue()
    if site.certificates:
        # The system's authorities do not know the one of this run.
        text = text.replace("/etc/ssl/certs/ca-certificates.crt", str(site.certificates.authority))
    return envoy(site, ENVOY_ASKS, yaml.safe_load(text), port, program, ours.asked)


def haproxy_with_decisions(site: Site, ours: OurGateway) -> AbstractContextManager[Candidate] | None:
    """HAProxy with what ``ostiary-gateway door haproxy`` prints."""
    if not shutil.which("haproxy"):
        return None
    port, home = free_port(), site.folder / "keeps"
    home.mkdir()
    more = ["--backend-name", f"{UPSTREAM}={NAME}"] if site.certificates else []
    file = write_config(home, ours.config, "keeps", port, more=more)
    if site.certificates:
        listen = f"bind 127.0.0.1:{port}"
        file.write_text(file.read_text().replace(listen, f"{listen} {haproxy_bind(site.certificates)}"))
    return _haproxy(site, file, port, ours.asked)


@contextmanager
def _haproxy(site: Site, file: Path, port: int, asked: Peer) -> Iterator[Candidate]:
    command = ["haproxy", "-db", "-f", str(file)]
    with site.candidate(HAPROXY_KEEPS, command, port, asked, cwd=file.parent) as candidate:
        yield replace(candidate, forgets=True)
