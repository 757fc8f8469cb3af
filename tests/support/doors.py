"""Real proxies that ask a gateway, with what ``ostiary-gateway door`` prints, before an upstream that echoes.

    with EchoUpstream() as echo, doors(folder, gateway, echo) as proxies:
        answer = proxies["nginx"].send(b"GET /x HTTP/1.1\\r\\n...")

Bytes go out exactly as a test writes them, on a connection that is kept: a client library would tidy them.
"""

from __future__ import annotations

import getpass
import io
import json
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ostiary_gateway.cli import main
from ostiary_gateway.cli.proxy_config.command import SPOE_FILE
from ostiary_gateway.cli.proxy_config.nginx import KEY_SCRIPT
from tests.support.gateway import SECONDS
from tests.support.socket_server import SocketServer

VENV = Path(sys.executable).parent
_NGINX_MODULES = Path("/usr/lib/nginx/modules")
# What `--token-hash` needs, of Debian's libnginx-mod-http-js and libnginx-mod-http-set-misc.
TOKEN_HASH_MODULES = {
    "njs": (_NGINX_MODULES / "ngx_http_js_module.so",),
    "set-misc": (_NGINX_MODULES / "ndk_http_module.so", _NGINX_MODULES / "ngx_http_set_misc_module.so"),
}
# The host that the upstream of every test has.
HOST = "shop.example"


@dataclass(frozen=True)
class Reply:
    """What a client got."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    def json(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.body)
        return document


class Client:
    """One connection to a port, made anew when the other side has ended it."""

    def __init__(self, port: int, trust: ssl.SSLContext | None = None, *, address: str = "127.0.0.1") -> None:
        self.port, self._trust, self._address = port, trust, address
        self._socket: socket.socket | None = None
        self._data = b""

    def send(self, request: bytes, *, head_only: bool = False) -> Reply:
        """The reply to *request*; once more on a new connection if the kept one turns out to be ended."""
        if self._socket is not None:
            try:
                return self._exchange(request, head_only)
            except (ConnectionError, EOFError, ssl.SSLError):
                self.close()
        return self._exchange(request, head_only)

    def _exchange(self, request: bytes, head_only: bool) -> Reply:
        if self._socket is None:
            self._socket, self._data = socket.create_connection((self._address, self.port), SECONDS), b""
            if self._trust is not None:
                self._socket = self._trust.wrap_socket(self._socket, server_hostname="localhost")
        self._socket.sendall(request)
        version, status, headers = self._head()
        while status == 100:
            version, status, headers = self._head()
        lower = {name.lower(): value for name, value in headers}
        body = b""
        if head_only or status in (101, 204, 304):
            pass
        elif "chunked" in lower.get("transfer-encoding", ""):
            body = self._chunks()
        elif "content-length" in lower:
            body = self._take(int(lower["content-length"]))
        else:
            body = self._rest()
        if status == 101 or version == "HTTP/1.0" or "close" in lower.get("connection", "").lower():
            self.close()
        return Reply(status, tuple(headers), body)

    def _head(self) -> tuple[str, int, list[tuple[str, str]]]:
        while b"\r\n\r\n" not in self._data:
            self._read()
        head, _, self._data = self._data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        pairs = [line.partition(":") for line in lines]
        version, status, *_ = first.split()
        return version, int(status), [(name, value.strip()) for name, _, value in pairs]

    def _chunks(self) -> bytes:
        body = b""
        while True:
            while b"\r\n" not in self._data:
                self._read()
            size, _, self._data = self._data.partition(b"\r\n")
            part = self._take(int(size, 16) + 2)[:-2]
            if not part:
                return body
            body += part

    def _take(self, size: int) -> bytes:
        while len(self._data) < size:
            self._read()
        taken, self._data = self._data[:size], self._data[size:]
        return taken

    def _rest(self) -> bytes:
        try:
            while True:
                self._read()
        except EOFError:
            rest, self._data = self._data, b""
            self.close()
            return rest

    def _read(self) -> None:
        assert self._socket is not None
        data = self._socket.recv(65536)
        if not data:
            raise EOFError
        self._data += data

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None


class EchoUpstream(SocketServer):
    """Answers every request with what it got, as JSON, and keeps what came with the header ``X-Case``."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        super().__init__(host)
        self.seen: dict[str, dict[str, Any]] = {}

    def serve(self, connection: socket.socket) -> None:
        # A body that ends in its middle is no request: the proxy was sent a broken one, and hangs up. One that is ended
        # resets its connections. After an ambiguous body, what follows may be no request either.
        with connection, connection.makefile("rb") as reader, suppress(EOFError, ConnectionError, ValueError):
            while (line := reader.readline()) not in (b"", b"\r\n"):
                method, target, _ = line.decode("latin-1").split(" ", 2)
                headers = _read_lines(reader)
                body, trailers = _read_body(reader, {name.strip().lower(): value for name, value in headers})
                # To the programs behind many servers a trailer is a header like any other.
                said = {"method": method, "target": target, "headers": [*headers, *trailers]}
                case = next((value for name, value in headers if name.lower() == "x-case"), "")
                self.seen[case] = {**said, "body": body}
                answer = json.dumps(said).encode()
                head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(answer)
                try:
                    connection.sendall(head if method == "HEAD" else head + answer)
                except OSError:
                    return


def _read_lines(reader: Any) -> list[tuple[str, str]]:
    """Headers, or trailers, to the empty line at their end."""
    headers = []
    while (line := reader.readline()) not in (b"", b"\r\n"):
        name, _, value = line.decode("latin-1").partition(":")
        headers.append((name, value.strip()))
    return headers


