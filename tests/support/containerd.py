"""A real containerd on a socket of its own: its CRI, which the kubelet asks to pull, and ctr.

No container is run: images are pulled with the snapshotter that needs nothing of the kernel.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

READY = "containerd successfully booted"
SECONDS = 60
_CONFIG = """\
version = 2
root = "{folder}/root"
state = "{folder}/state"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.internal.v1.opt", "io.containerd.internal.v1.tracing",
]
[grpc]
address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
disable_tcp_service = true
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native"
[plugins."io.containerd.grpc.v1.cri".registry]
config_path = "{hosts_dir}"
"""


@dataclass(frozen=True)
class Containerd:
    socket: str
    hosts_dir: Path

    def pull(self, image: str, username: str, password: str, *, server: str = "") -> str:
        """Pull as the kubelet asks for it; the error, or nothing. The kubelet leaves *server* empty."""
        auth = _field(1, username) + _field(2, password) + (_field(4, server) if server else b"")
        request = _field(1, _field(1, image)) + _field(2, auth)
        with grpc.insecure_channel(f"unix:{self.socket}") as channel:
            try:
                channel.unary_unary("/runtime.v1.ImageService/PullImage")(request, timeout=SECONDS)
            except grpc.RpcError as error:
                return str(error.details())
        return ""

    def fetch(self, image: str, login: str) -> subprocess.CompletedProcess[str]:
        """The same by ctr, which sends *login* to every host."""
        command = ["ctr", "-a", self.socket, "content", "fetch", "--hosts-dir", str(self.hosts_dir), "-u", login, image]
        return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)


@contextmanager
def running_containerd(folder: Path, hosts_dir: Path) -> Iterator[Containerd]:
    folder.mkdir()
    # The path of a socket is short.
    socket = str(folder / "s")
    config = folder / "config.toml"
    config.write_text(_CONFIG.format(folder=folder, socket=socket, hosts_dir=hosts_dir))
    process = subprocess.Popen(
        ["containerd", "-c", str(config)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if READY in line:
            break
    else:
        raise AssertionError(f"containerd did not start: {said}")
    reader = threading.Thread(target=process.stderr.read, daemon=True)
    reader.start()
    try:
        yield Containerd(socket, hosts_dir)
    finally:
        process.terminate()
        process.wait(30)
        reader.join(30)
        process.stderr.close()


def _field(number: int, value: str | bytes) -> bytes:
    """A field of a protobuf message that has a length."""
    data = value.encode() if isinstance(value, str) else value
    length = len(data)
    size = b""
    while length > 127:
        size += bytes([length & 127 | 128])
        length >>= 7
    return bytes([number << 3 | 2]) + size + bytes([length]) + data
