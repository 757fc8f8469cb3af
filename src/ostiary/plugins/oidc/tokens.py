"""Verifies a signed token of an issuer (a JWT): its signature, audience, times, and the login that it belongs to.

    an allowed algorithm  ->  signature by a key of the issuer  ->  iss, aud, azp, exp, iat, nbf, nonce, at_hash

`verify` is pure; `verify_with` asks for newer keys once, when those at hand do not fit. Called by `oidc` for ID
tokens (OpenID Connect Core, 3.1.3.7) and by `sso_cookie`. What is wrong is a `TokenRefused`, whose text never quotes
the token.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NoReturn, Protocol

from joserfc.errors import JoseError, UnsupportedAlgorithmError
from joserfc.jws import CompactSignature, JWSRegistry, extract_compact, validate_compact

from ostiary.plugins.oidc.algorithms import ALGORITHMS
from ostiary.plugins.oidc.keys import Keys, PublicKey
from ostiary.plugins.oidc.settings import CLOCK_SKEW

MAX_TOKEN_BYTES = 64 * 1024
MAX_SUBJECT = 255
LAST_SECOND = 10**12

Claims = Mapping[str, object]


class TokenRefused(ValueError):
    """The token is not to be believed; the text says why, for the operator."""


class KeyMissing(TokenRefused):
    """No key at hand has made the signature: the issuer may have newer ones, or it is a forgery."""


class KeySource(Protocol):
    async def keys(self) -> Keys: ...

    async def newer_keys(self, seen: Keys) -> Keys:
        """Keys fetched later than *seen*; *seen* itself if it is too early to ask again."""


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What a token must say. Every audience of it must be one of `audiences`, so that nobody else can replay it to us.

    With `client_id` it is an ID token of that client: one of the audiences, and the authorized party if one is named.
    """

    issuer: str
    audiences: frozenset[str]
    client_id: str = ""
    algorithms: frozenset[str] = frozenset(ALGORITHMS)
    types: frozenset[str] = frozenset(("jwt",))
    skew: timedelta = CLOCK_SKEW


async def verify_with(
    source: KeySource,
    token: str,
    rules: TokenRules,
    *,
    now: datetime,
    nonce: str | None = None,
    access_token: str | None = None,
) -> Claims:
    """The claims of *token*. An issuer changes its keys when it likes, so unknown ones are asked for, once."""
    keys = await source.keys()
    try:
        return verify(token, keys, rules, now=now, nonce=nonce, access_token=access_token)
    except KeyMissing:
        newer = await source.newer_keys(keys)
        if newer is keys:
            raise
    return verify(token, newer, rules, now=now, nonce=nonce, access_token=access_token)


def verify(
    token: str,
    keys: Keys,
    rules: TokenRules,
    *,
    now: datetime,
    nonce: str | None = None,
    access_token: str | None = None,
) -> Claims:
    """The claims of *token*; raises `TokenRefused`. With *nonce*, it must be the one of this login."""
    algorithm, payload = _verify_signature(token, keys, rules)
    claims = json_object(payload)
    if claims is None:
        raise TokenRefused("its content is not a JSON object")
    _check_parties(claims, rules)
    _check_times(claims, rules, now)
    if nonce is not None and not _same(claims.get("nonce"), nonce):
        raise TokenRefused("its nonce is not the one of this login")
    if "at_hash" in claims and not _same(claims["at_hash"], at_hash(access_token, algorithm)):
        raise TokenRefused("its at_hash is not the one of the access token")
    return claims


def json_object(text: bytes) -> dict[str, object] | None:
    """The JSON object that *text* is; None if it is something else."""
    try:
        claims = json.loads(text, parse_constant=_not_json)
    except (ValueError, RecursionError):
        return None
    return claims if isinstance(claims, dict) else None


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def at_hash(access_token: str | None, algorithm: str) -> str:
    """The left half of the access token's hash (OpenID Connect Core, 3.1.3.6); empty without an access token."""
    if access_token is None:
        return ""
    digest = hashlib.new(ALGORITHMS[algorithm].hash, access_token.encode()).digest()
    return urlsafe_b64encode(digest[: len(digest) // 2]).decode().rstrip("=")


# --- the signature ---


class _Registry(JWSRegistry):
    """Knows the allowed algorithms, and no default; lets a header hold what we do not know, as RFC 7515 wants it."""

    def __init__(self, algorithms: frozenset[str]) -> None:
        super().__init__(algorithms=algorithms, strict_check_header=False)
        self._names = algorithms & ALGORITHMS.keys()

    def get_alg(self, name: str) -> Any:
        if name not in self._names:
            raise UnsupportedAlgorithmError
        return self.algorithms[name]


def _verify_signature(token: str, keys: Keys, rules: TokenRules) -> tuple[str, bytes]:
    """The algorithm and the signed content."""
    registry = _Registry(rules.algorithms)
    signature = _extract_signature(token, registry)
    header = signature.headers()
    algorithm, key_id, kind = header.get("alg"), header.get("kid"), header.get("typ")
    # Before any key is looked for: which algorithm counts is for us to say, and not for the token.
    if not isinstance(algorithm, str) or algorithm not in rules.algorithms or algorithm not in ALGORITHMS:
        raise TokenRefused("its algorithm is not an allowed one")
    if kind is not None and (not isinstance(kind, str) or kind.lower() not in rules.types):
        raise TokenRefused("it is a token of another kind")
    if key_id is not None and not isinstance(key_id, str):
        raise TokenRefused("its key id is not a text")
    if not any(_is_made_by(key, signature, registry) for key in keys.fitting(algorithm, key_id)):
        raise KeyMissing("no key of the issuer has signed it")
    return algorithm, signature.payload


def _extract_signature(token: str, registry: JWSRegistry) -> CompactSignature:
    if len(token) > MAX_TOKEN_BYTES or not token.isascii():
        raise TokenRefused("it is too long, or not a token")
    try:
        signature = extract_compact(token.encode(), None, registry)
        registry.check_header(signature.headers())
    except (JoseError, ValueError, TypeError, AttributeError, RecursionError):
        pass
    else:
        # Unencoded content (RFC 7797) would be signed as other bytes than we read.
        if "b64" not in signature.headers():
            return signature
    # Raised outside of the handler: the exceptions of the library may quote what they could not read.
    raise TokenRefused("it is not a signed token")


def _is_made_by(key: PublicKey, signature: CompactSignature, registry: JWSRegistry) -> bool:
    try:
        return validate_compact(signature, key, registry=registry)
    except (JoseError, ValueError):
        return False


# --- the claims ---


def _check_parties(claims: Claims, rules: TokenRules) -> None:
    if claims.get("iss") != rules.issuer:
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
    expires, issued, begins = (_time(claims, name) for name in ("exp", "iat", "nbf"))
    if expires is None or seconds >= expires + skew:
        raise TokenRefused("it has expired, or has no expiry")
    if issued is not None and issued > seconds + skew:
        raise TokenRefused("it was issued in the future: compare the clocks")
    if begins is not None and begins > seconds + skew:
        raise TokenRefused("it is not valid yet: compare the clocks")


def _time(claims: Claims, name: str) -> float | int | None:
    value = claims.get(name)
    if value is None:
        return None
    # A boolean is a number to Python. And numbers can be written that no clock will ever show: 1e999.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= LAST_SECOND:
        raise TokenRefused(f"its {name} is not a time")
    return value


def _same(value: object, expected: str) -> bool:
    if not isinstance(value, str) or expected == "":
        return False
    return hmac.compare_digest(value.encode("utf-8", "surrogatepass"), expected.encode())
