"""kube-rbac-proxy, the peer of the gateway in Go: it checks tokens and permissions before one upstream.

It asks an API server about tokens and permissions, some ten times a second at most, and remembers the answers. Here a
small server answers both with yes, and every request asks for the same permission, so that all that it is asked about
is known soon: `warm_up` waits for that. The program is built from Go modules by ``scripts/components bench``; where
that cannot be done, its rows are left out.
"""

from __future__ import annotations

import itertools
import json
import os
import ssl
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from bench.beside.site import Certificates
from bench.peers import MEASURED_CORE, Peer, free_port, serving, started

PROGRAM = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "ostiary-bench" / "kube-rbac-proxy-0.19.1"
_ANSWERS = {
    "TokenReview": {"authenticated": True, "user": {"username": "user", "groups": ["readers", "staff"]}},
    "SubjectAccessReview": {"allowed": True},
}

_CONFIG = {"authorization": {"resourceAttributes": {"namespace": "team-1", "resource": "pods"}}}


@contextmanager
def kube_rbac_proxy(folder: Path, upstream: int, certificates: Certificates | None = None) -> Iterator[list[Peer]]:
    """It alone, or nothing where it could not be built. With *certificates* it speaks TLS on both sides."""
    if not PROGRAM.exists():
        yield []
        return
    home = folder / "kube-rbac-proxy"
    home.mkdir()
    port = free_port()
    with serving(_Reviews) as api_server:
        (home / "kubeconfig").write_text(json.dumps(_kubeconfig(api_server)))
        (home / "config.json").write_text(json.dumps(_CONFIG))
        command = [
            str(PROGRAM),
            f"--kubeconfig={home / 'kubeconfig'}",
            f"--config-file={home / 'config.json'}",
            *_sides(port, upstream, certificates),
        ]
        with started(command, core=MEASURED_CORE, port=port, cwd=home) as process:
            yield [Peer("kube-rbac-proxy", port, process.pid)]


def _sides(port: int, upstream: int, certificates: Certificates | None) -> list[str]:
    if certificates is None:
        return [f"--insecure-listen-address=127.0.0.1:{port}", f"--upstream=http://127.0.0.1:{upstream}/"]
    return [
        f"--secure-listen-address=127.0.0.1:{port}",
        f"--tls-cert-file={certificates.chain}",
        f"--tls-private-key-file={certificates.key}",
        f"--upstream=https://127.0.0.1:{upstream}/",
        f"--upstream-ca-file={certificates.authority}",
    ]


def warm_up(
    peer: Peer, tokens: Iterable[str], certificates: Certificates | None = None, *, methods: Sequence[str] = ("GET",)
) -> None:
    """Present each token once with each method: from then on token and permission are known."""
    url, context = f"http://127.0.0.1:{peer.port}/", None
    if certificates:
        url, context = f"https://127.0.0.1:{peer.port}/", ssl.create_default_context(cafile=certificates.authority)
    for token, method in itertools.product(tokens, methods):
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"}, method=method)
        with urllib.request.urlopen(request, timeout=60, context=context) as answer:
            answer.read()


class _Reviews(BaseHTTPRequestHandler):
    """Every token is a user's, and every user may."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body = json.dumps({**review, "status": _ANSWERS[review["kind"]]}).encode()
        self.send_response(201)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *values: object) -> None: ...


def _kubeconfig(port: int) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {}}],
    }
