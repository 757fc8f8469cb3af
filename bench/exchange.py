"""Token exchange: how many tokens of a platform one core exchanges for tokens of ours, with the keys at hand.

Counted in CPU seconds of the gateway's processes, and the best of several rounds, since the machine that measures is
shared. Everything that an exchange needs is in it, from the bytes of the request to the session in the store and the
audit record.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import tempfile
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256

from bench.idle import _processor_seconds
from bench.pace import pace
from bench.table import Row

EXCHANGES, CONNECTIONS, ROUNDS = 400, 16, pace(12, quick=2)
ISSUER, GATEWAY = "https://token.actions.githubusercontent.com", "https://gateway.example.com"
MAIN = {"ref": "refs/heads/main"}
RULES = [
    *({"match": {"repository": f"acme/other-{number}", **MAIN}, "username": "{repository}"} for number in range(5)),
    {"match": {"repository": "acme/*", **MAIN}, "username": "ci:{repository}", "groups": ["deployers"]},
]
PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


@dataclass(frozen=True, slots=True)
class Signer:
    algorithm: str
    key: PrivateKey

    def jwk(self) -> dict[str, str]:
        numbers = self.key.public_key().public_numbers()
        if isinstance(numbers, rsa.RSAPublicNumbers):
            return {"kty": "RSA", "kid": self.algorithm, "n": _number(numbers.n), "e": _number(numbers.e)}
        point = {"x": _encoded(numbers.x.to_bytes(32, "big")), "y": _encoded(numbers.y.to_bytes(32, "big"))}
        return {"kty": "EC", "crv": "P-256", "kid": self.algorithm, **point}

    def token(self, claims: Mapping[str, object]) -> str:
        header = {"alg": self.algorithm, "typ": "JWT", "kid": self.algorithm}
        signed = ".".join(_encoded(json.dumps(part).encode()) for part in (header, claims))
        return f"{signed}.{_encoded(self._signature(signed.encode()))}"

    def _signature(self, signed: bytes) -> bytes:
        if isinstance(self.key, rsa.RSAPrivateKey):
            return self.key.sign(signed, padding.PKCS1v15(), SHA256())
        r, s = decode_dss_signature(self.key.sign(signed, ec.ECDSA(SHA256())))
        return r.to_bytes(32, "big") + s.to_bytes(32, "big")


def run() -> Iterator[Row]:
    signers = [
        Signer("ES256", ec.generate_private_key(ec.SECP256R1())),
        Signer("RS256", rsa.generate_private_key(65537, 2048)),
    ]
    for store in ({"type": "memory"}, {"type": "sqlite", "path": "tokens.db"}):
        with tempfile.TemporaryDirectory() as name, _serving(Path(name), signers, store) as (pid, port):
            for signer in signers:
                bodies = _bodies(signer, ROUNDS * EXCHANGES)
                each = min(_seconds(pid, port, bodies[n::ROUNDS]) for n in range(ROUNDS)) / EXCHANGES
                what = f"token exchange on one core, {signer.algorithm}, store {store['type']}"
                promised = ">= 1,500/s" if store["type"] == "memory" else "-"
                yield Row(what, f"{1 / each:,.0f}/s ({each * 1e6:.0f} us)", promised)


def _seconds(pid: int, port: int, bodies: list[bytes]) -> float:
    before = _processor_seconds(pid)
    asyncio.run(_exchange(port, bodies))
    return _processor_seconds(pid) - before


def _bodies(signer: Signer, count: int) -> list[bytes]:
    """As many requests, each with a token of its own: what GitHub says of a job."""
    now = int(time.time())
    claims: dict[str, Any] = {
        "iss": ISSUER, "aud": GATEWAY, "iat": now, "nbf": now, "exp": now + 900, "sub": "repo:acme/shop:ref:x",
        "ref": "refs/heads/main", "sha": "3dd65f0c", "repository_owner": "acme", "run_id": "8001", "run_number": "10",
        "actor": "octocat", "workflow": "deploy", "event_name": "push", "ref_type": "branch", "repository_id": "74",
        "job_workflow_ref": "acme/shop/.github/workflows/deploy.yaml@refs/heads/main",
    }  # fmt: skip
    form = {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
    }
    tokens = (
        signer.token({**claims, "jti": f"{signer.algorithm}-{number}", "repository": f"acme/shop-{number % 100}"})
        for number in range(count)
    )
    return [urlencode({**form, "subject_token": token}).encode() for token in tokens]


async def _exchange(port: int, bodies: list[bytes]) -> None:
    turns = iter(bodies)
    await asyncio.gather(*(_one_after_the_other(port, turns) for _ in range(CONNECTIONS)))


async def _one_after_the_other(port: int, bodies: Iterator[bytes]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        b"POST /auth/token HTTP/1.1\r\nHost: gateway.example.com\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    )
    for body in bodies:
        writer.write(b"%sContent-Length: %d\r\n\r\n%s" % (head, len(body), body))
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200"), answer
        length = re.search(rb"content-length: (\d+)", answer.lower())
        assert length is not None
        await reader.readexactly(int(length[1]))
    writer.close()


@contextmanager
def _serving(folder: Path, signers: list[Signer], store: Mapping[str, str]) -> Iterator[tuple[int, int]]:
    config = {
        "apiVersion": "ostiary.dev/v1",
        "kind": "Gateway",
        "externalURL": GATEWAY,
        "listen": {"address": "127.0.0.1:0", "workers": 1},
        "health": {"address": "127.0.0.1:0"},
        "store": dict(store),
        "identity": [{"name": "ci", "type": "workload", "platform": "github", "keysFile": "keys", "rules": RULES}],
        "groups": [{"name": "jobs", "provider": "ci"}],
        "authorization": {"chain": [{"name": "policy", "type": "rbac", "paths": ["policy"]}]},
        "upstreams": [{"name": "api", "server": "http://127.0.0.1:9"}],
        "audit": {"log": {"path": "audit.log"}},
    }
    (folder / "keys").write_text(json.dumps({"keys": [signer.jwk() for signer in signers]}))
    (folder / "policy").mkdir()
    (folder / "policy" / "none.yaml").write_text("")
    (folder / "gateway.yaml").write_text(json.dumps(config))
    command = [sys.executable, "-m", "ostiary_gateway", "serve", "--config", "gateway.yaml"]
    with (folder / "stderr").open("w+") as stderr:
        process = subprocess.Popen(command, cwd=folder, stderr=stderr)
        try:
            yield process.pid, _port(folder / "stderr")
        finally:
            process.terminate()
            process.wait()


def _port(log: Path) -> int:
    while True:
        if serving := re.search(r"serving on http://127\.0\.0\.1:(\d+)", log.read_text()):
            return int(serving[1])
        time.sleep(0.1)


def _number(value: int) -> str:
    return _encoded(value.to_bytes((value.bit_length() + 7) // 8, "big"))


def _encoded(part: bytes) -> str:
    return urlsafe_b64encode(part).rstrip(b"=").decode()
