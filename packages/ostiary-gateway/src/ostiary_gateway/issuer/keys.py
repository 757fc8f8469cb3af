"""Signing keys on the curve P-256 (ES256), the ring of keys that sign and are published, and its rotation.

The id of a key is the thumbprint of its public key (RFC 7638), so a key has the same id wherever it is read.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
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
    """A private key, in memory or in a device. Its `repr` contains only the id."""

    def __init__(self, private: ec.EllipticCurvePrivateKey | DeviceKey) -> None:
        self._private = private
        # A device may block while it signs: sign in a thread where possible.
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
        """Load the key in *pem*. Raises `ValueError`, which never quotes the text."""
        mistake = "it is not a private key in PEM without a password"
        try:
            private = serialization.load_pem_private_key(pem, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            private = None
        if isinstance(private, ec.EllipticCurvePrivateKey) and isinstance(private.curve, ec.SECP256R1):
            return cls(private)
        # Raised outside of the handler: the decoder's exception may contain the text of the key.
        raise ValueError(mistake if private is None else WRONG_CURVE)

    @classmethod
    def from_device(cls, key: DeviceKey) -> Self:
        """Wrap a device key. Raises `ValueError` if it is of another kind."""
        public = key.public_key
        if not isinstance(public, ec.EllipticCurvePublicKey) or not isinstance(public.curve, ec.SECP256R1):
            raise ValueError(WRONG_CURVE)
        return cls(key)

    def pem(self) -> bytes:
        """Return the private key, to be sealed."""
        assert isinstance(self._private, ec.EllipticCurvePrivateKey), "a key that is kept elsewhere is never sealed"
        return self._private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    def sign(self, claims: Mapping[str, object], *, kind: str = "JWT") -> str:
        """Return a JWT of *claims* in the compact serialization. *kind* is its ``typ``."""
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


# The key ring:
#
#     published ------------------------------------------------------------->
#                (ahead)  signs ---------------->  (its last JWT may still live)
#     made       signs_from                      signs_until        published_until
#
# A key is published before it signs, so that verifiers that cache the key set have it in time, and until the last JWT
# that it signed has expired.

ALWAYS = datetime.min.replace(tzinfo=UTC)
NEVER = datetime.max.replace(tzinfo=UTC)
# How far the clock of a verifier may be behind the gateway's.
CLOCK_SKEW = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class RingKey:
    """A key and its times. `private` is None if the key cannot be opened: then it neither signs nor is published here.

    An attacker who can write to the store, but does not have the sealing secret, may have added such a key.
    """

    id: str
    jwk: Mapping[str, str]
    private: SigningKey | None
    signs_from: datetime = ALWAYS
    signs_until: datetime = NEVER
    published_until: datetime = NEVER
    # The private key as it is stored.
    sealed: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class KeyRing:
    keys: tuple[RingKey, ...] = ()

    def signing(self, now: datetime) -> RingKey | None:
        """Return the key that signs at *now*: of several current keys, the one that began to sign last."""
        due = [key for key in self.keys if key.signs_from <= now < key.signs_until]
        return max(due, key=lambda key: key.signs_from, default=None)

    def published_keys(self, now: datetime) -> tuple[RingKey, ...]:
        return tuple(key for key in self.keys if key.private is not None and now < key.published_until)

    def jwks(self, now: datetime) -> dict[str, object]:
        return {"keys": [dict(key.jwk) for key in self.published_keys(now)]}


# Rotation of the ring.

# Maximum lifetime of any JWT, whatever was configured when it was signed.
LONGEST_LIFETIME = timedelta(minutes=15)
# Limit on the keys of the ring. More than repeated calls of `rotated_now` leave in an emergency.
MOST_KEYS = 16

# After this time, every signer and publisher has read the keys again: see `issuer.SIGNING_FRESH_SECONDS`.
TAKEN_UP_AFTER = timedelta(seconds=10)

# Makes a key. The functions below set its times.
MakeKey = Callable[[], RingKey]


@dataclass(frozen=True, slots=True)
class KeyLife:
    sign_for: timedelta
    publish_ahead: timedelta


def with_due_changes(ring: KeyRing, now: datetime, life: KeyLife, make_key: MakeKey) -> KeyRing:
    """Return the ring with the first or next key added and expired keys dropped; *ring* itself if nothing is due."""
    keys = [key for key in ring.keys if now < key.published_until]
    last = max((key.signs_until for key in keys), default=now)
    if KeyRing(tuple(keys)).signing(now) is None:
        # The first key, or the store was unavailable for so long that the next one was never made.
        keys.append(_set_times(make_key(), now, life))
    elif last - now <= life.publish_ahead:
        keys.append(_set_times(make_key(), last, life))
    return ring if keys == list(ring.keys) else KeyRing(tuple(keys))


def rotated_now(ring: KeyRing, now: datetime, life: KeyLife, make_key: MakeKey, *, withdraw: bool) -> KeyRing:
    """Return the ring with a new key that signs as soon as every replica publishes it.

    With *withdraw* it signs immediately and is the only published key, so the JWTs of all other keys become invalid.
    """
    if withdraw:
        return KeyRing((_set_times(make_key(), now, life),))
    start = now + TAKEN_UP_AFTER
    other_keys = [_retire(key, start) for key in ring.keys if now < key.published_until]
    # Drop keys that have not signed by any replica's clock. Of too many, keep the newest.
    other_keys = [key for key in other_keys if key.signs_from <= start + CLOCK_SKEW][-(MOST_KEYS - 1) :]
    return KeyRing((*other_keys, _set_times(make_key(), start, life)))


def _set_times(key: RingKey, start: datetime, life: KeyLife) -> RingKey:
    until = start + life.sign_for
    return replace(key, signs_from=start, signs_until=until, published_until=_published_until(until))


def _retire(key: RingKey, at: datetime) -> RingKey:
    until = min(key.signs_until, at)
    return replace(key, signs_until=until, published_until=_published_until(until))


def _published_until(signs_until: datetime) -> datetime:
    return signs_until + LONGEST_LIFETIME + CLOCK_SKEW
