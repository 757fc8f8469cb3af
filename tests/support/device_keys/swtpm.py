"""A TPM of software in a process of its own, with keys at persistent handles."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.ports import free_port

SIGNS = "fixedtpm|fixedparent|sensitivedataorigin|userwithauth|sign"
PROVIDERS = [
    Path(folder) / "ossl-modules/tpm2.so" for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/lib")
]


@dataclass
class SoftTpm:
    folder: Path
    port: int
    process: subprocess.Popen[bytes] = field(repr=False)

    @property
    def tcti(self) -> str:
        return f"swtpm:port={self.port}"

    @property
    def environ(self) -> dict[str, str]:
        names = {"TPM2TOOLS_TCTI": self.tcti, "TPM2OPENSSL_TCTI": self.tcti, "TSS2_LOG": "all+NONE"}
        return {**os.environ, **names}

    def create(self, handle: str, kind: str, *, password: str = "") -> str:
        """A key at *handle*, made in the TPM; its address."""
        secret = ("-p", password) if password else ()
        self.tool("tpm2_create", "-C", "primary", "-G", kind, *secret, "-u", "k.pub", "-r", "k.priv", "-a", SIGNS)
        return self._keep(handle)

    def import_key(self, handle: str, pem: Path) -> str:
        """The key of a file at *handle*, for a test that must know its bytes."""
        self.tool("tpm2_import", "-C", "primary", "-G", "ecc", "-i", str(pem), "-u", "k.pub", "-r", "k.priv")
        return self._keep(handle)

    def create_file(self, path: Path) -> str:
        command = ("openssl", "genpkey", "-provider", "tpm2", "-provider", "default", "-algorithm", "EC")
        self.tool(*command, "-pkeyopt", "group:P-256", "-out", str(path))
        return f"tpm2:file:{path}"

    def make_primary(self) -> None:
        self.tool("tpm2_createprimary", "-C", "o", "-G", "ecc", "-c", "primary")

    def tool(self, *command: str) -> None:
        done = subprocess.run(command, env=self.environ, cwd=self.folder, capture_output=True, text=True)
        assert done.returncode == 0, f"{command[0]}: {done.stdout}{done.stderr}"
        if command[0].startswith("tpm2_"):
            # It has room for three keys, and no resource manager that would make more.
            subprocess.run(["tpm2_flushcontext", "-t"], env=self.environ, check=True, capture_output=True)

    def _keep(self, handle: str) -> str:
        self.tool("tpm2_load", "-C", "primary", "-u", "k.pub", "-r", "k.priv", "-c", "loaded")
        self.tool("tpm2_evictcontrol", "-C", "o", "-c", "loaded", handle)
        return f"tpm2:handle:{handle}"

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def soft_tpm(folder: Path) -> Iterator[SoftTpm]:
    folder.mkdir(parents=True, exist_ok=True)
    # The control channel has the next port: the library of the tools expects it there.
    port = _two_free_ports()
    command = ["swtpm", "socket", "--tpm2", "--tpmstate", f"dir={folder}", "--flags", "not-need-init,startup-clear"]
    command += ["--server", f"type=tcp,port={port}", "--ctrl", f"type=tcp,port={port + 1}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    tpm = SoftTpm(folder, port, process)
    try:
        _wait_for(port + 1, process)
        tpm.make_primary()
        yield tpm
    finally:
        tpm.stop()


def _two_free_ports() -> int:
    for _ in range(50):
        port = free_port()
        with socket.socket() as second:
            try:
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port
    raise AssertionError("no two free ports side by side")


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(500):
        assert process.poll() is None, "swtpm has ended"
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.01)
    raise AssertionError("swtpm does not listen")
