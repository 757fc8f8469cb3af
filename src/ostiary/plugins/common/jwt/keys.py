"""The public keys of an issuer, as a JWK Set (RFC 7517) names them, and which of them may check which signature.

Pure. Called by `issuer`, which fetches them, and by `tokens`, which verifies with them. Only asymmetric algorithms are
known: with a symmetric key in a public document anybody could sign.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey, RSAPublicNumbers
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from ostiary.plugins.common.jwt.algorithms import ALGORITHMS

PublicKey = RSAPublicKey | ec.EllipticCurvePublicKey | Ed25519PublicKey

MAX_KEYS = 32
LEAST_RSA_BITS = 2048
# A longer one only takes longer to check.
MOST_RSA_BITS = 8192
# What a key of an issuer may say that it is for; SPIFFE's bundles have a word of their own.
FOR_SIGNATURES = frozenset((None, "sig"))
_CURVES: Mapping[str, ec.EllipticCurve] = MappingProxyType(
    {"P-256": ec.SECP256R1(), "P-384": ec.SECP384R1(), "P-521": ec.SECP521R1()}
)
_HASHES: Mapping[str, hashes.HashAlgorithm] = MappingProxyType(
    {"sha256": hashes.SHA256(), "sha384": hashes.SHA384(), "sha512": hashes.SHA512()}
)


@dataclass(frozen=True, slots=True)
class Published:
    """One key of the set; `algorithm` is the only one it may be used with, if it says so."""

    key: PublicKey
    kind: str
    curve: str | None
    id: str | None
    algorithm: str | None


@dataclass(frozen=True, slots=True, eq=False)
class Keys:
    published: tuple[Published, ...] = ()

    def fitting(self, algorithm: str, key_id: str | None) -> list[PublicKey]:
        """The keys that may have made such a signature; a token that names a key is checked with no other."""
        needed = ALGORITHMS[algorithm]
        return [
            item.key
            for item in self.published
            if (item.kind, item.curve) == (needed.kind, needed.curve)
            and item.algorithm in (None, algorithm)
            and key_id in (None, item.id)
        ]


def parse_keys(document: object, *, uses: Collection[str | None] = FOR_SIGNATURES) -> Keys:
    """The keys of a JWK Set; raises ValueError if it is none. A key that we cannot use is left out (RFC 7517, 5)."""
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise ValueError("it is not a set of keys")
    if len(listed) > MAX_KEYS:
        raise ValueError(f"it has more than {MAX_KEYS} keys")
    return Keys(tuple(key for item in listed if (key := _parse_key(item, uses)) is not None))


def is_made_by(key: PublicKey, algorithm: str, signature: bytes, signed: bytes) -> bool:
    """Whether *key* has made *signature*. The key must be one that `Keys.fitting` gave for *algorithm*."""
    try:
        if isinstance(key, RSAPublicKey):
            hashing = _HASHES[ALGORITHMS[algorithm].hash]
            key.verify(signature, signed, _rsa_padding(algorithm, hashing), hashing)
        elif isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(_der(signature, key), signed, ec.ECDSA(_HASHES[ALGORITHMS[algorithm].hash]))
        else:
            key.verify(signature, signed)
    except (InvalidSignature, ValueError):
        return False
    return True


def _rsa_padding(algorithm: str, hashing: hashes.HashAlgorithm) -> padding.AsymmetricPadding:
    if algorithm.startswith("PS"):
        return padding.PSS(padding.MGF1(hashing), hashing.digest_size)
    return padding.PKCS1v15()


def _der(signature: bytes, key: ec.EllipticCurvePublicKey) -> bytes:
    """The two numbers, which a token has one after the other (RFC 7518, 3.4), as libraries want them."""
    size = (key.key_size + 7) // 8
    if len(signature) != 2 * size:
        raise ValueError("the signature has another length")
    return encode_dss_signature(int.from_bytes(signature[:size], "big"), int.from_bytes(signature[size:], "big"))


def _parse_key(item: object, uses: Collection[str | None]) -> Published | None:
    if not isinstance(item, dict) or not _is_for_signatures(item, uses):
        return None
    key_id, algorithm, curve = (item.get(name) for name in ("kid", "alg", "crv"))
    if not all(value is None or isinstance(value, str) for value in (key_id, algorithm, curve)):
        return None
    try:
        key = _key(item)
    except (ValueError, UnsupportedAlgorithm):
        return None
    return None if key is None else Published(key, str(item["kty"]), curve, key_id, algorithm)


def _is_for_signatures(item: dict[str, object], uses: Collection[str | None]) -> bool:
    use, operations = item.get("use"), item.get("key_ops")
    return (
        (use is None or isinstance(use, str))
        and use in uses
        and (operations is None or (isinstance(operations, list) and "verify" in operations))
    )


def _key(item: dict[str, object]) -> PublicKey | None:
    """The key, from its public members alone. A set may hold anything else, even the private ones."""
    kind, curve = item.get("kty"), item.get("crv")
    if kind == "RSA":
        modulus, exponent = _number(item, "n"), _number(item, "e")
        if not LEAST_RSA_BITS <= modulus.bit_length() <= MOST_RSA_BITS:
            return None
        return RSAPublicNumbers(exponent, modulus).public_key()
    if kind == "EC" and isinstance(curve, str) and curve in _CURVES:
        numbers = ec.EllipticCurvePublicNumbers(_number(item, "x"), _number(item, "y"), _CURVES[curve])
        return numbers.public_key()
    if kind == "OKP" and curve == "Ed25519":
        return Ed25519PublicKey.from_public_bytes(_bytes(item, "x"))
    return None


def _number(item: dict[str, object], name: str) -> int:
    return int.from_bytes(_bytes(item, name), "big")


def _bytes(item: dict[str, object], name: str) -> bytes:
    value = item.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{name} is missing")
    return decode_base64url(value.rstrip("="))


def decode_base64url(text: str) -> bytes:
    """What *text* is in base64url without padding; raises ValueError for anything that is not exactly that."""
    if not text.isascii() or "+" in text or "/" in text:
        raise ValueError("it is not base64url")
    try:
        return b64decode(text.encode() + b"=" * (-len(text) % 4), b"-_", validate=True)
    except binascii.Error:
        pass
    raise ValueError("it is not base64url")
