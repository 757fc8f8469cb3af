"""The bytes of a key that is kept elsewhere are in no memory and on no disk of the process that uses it.

The tests know the key: it was made outside and imported. A process makes a request with it, and then waits while all of
its memory is searched. The same search finds the key of a process that reads it from a file.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.conformance.adapters.contract import PODS
from tests.support.apiserver import ApiServer
from tests.support.device_keys.certified import certify
from tests.support.device_keys.softhsm import SoftToken
from tests.support.device_keys.swtpm import SoftTpm
from tests.support.plugins import write_kubeconfig

PROGRAM = """
import sys, ostiary
client = ostiary.connect(sys.argv[1]).httpx()
print(client.get(sys.argv[2]).status_code, flush=True)
sys.stdin.read()
"""
SIGNER = """#!{python}
import base64, json, subprocess, sys
request = json.load(sys.stdin)
if request["kind"] == "PublicKeyRequest":
    subprocess.run(["openssl", "pkey", "-in", {key!r}, "-pubout"], check=True)
else:
    digest = base64.b64decode(request["digest"])
    command = ["openssl", "pkeyutl", "-sign", "-inkey", {key!r}]
    done = subprocess.run(command, input=digest, capture_output=True, check=True)
    print(base64.b64encode(done.stdout).decode())
"""
pytestmark = pytest.mark.needs("softhsm2-util", "swtpm", "tpm2_import", "openssl")


@dataclass(frozen=True)
class KnownKey:
    """A key whose bytes the test knows, in a file that only the devices' own tools read."""

    private: ec.EllipticCurvePrivateKey
    file: Path
    certificate: bytes

    @property
    def forms(self) -> list[bytes]:
        """The number itself, in both orders of bytes, as DER has it, as PEM and as text."""
        number = self.private.private_numbers().private_value
        pem = self.file.read_bytes().splitlines()[1:-1]
        return [number.to_bytes(32, "big"), number.to_bytes(32, "little"), f"{number:064x}".encode(), pem[1]]


@pytest.fixture
def known(ca: trustme.CA, tmp_path: Path) -> KnownKey:
    # One whose number has no zeros in front: its bytes are searched for as they are.
    private = next(key for key in _keys() if key.private_numbers().private_value >> 248)
    file = tmp_path / "vault" / "key.pem"
    file.parent.mkdir()
    encoding = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    file.write_bytes(private.private_bytes(*encoding))
    return KnownKey(private, file, certify(ca, private.public_key(), "alice"))


def _keys() -> Iterator[ec.EllipticCurvePrivateKey]:
    while True:
        yield ec.generate_private_key(ec.SECP256R1())


@contextmanager
def client_that_waits(
    api: ApiServer, ca: trustme.CA, folder: Path, user: dict[str, object], environ: dict[str, str]
) -> Iterator[subprocess.Popen[str]]:
    """A process that has made its request, and has its connection open."""
    api.rules.certificates = {"alice"}
    (folder / "ca.pem").write_bytes(ca.cert_pem.bytes())
    cluster = {"certificate-authority": str(folder / "ca.pem")}
    kubeconfig = write_kubeconfig(folder / "config", server=api.url, user=user, cluster=cluster)
    command = [sys.executable, "-c", PROGRAM, str(kubeconfig), PODS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "200\n"
        yield process
        process.stdin.close()


def in_memory_of(pid: int, forms: list[bytes]) -> bool:
    """Whether one of *forms* is anywhere in the memory of the process."""
    pattern = re.compile(b"|".join(map(re.escape, forms)))
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            addresses, rights = line.split()[:2]
            if not rights.startswith("r") or line.rstrip().endswith(("[vvar]", "[vsyscall]", "[vvar_vclock]")):
                continue
            start, end = (int(part, 16) for part in addresses.split("-"))
            try:
                content = os.pread(memory.fileno(), end - start, start)
            except OSError:
                continue
            if pattern.search(content):
                return True
    return False


def on_disk(folder: Path, forms: list[bytes]) -> list[Path]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return [path for path in files if any(form in path.read_bytes() for form in forms)]


def user_of(known: KnownKey, folder: Path, address: str | None) -> dict[str, object]:
    (folder / "cert.pem").write_bytes(known.certificate)
    if address is None:
        return {"client-certificate": str(folder / "cert.pem"), "client-key": str(known.file)}
    extension = {"name": "ostiary.dev/client-key", "extension": {"key": address}}
    return {"client-certificate": str(folder / "cert.pem"), "extensions": [extension]}


def environment(home: Path, **names: str) -> dict[str, str]:
    return {**os.environ, "HOME": str(home), "TMPDIR": str(home), **names}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Where the client may write: its home, and what it has for temporary files."""
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def test_the_search_finds_a_key_that_was_read_from_a_file(
    api: ApiServer, ca: trustme.CA, known: KnownKey, home: Path
) -> None:
    with client_that_waits(api, ca, home, user_of(known, home, None), environment(home)) as process:
        assert in_memory_of(process.pid, known.forms)


def test_a_process_that_uses_a_key_in_a_tpm_has_none_of_its_bytes(
    api: ApiServer, ca: trustme.CA, known: KnownKey, home: Path, soft_tpm: SoftTpm
) -> None:
    address = soft_tpm.import_key("0x81000010", known.file)
    environ = environment(home, TPM2OPENSSL_TCTI=soft_tpm.tcti)
    with client_that_waits(api, ca, home, user_of(known, home, address), environ) as process:
        assert not in_memory_of(process.pid, known.forms)
    assert on_disk(home, known.forms) == []


def test_a_process_that_uses_a_signing_command_has_none_of_its_bytes(
    api: ApiServer, ca: trustme.CA, known: KnownKey, home: Path
) -> None:
    signer = known.file.parent / "signer"
    signer.write_text(SIGNER.format(python=sys.executable, key=str(known.file)))
    signer.chmod(0o755)
    with client_that_waits(api, ca, home, user_of(known, home, f"exec:{signer}"), environment(home)) as process:
        assert not in_memory_of(process.pid, known.forms)
    assert on_disk(home, known.forms) == []


def test_a_process_that_uses_a_key_in_softhsm_has_none_of_its_bytes_when_it_has_signed(
    api: ApiServer, ca: trustme.CA, known: KnownKey, home: Path, soft_token: SoftToken, tmp_path: Path
) -> None:
    """SoftHSM is a library in the process: while it signs, the key is there. It wipes it, and seals its files."""
    token = replace(soft_token, folder=tmp_path / "token", label="known")
    token.init()
    token.import_key("known", known.file, "0a")
    address = token.address("known", soft_token.folder / "pin")
    environ = environment(home, SOFTHSM2_CONF=token.environ["SOFTHSM2_CONF"])
    with client_that_waits(api, ca, home, user_of(known, home, address), environ) as process:
        assert not in_memory_of(process.pid, known.forms)
    assert on_disk(home, known.forms) == on_disk(token.folder, known.forms) == []
