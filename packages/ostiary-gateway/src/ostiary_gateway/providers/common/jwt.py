"""Verify signed tokens (JWT, RFC 7519) with the public keys of their issuer (JWK Set, RFC 7517).

    an allowed algorithm  ->  signature by a key of the issuer  ->  iss, aud, azp, exp, iat, nbf, nonce, at_hash

`parse_token` and `verify` do no I/O; `verify_with` fetches newer keys once if the cached ones do not fit. ID tokens are
verified as OpenID Connect Core, 3.1.3.7 requires. An invalid token raises `TokenRefused`, whose text never quotes it.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import json
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import NoReturn, Protocol

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey, RSAPublicNumbers
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from ostiary_gateway.providers.common.jwt_settings import ALGORITHMS, CLOCK_SKEW

# JWK Sets. Only asymmetric algorithms are supported: with a symmetric key in a public document anyone could sign.

PublicKey = RSAPublicKey | ec.EllipticCurvePublicKey | Ed25519PublicKey

MAX_KEYS = 32
LEAST_RSA_BITS = 2048
# Larger keys only take longer to verify.
MOST_RSA_BITS = 8192
# The values of `use` for a signing key. SPIFFE bundles have a value of their own.
FOR_SIGNATURES = frozenset((None, "sig"))
_CURVES: Mapping[str, ec.EllipticCurve] = MappingProxyType(
    {"P-256": ec.SECP256R1(), "P-384": ec.SECP384R1(), "P-521": ec.SECP521R1()}
)
_HASHES: Mapping[str, hashes.HashAlgorithm] = MappingProxyType(
    {"sha256": hashes.SHA256(), "sha384": hashes.SHA384(), "sha512": hashes.SHA512()}
)


@dataclass(frozen=True, slots=True)
class Published:
    """One key of a set. `algorithm` is the only one it may be used with, or None."""

    key: PublicKey
    kind: str
    curve: str | None
    id: str | None
    algorithm: str | None


@dataclass(frozen=True, slots=True, eq=False)
class Keys:
    published: tuple[Published, ...] = ()

    def fitting(self, algorithm: str, key_id: str | None) -> list[PublicKey]:
        """Return the keys that may have made such a signature. If the token names a key, only that one."""
        needed = ALGORITHMS[algorithm]
        return [
            item.key
            for item in self.published
            if (item.kind, item.curve) == (needed.kind, needed.curve)
            and item.algorithm in (None, algorithm)
            and key_id in (None, item.id)
        ]


def parse_keys(document: object, *, uses: Collection[str | None] = FOR_SIGNATURES) -> Keys:
    """Return the keys of a JWK Set. Raise ValueError if it is not one. Unusable keys are skipped (RFC 7517, 5)."""
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise ValueError("it is not a set of keys")
    if len(listed) > MAX_KEYS:
        raise ValueError(f"it has more than {MAX_KEYS} keys")
    return Keys(tuple(key for item in listed if (key := _parse_key(item, uses)) is not None))


def is_made_by(key: PublicKey, algorithm: str, signature: bytes, signed: bytes) -> bool:
    """Return whether *key* made *signature*. The key must come from `Keys.fitting` for *algorithm*."""
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
    """Convert an ECDSA signature from a token's concatenated integers (RFC 7518, 3.4) to DER."""
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
    """Return the key, from its public members only. A set may contain anything else, even private members."""
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
    """Decode base64url without padding. Raise ValueError for anything else."""
    if not text.isascii() or "+" in text or "/" in text:
        raise ValueError("it is not base64url")
    try:
        return b64decode(text.encode() + b"=" * (-len(text) % 4), b"-_", validate=True)
    except binascii.Error:
        pass
    raise ValueError("it is not base64url")


MAX_TOKEN_BYTES = 64 * 1024
MAX_SUBJECT = 255
LAST_SECOND = 10**12

Claims = Mapping[str, object]


class TokenRefused(ValueError):
    """The token is not valid. The text gives the reason, for the operator."""


class KeyMissing(TokenRefused):
    """No cached key made the signature. The issuer may have newer keys, or the token is a forgery."""


class KeySource(Protocol):
    async def keys(self) -> Keys: ...

    async def newer_keys(self, seen: Keys) -> Keys:
        """Return keys fetched later than *seen*, or *seen* itself if it is too early to fetch again."""


