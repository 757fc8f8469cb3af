"""TLS handshakes, and clients that live for one request: the gateway beside nginx, HAProxy and Envoy.

All speak TLS 1.3 with the same certificate, and forward to the same plain backend over connections that they keep. Each
sample of a candidate is taken right after one of nginx; what counts is the CPU time of the candidate's processes, so
that the client, which is slower than any of them, does not matter.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import trustme

from bench.gateway import gateway
from bench.pace import pace
from bench.peers import LOAD_CORE, MEASURED_CORE, Peer, backend, free_port, nginx_command, started
from bench.table import Row

COUNT, ROUNDS = pace(240, quick=20), pace(5, quick=1)
KEYS = {"ECDSA P-256": trustme.KeyType.ECDSA, "RSA 2048": trustme.KeyType.RSA}


@dataclass(frozen=True, slots=True)
class Certificate:
    """What all candidates present: files with the chain, the key, and both; and the authority that signed it."""

    chain: Path
    key: Path
    both: Path
    authority: Path


@dataclass(frozen=True, slots=True)
class Load:
    """What one kind of client does."""

    name: str
    options: tuple[str, ...]
    promised: str


LOADS = (
    Load("handshake alone, full", ("--no-request",), "-"),
    Load("handshake alone, resumed", ("--no-request", "--resume"), "-"),
    Load("connect, handshake, one GET, close; full", (), "<= 2.5"),
    Load("connect, handshake, one GET, close; resumed", ("--resume",), "<= 2.5"),
)


def run() -> Iterator[Row]:
    if shutil.which("nginx") is None:
        # It is the backend, too.
        yield Row("handshakes and short-lived clients, all rows", "not measured: nginx is not installed")
        return
    for name, kind in KEYS.items():
        with tempfile.TemporaryDirectory() as directory:
            yield from _rows(Path(directory), name, kind)


def _rows(folder: Path, key_name: str, kind: trustme.KeyType) -> Iterator[Row]:
    certificate = _certificate(folder, kind)
    with ExitStack() as stack:
        upstream = stack.enter_context(backend(folder))
        peers, missing = [], []
        for peer_name, start in _PEERS.items():
            peer = stack.enter_context(start(folder, upstream, certificate))
            peers.append(peer) if peer is not None else missing.append(peer_name)
        listen = f"tls: {{certificate: '{certificate.chain}', key: '{certificate.key}'}}"
        peers.append(stack.enter_context(gateway(folder, upstream, listen=listen)))
        for load in LOADS:
            yield from _compare(peers, load, certificate, folder / "gateway" / "targets", key_name)
        for peer_name in missing:
            yield Row(f"{key_name}, all rows of {peer_name} / nginx", f"not measured: {peer_name} is not installed")


def _compare(peers: list[Peer], load: Load, certificate: Certificate, targets: Path, key_name: str) -> Iterator[Row]:
    nginx, *others = peers
    cost: dict[str, list[float]] = {peer.name: [] for peer in peers}
    ratios: dict[str, list[float]] = {peer.name: [] for peer in others}
    for peer in peers:
        _sample(peer, load, certificate, targets)
    for _ in range(ROUNDS):
        for peer in others:
            base, ours = (_sample(each, load, certificate, targets) for each in (nginx, peer))
            cost[nginx.name].append(base)
            cost[peer.name].append(ours)
            ratios[peer.name].append(ours / base)
    least = min(cost[nginx.name])
    yield Row(f"{key_name}, {load.name}: nginx, for one core", f"{1e6 / least:,.0f} / s ({least:.0f} us)")
    for peer in others:
        least = min(cost[peer.name])
        shown = f"{statistics.median(ratios[peer.name]):.2f} ({1e6 / least:,.0f} / s, {least:.0f} us)"
        promised = load.promised if peer.name == "ostiary" else "-"
        yield Row(f"{key_name}, {load.name}: {peer.name} / nginx, CPU", shown, promised)


def _sample(peer: Peer, load: Load, certificate: Certificate, targets: Path) -> float:
    """Microseconds of CPU time that the candidate takes for one connection."""
    words = [str(peer.port), str(certificate.authority), str(targets), "--count", str(COUNT), *load.options]
    command = ["taskset", "-c", LOAD_CORE, sys.executable, "-m", "bench.handshake_load", *words]
    before = peer.cpu_seconds()
    resumed = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    spent = peer.cpu_seconds() - before
    if resumed != (COUNT if "--resume" in load.options else 0):
        raise RuntimeError(f"{peer.name}: {resumed} of {COUNT} connections were resumed")
    return spent / COUNT * 1e6


# --- the candidates ---


def _certificate(folder: Path, kind: trustme.KeyType) -> Certificate:
    authority = trustme.CA(key_type=kind)
    leaf = authority.issue_cert("127.0.0.1", key_type=kind)
    made = Certificate(folder / "tls.crt", folder / "tls.key", folder / "tls.pem", folder / "ca.crt")
    made.chain.write_bytes(leaf.cert_chain_pems[0].bytes())
    leaf.private_key_pem.write_to_path(made.key)
    made.both.write_bytes(made.chain.read_bytes() + made.key.read_bytes())
    authority.cert_pem.write_to_path(made.authority)
    return made


@contextmanager
def _nginx(folder: Path, upstream: int, certificate: Certificate) -> Iterator[Peer | None]:
    port = free_port()
    servers = (
        f"upstream b {{ server 127.0.0.1:{upstream}; keepalive 256; keepalive_requests 1000000000; }}\n"
        f"server {{ listen 127.0.0.1:{port} backlog=2048 ssl; ssl_protocols TLSv1.3;\n"
        f"ssl_certificate {certificate.chain}; ssl_certificate_key {certificate.key};\n"
        'location / { proxy_pass http://b; proxy_http_version 1.1; proxy_set_header Connection ""; } }'
    )
    command = nginx_command(folder, "nginx", servers)
    with started(command, core=MEASURED_CORE, port=port, cwd=folder) as process:
        yield Peer("nginx", port, process.pid)


@contextmanager
def _haproxy(folder: Path, upstream: int, certificate: Certificate) -> Iterator[Peer | None]:
    if shutil.which("haproxy") is None:
        yield None
        return
    port = free_port()
    config = folder / "haproxy.cfg"
    config.write_text(
        "global\n  nbthread 1\n  maxconn 4096\n"
        "defaults\n  mode http\n  timeout client 60s\n  timeout server 60s\n  timeout connect 5s\n"
        "  http-reuse always\n"
        f"frontend f\n  bind 127.0.0.1:{port} ssl crt {certificate.both} ssl-min-ver TLSv1.3\n  default_backend b\n"
        f"backend b\n  server s 127.0.0.1:{upstream}\n"
    )
    with started(["haproxy", "-db", "-f", str(config)], core=MEASURED_CORE, port=port, cwd=folder) as process:
        yield Peer("HAProxy", port, process.pid)


@contextmanager
def _envoy(folder: Path, upstream: int, certificate: Certificate) -> Iterator[Peer | None]:
    program = Path(sys.executable).with_name("envoy")
    if not program.exists():
        yield None
        return
    port = free_port()
    config = folder / "envoy.json"
    config.write_text(json.dumps(_envoy_config(port, upstream, certificate)))
    command = [str(program), "-c", str(config), "--concurrency", "1", "--log-level", "error", "--use-dynamic-base-id"]
    with started(command, core=MEASURED_CORE, port=port, cwd=folder) as process:
        yield Peer("Envoy", port, process.pid)


def _envoy_config(port: int, upstream: int, certificate: Certificate) -> dict[str, object]:
    names = "type.googleapis.com/envoy.extensions"
    chain, key = ({"filename": str(path)} for path in (certificate.chain, certificate.key))
    tls = {
        "@type": f"{names}.transport_sockets.tls.v3.DownstreamTlsContext",
        "common_tls_context": {
            "tls_params": {"tls_minimum_protocol_version": "TLSv1_3"},
            "tls_certificates": [{"certificate_chain": chain, "private_key": key}],
        },
    }
    manager = {
        "@type": f"{names}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "f",
        "route_config": {
            "virtual_hosts": [
                {"name": "b", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "b"}}]}
            ]
        },
        "http_filters": [
            {"name": "envoy.filters.http.router", "typed_config": {"@type": f"{names}.filters.http.router.v3.Router"}}
        ],
    }
    filters = {
        "transport_socket": {"name": "envoy.transport_sockets.tls", "typed_config": tls},
        "filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}],
    }
    endpoint = {"lb_endpoints": [{"endpoint": {"address": _address(upstream)}}]}
    cluster = {
        "name": "b",
        "type": "STATIC",
        "connect_timeout": "5s",
        "load_assignment": {"cluster_name": "b", "endpoints": [endpoint]},
    }
    listeners = [{"address": _address(port), "filter_chains": [filters]}]
    return {"static_resources": {"listeners": listeners, "clusters": [cluster]}}


def _address(port: int) -> dict[str, object]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


Start = Callable[[Path, int, Certificate], AbstractContextManager[Peer | None]]
_PEERS: dict[str, Start] = {"nginx": _nginx, "HAProxy": _haproxy, "Envoy": _envoy}
