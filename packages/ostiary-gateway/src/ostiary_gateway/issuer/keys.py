"""One signing key on the curve P-256, its id, and what others need to verify its signatures (ES256).

Called by the key sources, which read and make keys, and by the issuer, which signs. The id is the thumbprint of the
public key (RFC 7638), so equal keys have equal ids wherever they were read.
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


# Which key signs at a moment, and which keys are published then. Pure; called by the key sources and the issuer.
#
#     published ------------------------------------------------------------->
#                (ahead)  signs ---------------->  (its last JWT may still live)
#     made       signs_from                      signs_until        published_until
#
# A key is published before it signs, so that whoever keeps a copy of the key set knows it in time, and until the last
# JWT that it signed has ended.

ALWAYS = datetime.min.replace(tzinfo=UTC)
NEVER = datetime.max.replace(tzinfo=UTC)
# How far the clock of a verifier may be behind ours.
CLOCK_SKEW = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class RingKey:
    """A key and its times. `private` is None if we cannot open it: then it neither signs nor is published here.

    A key that we cannot open may have been put into the store by somebody who cannot seal, and wants to be trusted.
    """

    id: str
    jwk: Mapping[str, str]
    private: SigningKey | None
    signs_from: datetime = ALWAYS
    signs_until: datetime = NEVER
    published_until: datetime = NEVER
    # The private half as it is kept in the store.
    sealed: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class KeyRing:
    keys: tuple[RingKey, ...] = ()

    def signing(self, now: datetime) -> RingKey | None:
        """The key that signs: of several whose time it is, the one whose time began last."""
        due = [key for key in self.keys if key.signs_from <= now < key.signs_until]
        return max(due, key=lambda key: key.signs_from, default=None)

    def published_keys(self, now: datetime) -> tuple[RingKey, ...]:
        return tuple(key for key in self.keys if key.private is not None and now < key.published_until)

    def jwks(self, now: datetime) -> dict[str, object]:
        return {"keys": [dict(key.jwk) for key in self.published_keys(now)]}


# What is due on a ring of keys: the first key, the next one ahead of its time, the end of the last. Pure.
#
# Called by `stored_keys`, by one replica at a time: whoever writes the ring first has rotated it, and the others read
# it.

# What any JWT may live for, whatever was configured when it was signed.
LONGEST_LIFETIME = timedelta(minutes=15)
# More than `rotated_now` leaves behind in any emergency.
MOST_KEYS = 16

# Whoever signs or publishes has read the keys again after this time: see `issuer.SIGNING_FRESH_SECONDS`.
TAKEN_UP_AFTER = timedelta(seconds=10)

# Makes a key that signs in this time; only the times are chosen here.
MakeKey = Callable[[], RingKey]


@dataclass(frozen=True, slots=True)
class KeyLife:
    sign_for: timedelta
    publish_ahead: timedelta


def with_due_changes(ring: KeyRing, now: datetime, life: KeyLife, make_key: MakeKey) -> KeyRing:
    """The ring as it must be now; the same object if it is right as it is."""
    keys = [key for key in ring.keys if now < key.published_until]
    last = max((key.signs_until for key in keys), default=now)
    if KeyRing(tuple(keys)).signing(now) is None:
        # The first key, or the store was away for so long that the next one was never made.
        keys.append(_set_times(make_key(), now, life))
    elif last - now <= life.publish_ahead:
        keys.append(_set_times(make_key(), last, life))
    return ring if keys == list(ring.keys) else KeyRing(tuple(keys))


def rotated_now(ring: KeyRing, now: datetime, life: KeyLife, make_key: MakeKey, *, withdraw: bool) -> KeyRing:
    """A new key signs as soon as every replica publishes it.

    With *withdraw* it signs at once, and no other key is published any more: what they signed ends.
    """
    if withdraw:
        return KeyRing((_set_times(make_key(), now, life),))
    start = now + TAKEN_UP_AFTER
    other_keys = [_retire(key, start) for key in ring.keys if now < key.published_until]
    # Those that never signed, by no replica's clock, need not be published; of too many the newest count.
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
