"""The public keys of an issuer, as a JWK Set (RFC 7517) names them, and which of them may check which signature.

Pure. Called by `ostiary.plugins.oidc.issuer`, which fetches them, and by `ostiary.plugins.oidc.tokens`, which verifies
with them. Only asymmetric algorithms are known: with a symmetric key in a public document anybody could sign.
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode
from dataclasses import dataclass
from typing import cast

from joserfc.errors import JoseError
from joserfc.jwk import ECKey, OKPKey, RSAKey

from ostiary.plugins.oidc.algorithms import ALGORITHMS

PublicKey = RSAKey | ECKey | OKPKey

MAX_KEYS = 32
LEAST_RSA_BITS = 2048
# A longer one only takes longer to check.
MOST_RSA_BITS = 8192


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


def parse_keys(document: object) -> Keys:
    """The keys of a JWK Set; raises ValueError if it is none. A key that we cannot use is left out (RFC 7517, 5)."""
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise ValueError("it is not a set of keys")
    if len(listed) > MAX_KEYS:
        raise ValueError(f"it has more than {MAX_KEYS} keys")
    return Keys(tuple(key for item in listed if (key := _parse_key(item)) is not None))


def _parse_key(item: object) -> Published | None:
    if not isinstance(item, dict) or not _is_for_signatures(item):
        return None
    key_id, algorithm, curve = (item.get(name) for name in ("kid", "alg", "crv"))
    if not all(value is None or isinstance(value, str) for value in (key_id, algorithm, curve)):
        return None
    try:
        key = _key(item)
    except (JoseError, ValueError, TypeError, KeyError):
        return None
    return None if key is None else Published(key, str(item["kty"]), curve, key_id, algorithm)


def _is_for_signatures(item: dict[str, object]) -> bool:
    operations = item.get("key_ops")
    return item.get("use") in (None, "sig") and (
        operations is None or (isinstance(operations, list) and "verify" in operations)
    )


def _key(item: dict[str, object]) -> PublicKey | None:
    """The key, from its public members alone. A set may hold anything else, even the private ones."""
    kind = item.get("kty")
    if kind == "RSA":
        public = _members(item, "n", "e")
        return RSAKey.import_key(public) if LEAST_RSA_BITS <= _bits(public["n"]) <= MOST_RSA_BITS else None
    if kind == "EC":
        return ECKey.import_key(_members(item, "crv", "x", "y"))
    if kind == "OKP" and item.get("crv") == "Ed25519":
        return OKPKey.import_key(_members(item, "crv", "x"))
    return None


def _members(item: dict[str, object], *names: str) -> dict[str, str | list[str]]:
    return {name: cast("str", item[name]) for name in ("kty", *names)}


def _bits(encoded: object) -> int:
    if not isinstance(encoded, str):
        return 0
    try:
        return int.from_bytes(urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)), "big").bit_length()
    except (binascii.Error, ValueError):
        return 0
