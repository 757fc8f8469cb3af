"""Real image registries on loopback: Debian's docker-registry with passwords, and with tokens of our own issuer."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import subprocess
import tarfile
import threading
import time
from base64 import b64decode, b64encode, urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tests.support.http_server import HttpServer, Request, Response
from tests.support.ports import free_port

ISSUER, SERVICE = "test-issuer", "test-registry"


class Registry:
    """`address` is what stands before the first slash of an image's name."""

    def __init__(self, folder: Path, auth: dict[str, Any]) -> None:
        folder.mkdir(exist_ok=True)
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        config = {
            "version": 0.1,
            "log": {"level": "info"},
            "storage": {"inmemory": {}},
            "http": {"addr": self.address},
            "auth": auth,
        }
        self._config = folder / "registry.yml"
        self._config.write_text(json.dumps(config))

    @contextmanager
    def running(self) -> Iterator[Registry]:
        command = ["docker-registry", "serve", str(self._config)]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        assert process.stderr is not None
        said = ""
        for line in process.stderr:
            said += line
            if "listening on" in line:
                break
        else:
            raise AssertionError(f"the registry did not start: {said}")
        # Its log must go on being read, or it would stop when the pipe is full.
        reader = threading.Thread(target=process.stderr.read, daemon=True)
        reader.start()
        try:
            yield self
        finally:
            process.terminate()
            process.wait(30)
            reader.join(30)
            process.stderr.close()


class Passwords:
    """An htpasswd file, which the registry reads again when it changes."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def auth(self) -> dict[str, Any]:
        return {"htpasswd": {"realm": "local", "path": str(self._path)}}

    def set(self, username: str, password: str) -> None:
        command = ["htpasswd", "-Bbn", username, password]
        self._path.write_bytes(subprocess.run(command, capture_output=True, check=True).stdout)


class TokenIssuer(HttpServer):
    """Issues RS256 tokens to those who know the password, as registries with token auth expect."""

    def __init__(self, folder: Path, *, username: str, password: str) -> None:
        super().__init__(self._respond)
        folder.mkdir(exist_ok=True)
        self.login = f"{username}:{password}"
        self.scopes: list[str] = []
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._certificate = _self_signed(self._key)
        self._bundle = folder / "issuer.pem"
        self._bundle.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))
        self.realm = f"{self.url}/token"

    @property
    def auth(self) -> dict[str, Any]:
        token = {"realm": self.realm, "service": SERVICE, "issuer": ISSUER, "rootcertbundle": str(self._bundle)}
        return {"token": token}

    def _respond(self, request: Request) -> Response:
        login = b64decode(request.headers.get("Authorization", "").removeprefix("Basic ")).decode()
        if login != self.login:
            return Response(401, {"errors": [{"code": "UNAUTHORIZED"}]})
        return Response(200, {"token": self.token(request.query.get("scope", ""))})

    def token(self, scope: str) -> str:
        self.scopes.append(scope)
        now = int(time.time())
        kind, name, actions = scope.split(":") if scope else ("", "", "")
        access = [{"type": kind, "name": name, "actions": actions.split(",")}] if scope else []
        der = self._certificate.public_bytes(serialization.Encoding.DER)
        header = {"typ": "JWT", "alg": "RS256", "x5c": [b64encode(der).decode()]}
        times = {"nbf": now - 60, "iat": now, "exp": now + 300}
        claims = {"iss": ISSUER, "sub": "robot", "aud": SERVICE, "jti": str(now), "access": access, **times}
        signed = ".".join(_url64(json.dumps(part).encode()) for part in (header, claims))
        return f"{signed}.{_url64(self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


def _url64(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _self_signed(key: rsa.RSAPrivateKey) -> x509.Certificate:
    from datetime import UTC, datetime, timedelta

    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, ISSUER)])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(days=1))
    return builder.sign(key, hashes.SHA256())


# --- an image without a network ---


def write_image(folder: Path) -> Path:
    """An OCI layout with one small image, tagged v1."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def blob(data: bytes, media_type: str) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {"mediaType": f"application/vnd.oci.image.{media_type}", "digest": f"sha256:{digest}", "size": len(data)}

    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        member = tarfile.TarInfo("hello")
        member.size = 5
        tar.addfile(member, io.BytesIO(b"hello"))
    plain = layer.getvalue()
    diff = f"sha256:{hashlib.sha256(plain).hexdigest()}"
    image = {"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": [diff]}, "config": {}}
    manifest = {
        "schemaVersion": 2,
        "config": blob(json.dumps(image).encode(), "config.v1+json"),
        "layers": [blob(gzip.compress(plain, mtime=0), "layer.v1.tar+gzip")],
    }
    entry = blob(json.dumps(manifest).encode(), "manifest.v1+json")
    entry["annotations"] = {"org.opencontainers.image.ref.name": "v1"}
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder
