"""One signing key on the curve P-256, its id, and what others need to verify its signatures (ES256).

Called by the key sources, which read and make keys, and by the issuer, which signs. The id is the thumbprint of the
public key (RFC 7638), so equal keys have equal ids wherever they were read.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from hashlib import sha256
from typing import Self

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256

from ostiary.errors import OstiaryError, ProviderError
from ostiary.model import DeviceKey, SignatureScheme

ALGORITHM = "ES256"
_COORDINATE_BYTES = 32
WRONG_CURVE = "it is not a key on the curve P-256 (prime256v1)"


class SigningKey:
    """A private key, here or kept elsewhere. Its `repr` names the id alone."""

    def __init__(self, private: ec.EllipticCurvePrivateKey | DeviceKey) -> None:
        self._private = private
        # Asking a device takes a while: whoever can, does it in a thread.
        self.is_elsewhere = not isinstance(private, ec.EllipticCurvePrivateKey)
        public = private.public_key() if isinstance(private, ec.EllipticCurvePrivateKey) else private.public_key
        assert isinstance(public, ec.EllipticCurvePublicKey)
        numbers = public.public_numbers()
        required = {"crv": "P-256", "kty": "EC", "x": _coordinate(numbers.x), "y": _coordinate(numbers.y)}
        # RFC 7638: the required members, in the order of their names, without spaces.
        self.id = _base64url(sha256(_compact(required)).digest())
        self.jwk: Mapping[str, str] = {**required, "kid": self.id, "use": "sig", "alg": ALGORITHM}

    @classmethod
    def generate(cls) -> Self:
        return cls(ec.generate_private_key(ec.SECP256R1()))

    @classmethod
    def from_pem(cls, pem: bytes) -> Self:
        """The key in *pem*; raises `ValueError`, which never quotes the text."""
        mistake = "it is not a private key in PEM without a password"
        try:
            private = serialization.load_pem_private_key(pem, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            private = None
        if isinstance(private, ec.EllipticCurvePrivateKey) and isinstance(private.curve, ec.SECP256R1):
            return cls(private)
        # Raised outside of the handler: the decoder's exception may hold the text.
        raise ValueError(mistake if private is None else WRONG_CURVE)

    @classmethod
    def from_device(cls, key: DeviceKey) -> Self:
        """Raises `ValueError` if the key is of another kind."""
        public = key.public_key
        if not isinstance(public, ec.EllipticCurvePublicKey) or not isinstance(public.curve, ec.SECP256R1):
            raise ValueError(WRONG_CURVE)
        return cls(key)

    def pem(self) -> bytes:
        """The private key itself, for whoever seals it."""
        assert isinstance(self._private, ec.EllipticCurvePrivateKey), "a key that is kept elsewhere is never sealed"
        return self._private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    def sign(self, claims: Mapping[str, object], *, kind: str = "JWT") -> str:
        """A JWT of *claims*, in the compact form; *kind* is its ``typ``."""
        head = _compact({"alg": ALGORITHM, "kid": self.id, "typ": kind})
        signed = f"{_base64url(head)}.{_base64url(_compact(claims))}".encode()
        r, s = decode_dss_signature(self._signature(signed))
        signature = r.to_bytes(_COORDINATE_BYTES, "big") + s.to_bytes(_COORDINATE_BYTES, "big")
        return f"{signed.decode()}.{_base64url(signature)}"

    def _signature(self, signed: bytes) -> bytes:
        if isinstance(self._private, ec.EllipticCurvePrivateKey):
            return self._private.sign(signed, ec.ECDSA(SHA256()))
        try:
            return self._private.sign(sha256(signed).digest(), SignatureScheme.ECDSA_SHA256)
        except OstiaryError as error:
            cause = ": ".join(filter(None, (error.summary, error.cause)))
            raise ProviderError("no JWT can be signed", cause=cause, code="issuer-key-unusable") from None

    def __repr__(self) -> str:
        return f"SigningKey({self.id})"


def _coordinate(number: int) -> str:
    return _base64url(number.to_bytes(_COORDINATE_BYTES, "big"))


def _compact(value: Mapping[str, object]) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _base64url(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")