@dataclass(frozen=True, slots=True)
class TokenRules:
    """The claims that a token must have.

    Every audience of the token must be one of `audiences`; otherwise another recipient could replay it to the gateway.
    With `client_id` it is an ID token of that client, which must be one of the audiences, and the authorized party if
    one is named. If `issuer` is None, the keys alone identify the signer.
    """

    issuer: str | None
    audiences: frozenset[str]
    client_id: str = ""
    algorithms: frozenset[str] = frozenset(ALGORITHMS)
    types: frozenset[str] = frozenset(("jwt",))
    skew: timedelta = CLOCK_SKEW
    # An ID token may carry the hash of an access token. A caller without that access token cannot compare it.
    alone: bool = False


async def verify_with(
    source: KeySource,
    token: str | ParsedToken,
    rules: TokenRules,
    *,
    now: datetime,
    nonce: str | None = None,
    access_token: str | None = None,
) -> Claims:
    """Verify *token* and return its claims. Issuers rotate keys at any time, so unknown ones are fetched once."""
    parsed = parse_token(token) if isinstance(token, str) else token
    keys = await source.keys()
    try:
        return verify(parsed, keys, rules, now=now, nonce=nonce, access_token=access_token)
    except KeyMissing:
        newer = await source.newer_keys(keys)
        if newer is keys:
            raise
    return verify(parsed, newer, rules, now=now, nonce=nonce, access_token=access_token)


async def verify_signature_with(source: KeySource, token: ParsedToken, rules: TokenRules) -> None:
    """Like `verify_with`, but for the signature only, after `check_claims`. Raise `TokenRefused`."""
    keys = await source.keys()
    try:
        _verify_signature(token, keys, rules)
    except KeyMissing:
        newer = await source.newer_keys(keys)
        if newer is keys:
            raise
        _verify_signature(token, newer, rules)


def verify(
    token: str | ParsedToken,
    keys: Keys,
    rules: TokenRules,
    *,
    now: datetime,
    nonce: str | None = None,
    access_token: str | None = None,
) -> Claims:
    """Verify *token* and return its claims, or raise `TokenRefused`. *nonce* is that of this login, if given."""
    parsed = parse_token(token) if isinstance(token, str) else token
    algorithm, claims = _verify_signature(parsed, keys, rules), parsed.claims
    check_claims(claims, rules, now=now)
    if nonce is not None and not _same(claims.get("nonce"), nonce):
        raise TokenRefused("its nonce is not the one of this login")
    if not rules.alone and "at_hash" in claims and not _same(claims["at_hash"], at_hash(access_token, algorithm)):
        raise TokenRefused("its at_hash is not the one of the access token")
    return claims


def json_object(text: bytes) -> dict[str, object] | None:
    """Return the JSON object in *text*, or None if it is something else."""
    try:
        claims = _DECODER.decode(text.decode())
    except (ValueError, RecursionError):
        return None
    return claims if isinstance(claims, dict) else None


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_not_json)


