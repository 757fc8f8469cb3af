"""Somebody who uses ``ostiary connect``: a home, a folder for the socket, a kubeconfig, and the commands."""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.support.cluster import Cluster
from tests.support.cluster.client import Kubectl

SECONDS = 100
Done = subprocess.CompletedProcess[str]


@dataclass
class ConnectDesk:
    """`run` runs the program as the person does. Contexts of the kubeconfig are called ``test``."""

    home: Path
    runtime: Path
    kubeconfig: Path

    @property
    def environment(self) -> dict[str, str]:
        own = {
            "HOME": str(self.home),
            "XDG_RUNTIME_DIR": str(self.runtime),
            "KUBECONFIG": str(self.kubeconfig),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "NO_COLOR": "1",
        }
        return {**os.environ, **own}

    def run(self, *words: str, **more: str) -> Done:
        return subprocess.run(
            [sys.executable, "-m", "ostiary", *words],
            env={**self.environment, **more},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )

    def connect(self, *words: str) -> Done:
        done = self.run("connect", *(words or ("test",)))
        assert done.returncode == 0, done.stderr
        return done

    def kubectl(self, context: str = "test@ostiary") -> DeskKubectl:
        return DeskKubectl(self, context)

    def token(self, name: str = "test@ostiary") -> str:
        done = self.run("connect", "token", name)
        assert (done.returncode, done.stderr) == (0, "")
        return str(json.loads(done.stdout)["status"]["token"])

    def status(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.connect("--status", "--output", "json").stdout)
        return value

    # --- what is where ---

    @property
    def socket(self) -> Path:
        return self.runtime / "ostiary" / "connect.sock"

    @property
    def state(self) -> Path:
        return self.home / ".local" / "state" / f"ostiary-{os.geteuid()}"

    @property
    def log(self) -> str:
        return (self.state / "connect.log").read_text()

    def cluster_entry(self, name: str = "test@ostiary") -> dict[str, Any]:
        clusters = yaml.safe_load(self.kubeconfig.read_text())["clusters"]
        entry: dict[str, Any] = next(each["cluster"] for each in clusters if each["name"] == name)
        return entry

    def port(self, name: str = "test@ostiary") -> int:
        return int(self.cluster_entry(name)["server"].rpartition(":")[2])

    def send(self, head: str, *, name: str = "test@ostiary", body: bytes = b"") -> bytes:
        """Send bytes to the port as any program of this machine can, and read all that comes back."""
        authority = b64decode(self.cluster_entry(name)["certificate-authority-data"]).decode()
        context = ssl.create_default_context(cadata=authority)
        raw = socket.create_connection(("127.0.0.1", self.port(name)), timeout=SECONDS)
        with context.wrap_socket(raw, server_hostname="127.0.0.1") as connection:
            connection.sendall(head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body)
            answer = b""
            while part := connection.recv(65536):
                answer += part
            return answer

    def get(self, path: str, *lines: str, host: str | None = None, method: str = "GET") -> bytes:
        head = [f"{method} {path} HTTP/1.1", f"Host: {host or f'127.0.0.1:{self.port()}'}", "Connection: close", *lines]
        return self.send("\n".join(head))


class DeskKubectl(Kubectl):
    """The real kubectl, with one context of the desk."""

    def __init__(self, desk: ConnectDesk, context: str) -> None:
        super().__init__(desk.kubeconfig, **desk.environment)
        self._context = context

    def _command(self, args: tuple[str, ...]) -> list[str]:
        command = super()._command(args)
        return [command[0], "--context", self._context, *command[1:]]


@contextmanager
def connect_desk(folder: Path, cluster: Cluster, user: dict[str, Any]) -> Iterator[ConnectDesk]:
    """A desk whose context ``test`` is *user* at *cluster*. Its proxy is ended with the block."""
    home = folder / "home"
    home.mkdir()
    # The path of a socket may have about a hundred bytes, and pytest's folders are longer.
    runtime = Path(tempfile.mkdtemp(prefix="ostiary-"))
    desk = ConnectDesk(home, runtime, cluster.kubeconfig(folder / "config", user))
    try:
        yield desk
    finally:
        desk.run("connect", "--stop")
        shutil.rmtree(runtime)


def certificate_user(cluster: Cluster, folder: Path, username: str = "jane") -> dict[str, Any]:
    """A user of a kubeconfig who has a client certificate in files."""
    certificate = cluster.certificate(username)
    certificate.private_key_pem.write_to_path(str(folder / "key.pem"))
    certificate.cert_chain_pems[0].write_to_path(str(folder / "certificate.pem"))
    return {"client-certificate": str(folder / "certificate.pem"), "client-key": str(folder / "key.pem")}
