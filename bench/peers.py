"""The proxies that the gateway is measured against, each started on a core of its own and stopped afterwards."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

# The load and the backend share one core, so that what is measured has the other to itself.
LOAD_CORE, MEASURED_CORE = "0", "1"
BODY = "x" * 1024
# Behind valgrind, on a busy machine, a start takes a minute.
START_SECONDS = 180.0


@dataclass(frozen=True, slots=True)
class Peer:
    """A running candidate: where it listens, and the processes whose time counts."""

    name: str
    port: int
    pid: int

    def cpu_seconds(self) -> float:
        """What the scheduler gave to all its threads and children, so far."""
        return sum(_run_time(pid) for pid in _family(self.pid))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def started(command: list[str], *, core: str, port: int, cwd: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process on one core, from when it listens until the end of the block."""
    with (cwd / f"{Path(command[0]).name}-{port}.log").open("wb") as log:
        process = subprocess.Popen(["taskset", "-c", core, *command], cwd=cwd, stdout=log, stderr=log)
        try:
            _wait_for(port, process)
            yield process
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    """A server in a thread of this process, for what a peer asks once; gives its port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            probe.settimeout(0.2)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError(f"{process.args!r} does not listen")


@contextmanager
def backend(folder: Path) -> Iterator[int]:
    """nginx, answering every path with a kilobyte."""
    port = free_port()
    server = f'location / {{ default_type application/json; return 200 "{BODY}"; }}'
    with started(_nginx(folder, "backend", port, server), core=LOAD_CORE, port=port, cwd=folder):
        yield port


def uvicorn_command(app: str, port: int) -> list[str]:
    """How to start uvicorn as quick as it gets: no log of requests, and no headers that nobody asked for."""
    quick = ("--no-access-log", "--no-server-header", "--no-date-header", "--no-proxy-headers")
    return [sys.executable, "-m", "uvicorn", app, "--port", str(port), "--log-level", "error", *quick]


@contextmanager
def proxies(folder: Path, upstream: int) -> Iterator[list[Peer]]:
    """Every proxy that is installed, without any authentication: the limit, not the competition."""
    with ExitStack() as stack:
        found = [stack.enter_context(plain_nginx(folder, upstream))]
        if shutil.which("haproxy"):
            found.append(stack.enter_context(_plain_haproxy(folder, upstream)))
        if (envoy := Path(sys.executable).with_name("envoy")).exists():
            found.append(stack.enter_context(_plain_envoy(folder, upstream, str(envoy))))
        yield found


@contextmanager
def plain_nginx(folder: Path, upstream: int) -> Iterator[Peer]:
    port = free_port()
    before = f"upstream b {{ server 127.0.0.1:{upstream}; keepalive 256; keepalive_requests 1000000000; }}"
    server = 'location / { proxy_pass http://b; proxy_http_version 1.1; proxy_set_header Connection ""; }'
    command = _nginx(folder, "nginx", port, server, before=before)
    with started(command, core=MEASURED_CORE, port=port, cwd=folder) as process:
        yield Peer("nginx", port, process.pid)


def _nginx(folder: Path, name: str, port: int, server: str, *, before: str = "") -> list[str]:
    return nginx_command(folder, name, f"{before}\nserver {{ listen 127.0.0.1:{port} backlog=2048; {server} }}")


def nginx_command(folder: Path, name: str, servers: str, *, modules: str = "") -> list[str]:
    """How to start nginx with these *servers*, in a folder of its own."""
    home = folder / name
    home.mkdir(exist_ok=True)
    temporary = " ".join(f"{kind}_temp_path {home};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    config = home / "nginx.conf"
    config.write_text(
        f"{modules} daemon off; worker_processes 1; pid {home}/pid; error_log {home}/error.log;\n"
        "events { worker_connections 16384; }\n"
        f"http {{ access_log off; keepalive_requests 1000000000; {temporary} {servers} }}\n"
    )
    return ["nginx", "-c", str(config)]


@contextmanager
def _plain_haproxy(folder: Path, upstream: int) -> Iterator[Peer]:
    port = free_port()
    config = folder / "haproxy.cfg"
    config.write_text(
        "global\n  nbthread 1\n  maxconn 4096\n"
        "defaults\n  mode http\n  timeout client 60s\n  timeout server 60s\n  timeout connect 5s\n"
        "  http-reuse always\n"
        f"frontend f\n  bind 127.0.0.1:{port}\n  default_backend b\n"
        f"backend b\n  server s 127.0.0.1:{upstream}\n"
    )
    command = ["haproxy", "-db", "-f", str(config)]
    with started(command, core=MEASURED_CORE, port=port, cwd=folder) as process:
        yield Peer("haproxy", port, process.pid)


@contextmanager
def _plain_envoy(folder: Path, upstream: int, envoy: str) -> Iterator[Peer]:
    port = free_port()
    config = folder / "envoy.json"
    config.write_text(json.dumps(envoy_config(port, upstream)))
    command = [envoy, "-c", str(config), "--concurrency", "1", "--log-level", "error", "--use-dynamic-base-id"]
    with started(command, core=MEASURED_CORE, port=port, cwd=folder) as process:
        yield Peer("Envoy", port, process.pid)


def envoy_config(port: int, upstream: int) -> dict[str, object]:
    manager = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
    router = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"
    route = {"match": {"prefix": "/"}, "route": {"cluster": "b"}}
    chain = {
        "name": "envoy.filters.network.http_connection_manager",
        "typed_config": {
            "@type": manager,
            "stat_prefix": "f",
            "route_config": {"virtual_hosts": [{"name": "b", "domains": ["*"], "routes": [route]}]},
            "http_filters": [{"name": "envoy.filters.http.router", "typed_config": {"@type": router}}],
        },
    }
    listener = {"address": _address(port), "filter_chains": [{"filters": [chain]}]}
    endpoint = {"lb_endpoints": [{"endpoint": {"address": _address(upstream)}}]}
    cluster = {
        "name": "b",
        "type": "STATIC",
        "connect_timeout": "5s",
        "load_assignment": {"cluster_name": "b", "endpoints": [endpoint]},
    }
    return {"static_resources": {"listeners": [listener], "clusters": [cluster]}}


def _address(port: int) -> dict[str, object]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def _family(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    try:
        return [pid, *(one for child in children.read_text().split() for one in _family(int(child)))]
    except FileNotFoundError:
        return []


def _run_time(pid: int) -> float:
    total = 0.0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            total += int(path.read_text().split()[0]) / 1e9
        except FileNotFoundError:
            continue
    return total