def at_hash(access_token: str | None, algorithm: str) -> str:
    """Return the left half of the access token's hash (OpenID Connect Core, 3.1.3.6); empty without one."""
    if access_token is None:
        return ""
    digest = hashlib.new(ALGORITHMS[algorithm].hash, access_token.encode()).digest()
    return urlsafe_b64encode(digest[: len(digest) // 2]).decode().rstrip("=")


# --- the signature ---


@dataclass(frozen=True, slots=True)
class ParsedToken:
    """An unverified token. Its header and claims are untrusted."""

    header: Claims
    claims: Claims
    signed: bytes = field(repr=False)
    signature: bytes = field(repr=False)


def parse_token(token: str) -> ParsedToken:
    """Parse *token* without verifying it, or raise `TokenRefused`."""
    parts = token.split(".") if len(token) <= MAX_TOKEN_BYTES and token.isascii() else []
    if len(parts) == 3 and all(parts[:2]):
        try:
            header, payload, signature = (decode_base64url(part) for part in parts)
        except ValueError:
            header = b""
        read_header = json_object(header)
        # An extension listed in "crit" must be understood (RFC 7515, 4.1.11), and none is supported. The signature of
        # an unencoded payload (RFC 7797) covers other bytes than the ones decoded here.
        if read_header is not None and "crit" not in read_header and "b64" not in read_header:
            claims = json_object(payload)
            if claims is None:
                raise TokenRefused("its content is not a JSON object")
            return ParsedToken(read_header, claims, token.rpartition(".")[0].encode(), signature)
    raise TokenRefused("it is not a signed token")


def unverified_claims(token: str) -> Claims | None:
    """Return the unverified claims of *token*, to select its verifier. None if it is not a token."""
    parts = token.split(".") if len(token) <= MAX_TOKEN_BYTES and token.isascii() else []
    try:
        return json_object(decode_base64url(parts[1])) if len(parts) == 3 else None
    except ValueError:
        return None


def _verify_signature(token: ParsedToken, keys: Keys, rules: TokenRules) -> str:
    """Verify the signature and return its algorithm."""
    algorithm, key_id, kind = (token.header.get(name) for name in ("alg", "kid", "typ"))
    # Checked before any key is selected: the configuration decides which algorithms are allowed, not the token.
    if not isinstance(algorithm, str) or algorithm not in rules.algorithms or algorithm not in ALGORITHMS:
        raise TokenRefused("its algorithm is not an allowed one")
    if kind is not None and (not isinstance(kind, str) or kind.lower() not in rules.types):
        raise TokenRefused("it is a token of another kind")
    if key_id is not None and not isinstance(key_id, str):
        raise TokenRefused("its key id is not a text")
    fitting = keys.fitting(algorithm, key_id)
    if not any(is_made_by(key, algorithm, token.signature, token.signed) for key in fitting):
        raise KeyMissing("no key of the issuer has signed it")
    return algorithm


# --- the claims ---


def check_claims(claims: Claims, rules: TokenRules, *, now: datetime) -> None:
    """Check issuer, audience and times, or raise `TokenRefused`."""
    _check_parties(claims, rules)
    _check_times(claims, rules, now)


def time_of(claims: Claims, name: str) -> float | int | None:
    """Return the time in the claim *name*, in seconds since 1970, or None if absent. Raise `TokenRefused`."""
    value = claims.get(name)
    if value is None:
        return None
    # bool is a subclass of int, and JSON allows numbers out of range: 1e999.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= LAST_SECOND:
        raise TokenRefused(f"its {name} is not a time")
    return value


def _check_parties(claims: Claims, rules: TokenRules) -> None:
    if rules.issuer is not None and claims.get("iss") != rules.issuer:
        raise TokenRefused("it is from another issuer")
    audience = claims.get("aud")
    audiences = [audience] if isinstance(audience, str) else audience
    if not isinstance(audiences, list) or not all(isinstance(item, str) for item in audiences) or not audiences:
        raise TokenRefused("it has no audience")
    if not set(audiences) <= rules.audiences:
        raise TokenRefused("it is for another audience, or for several")
    if rules.client_id:
        _check_client(claims, audiences, rules.client_id)


def _check_client(claims: Claims, audiences: list[str], client_id: str) -> None:
    if client_id not in audiences:
        raise TokenRefused("it is not for this client")
    party = claims.get("azp")
    if (party is not None or len(audiences) > 1) and party != client_id:
        raise TokenRefused("it was issued to another client (azp)")
    subject = claims.get("sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= MAX_SUBJECT:
        raise TokenRefused("it has no subject")
    if claims.get("iat") is None:
        raise TokenRefused("it has no issue time")


def _check_times(claims: Claims, rules: TokenRules, now: datetime) -> None:
    seconds, skew = now.timestamp(), rules.skew.total_seconds()
    expires, issued, begins = (time_of(claims, name) for name in ("exp", "iat", "nbf"))
    if expires is None or seconds >= expires + skew:
        raise TokenRefused("it has expired, or has no expiry")
    if issued is not None and issued > seconds + skew:
        raise TokenRefused("it was issued in the future: compare the clocks")
    if begins is not None and begins > seconds + skew:
        raise TokenRefused("it is not valid yet: compare the clocks")


def _same(value: object, expected: str) -> bool:
    if not isinstance(value, str) or expected == "":
        return False
    return hmac.compare_digest(value.encode("utf-8", "surrogatepass"), expected.encode())
