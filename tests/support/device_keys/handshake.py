"""One handshake with a server that demands a client certificate, over a pair of sockets."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress

import trustme
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
from cryptography.hazmat.primitives.hashes import SHA256, SHA384, SHA512, HashAlgorithm

from ostiary.core.tls import TlsSettings, build_context
from ostiary.model import ClientCertificate, SignatureScheme
from tests.support.http_server import common_name, server_context

_HASHES: dict[str, HashAlgorithm] = {"sha256": SHA256(), "sha384": SHA384(), "sha512": SHA512()}


class MemoryKey:
    """A `DeviceKey` that is no device: it remembers what it was asked for."""

    def __init__(self, private: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> None:
        self._private = private
        self.public_key = private.public_key()
        self.schemes: list[SignatureScheme] = []
        self.failure: BaseException | None = None
        self.closed = 0

    def sign(self, digest: bytes, scheme: SignatureScheme) -> bytes:
        self.schemes.append(scheme)
        if self.failure is not None:
            raise self.failure
        algorithm = _HASHES[scheme.hash_name]
        if isinstance(self._private, ec.EllipticCurvePrivateKey):
            return self._private.sign(digest, ec.ECDSA(Prehashed(algorithm)))
        pss = padding.PSS(padding.MGF1(algorithm), algorithm.digest_size)
        return self._private.sign(digest, pss if "pss" in scheme.value else padding.PKCS1v15(), Prehashed(algorithm))

    def close(self) -> None:
        self.closed += 1


def shake_hands(
    ca: trustme.CA,
    certificate: ClientCertificate,
    *,
    version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
    signature_algorithms: str = "",
) -> str:
    """The name in the certificate that the server saw; raises what the client does."""
    server = server_context(ca, "localhost", client_certificates=ssl.CERT_REQUIRED)
    client = build_context(TlsSettings(ca.cert_pem.bytes().decode()), certificate)
    client.maximum_version = version
    seen: list[str] = []
    ours, theirs = socket.socketpair()

    def serve() -> None:
        with suppress(OSError), server.wrap_socket(theirs, server_side=True) as connection:
            seen.append(str(common_name(connection)))
            connection.sendall(b"!")

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with ours, client.wrap_socket(ours, server_hostname="localhost") as connection:
            connection.recv(1)
    finally:
        ours.close()
        thread.join()
        theirs.close()
    return seen[0]