def _read_body(reader: Any, headers: Mapping[str, str]) -> tuple[bytes, list[tuple[str, str]]]:
    """The body, and its trailers. Lenient, so that a request which a proxy let through inside of another is seen."""
    if "chunked" not in headers.get("transfer-encoding", "").lower():
        length = headers.get("content-length", "")
        return reader.read(int(length) if length.isdigit() else 0), []
    body = b""
    while size := _chunk_size(reader.readline()):
        body += reader.read(size + 2)[:-2]
    return body, _read_lines(reader)


def _chunk_size(line: bytes) -> int:
    if not line:
        raise EOFError
    return int(line, 16)


class FakeGateway(SocketServer):
    """Answers every question with the same bytes; while there are none, it says nothing, and then hangs up."""

    UNAUTHORIZED = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"

    def __init__(self) -> None:
        super().__init__()
        self.answer: bytes | None = self.UNAUTHORIZED
        self.asked, self.go_on = threading.Event(), threading.Event()

    def serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as reader, suppress(OSError):
            while reader.readline():
                while reader.readline() not in (b"", b"\r\n"):
                    pass
                self.asked.set()
                if self.answer is None:
                    self.go_on.wait(SECONDS)
                    return
                connection.sendall(self.answer)
                if self.answer is not self.UNAUTHORIZED:
                    return


# --- the proxies ---


def printed(proxy: str, config: Path, *options: str) -> str:
    """What ``ostiary-gateway door`` prints."""
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(io.StringIO()) as errors:
        code = main(["door", proxy, "--config", str(config), *options])
    assert code == 0, errors.getvalue()
    return out.getvalue()


def nginx(folder: Path, text: str) -> list[str]:
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "ostiary.conf").write_text(text)
    used: tuple[Path, ...] = ()
    if "js_import" in text:
        (folder / "ostiary.js").write_text(KEY_SCRIPT)
        used = TOKEN_HASH_MODULES["njs"]
    elif "set_sha1" in text:
        used = TOKEN_HASH_MODULES["set-misc"]
    modules = "".join(f"load_module {module};" for module in used)
    (folder / "nginx.conf").write_text(
        # As who runs the tests: another user could not write bodies to a folder of theirs.
        f"{modules} user {getpass.getuser()};\n"
        f"daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/errors;\n"
        f"events {{}}\nhttp {{ access_log off; {temporary}\ninclude {folder}/ostiary.conf; }}\n"
    )
    return [shutil.which("nginx") or "nginx", "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", "stderr"]


def traefik(folder: Path, text: str) -> list[str]:
    file = folder / "ostiary.yaml"
    file.write_text(text)
    # As the printed configuration says.
    words = " ".join(line.strip("# \\") for line in text.splitlines() if line.startswith("#     ")).split()
    assert (words[0], words[-1]) == ("traefik", "--providers.file.filename=ostiary.yaml")
    return [str(VENV / "traefik"), *words[1:-1], f"--providers.file.filename={file}"]


def caddy(folder: Path, text: str) -> list[str]:
    file = folder / "Caddyfile"
    file.write_text(text)
    return [str(VENV / "caddy"), "run", "--config", str(file)]


def envoy(folder: Path, text: str) -> list[str]:
    file = folder / "envoy.yaml"
    file.write_text(text)
    return [str(VENV / "envoy"), "-c", str(file), "--concurrency", "1", "--use-dynamic-base-id", "-l", "warning"]


# Between the two files of HAProxy, where they are one text.
SPOE_FOLLOWS = "\n# === the file of the SPOE engine ===\n"


def printed_haproxy(config: Path, *options: str) -> str:
    """Both files of HAProxy, as one text."""
    return SPOE_FOLLOWS.join((printed("haproxy", config, *options), printed("haproxy", config, *options, "--spoe")))


def haproxy(folder: Path, text: str) -> list[str]:
    configuration, _, engine = text.partition(SPOE_FOLLOWS)
    (folder / "spoe.conf").write_text(engine)
    (folder / "haproxy.cfg").write_text(configuration.replace(SPOE_FILE, str(folder / "spoe.conf")))
    return [shutil.which("haproxy") or "haproxy", "-db", "-f", str(folder / "haproxy.cfg")]


COMMANDS = {
    "nginx": nginx,
    "traefik": traefik,
    "caddy": caddy,
    "envoy": envoy,
    "envoy-grpc": envoy,
    "gateway-api": envoy,
    "haproxy": haproxy,
}


@contextmanager
def running(
    proxy: str, folder: Path, text: str, port: int, *, host: str = HOST, ready: int = 401, address: str = "127.0.0.1"
) -> Iterator[Client]:
    """A proxy with the printed configuration *text*, which says that it listens at *port* of *address*, before *host*.

    It is *ready* when it answers a request without a token with this status.
    """
    folder.mkdir(parents=True)
    command = COMMANDS[proxy](folder, text)
    home = {"HOME": str(folder), "PATH": "/usr/sbin:/usr/bin:/bin", "XDG_DATA_HOME": str(folder)}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=home, stdout=log, stderr=log)
    try:
        client = Client(port, address=address)
        _wait_for(client, process, folder / "log", host, ready)
        yield client
        client.close()
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(client: Client, process: subprocess.Popen[bytes], log: Path, host: str, ready: int) -> None:
    """A proxy listens before it has read its routes, or has found the gateway."""
    pause, reply = threading.Event(), None
    for _ in range(int(SECONDS / 0.05)):
        try:
            reply = client.send(f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            if reply.status == ready:
                return
        except (OSError, EOFError):
            client.close()
        if process.poll() is not None:
            break
        pause.wait(0.05)
    told = "".join(file.read_text() for file in (log, log.with_name("errors")) if file.exists())
    raise AssertionError(f"{process.args!r} is not ready: {reply} {told[-2000:]}")
