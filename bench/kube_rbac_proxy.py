"""kube-rbac-proxy, the peer of the gateway in Go: it checks tokens and permissions before one upstream.

It asks an API server about tokens and permissions, some ten times a second at most, and remembers the answers. Here a
small server answers both with yes, and every request asks for the same permission, so that all that it is asked about
is known soon: `warm_up` waits for that. The program is built from Go modules by ``scripts/components bench``; where
that cannot be done, its rows are left out.
"""

from __future__ import annotations

import json
import os
import threading
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from bench.peers import MEASURED_CORE, Peer, free_port, started

PROGRAM = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "ostiary-bench" / "kube-rbac-proxy-0.19.1"
_ANSWERS = {
    "TokenReview": {"authenticated": True, "user": {"username": "user", "groups": ["readers", "staff"]}},
    "SubjectAccessReview": {"allowed": True},
}

_CONFIG = {"authorization": {"resourceAttributes": {"namespace": "team-1", "resource": "pods"}}}


@contextmanager
def kube_rbac_proxy(folder: Path, upstream: int) -> Iterator[list[Peer]]:
    """It alone, or nothing where it could not be built."""
    if not PROGRAM.exists():
        yield []
        return
    home = folder / "kube-rbac-proxy"
    home.mkdir()
    port = free_port()
    with _api_server() as api_server:
        (home / "kubeconfig").write_text(json.dumps(_kubeconfig(api_server)))
        (home / "config.json").write_text(json.dumps(_CONFIG))
        command = [
            str(PROGRAM),
            f"--insecure-listen-address=127.0.0.1:{port}",
            f"--upstream=http://127.0.0.1:{upstream}/",
            f"--kubeconfig={home / 'kubeconfig'}",
            f"--config-file={home / 'config.json'}",
        ]
        with started(command, core=MEASURED_CORE, port=port, cwd=home) as process:
            yield [Peer("kube-rbac-proxy", port, process.pid)]


def warm_up(peer: Peer, tokens: Iterable[str]) -> None:
    """Present each token once: from then on it is known."""
    for token in tokens:
        request = urllib.request.Request(f"http://127.0.0.1:{peer.port}/", headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()


@contextmanager
def _api_server() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Reviews)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


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
