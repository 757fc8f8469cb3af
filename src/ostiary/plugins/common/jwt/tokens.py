"""Verifies a signed token of an issuer (a JWT): its signature, audience, times, and the login that it belongs to.

    an allowed algorithm  ->  signature by a key of the issuer  ->  iss, aud, azp, exp, iat, nbf, nonce, at_hash

`parse_token` reads it, and `verify` is pure; `verify_with` asks for newer keys once, when those at hand do not fit.
Called by `oidc` for ID tokens (OpenID Connect Core, 3.1.3.7), by `sso_cookie` and by `workload`. What is wrong is a
`TokenRefused`, whose text never quotes the token.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NoReturn, Protocol

from ostiary.plugins.common.jwt.algorithms import ALGORITHMS
from ostiary.plugins.common.jwt.keys import Keys, decode_base64url, is_made_by
from ostiary.plugins.common.jwt.settings import CLOCK_SKEW

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
    Where `issuer` is None, the keys alone tell who has signed it.
    """

    issuer: str | None
    audiences: frozenset[str]
    client_id: str = ""
    algorithms: frozenset[str] = frozenset(ALGORITHMS)
    types: frozenset[str] = frozenset(("jwt",))
    skew: timedelta = CLOCK_SKEW
    # An ID token may name an access token that came with it. Who is not given that one has nothing to compare.
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
    """The claims of *token*. An issuer changes its keys when it likes, so unknown ones are asked for, once."""
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
    """The same for its signature alone, where `check_claims` has come first; raises `TokenRefused`."""
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
    """The claims of *token*; raises `TokenRefused`. With *nonce*, it must be the one of this login."""
    parsed = parse_token(token) if isinstance(token, str) else token
    algorithm, claims = _verify_signature(parsed, keys, rules), parsed.claims
    check_claims(claims, rules, now=now)
    if nonce is not None and not _same(claims.get("nonce"), nonce):
        raise TokenRefused("its nonce is not the one of this login")
    if not rules.alone and "at_hash" in claims and not _same(claims["at_hash"], at_hash(access_token, algorithm)):
        raise TokenRefused("its at_hash is not the one of the access token")
    return claims


def json_object(text: bytes) -> dict[str, object] | None:
    """The JSON object that *text* is; None if it is something else."""
    try:
        claims = _DECODER.decode(text.decode())
    except (ValueError, RecursionError):
        return None
    return claims if isinstance(claims, dict) else None


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_not_json)


def at_hash(access_token: str | None, algorithm: str) -> str:
    """The left half of the access token's hash (OpenID Connect Core, 3.1.3.6); empty without an access token."""
    if access_token is None:
        return ""
    digest = hashlib.new(ALGORITHMS[algorithm].hash, access_token.encode()).digest()
    return urlsafe_b64encode(digest[: len(digest) // 2]).decode().rstrip("=")


# --- the signature ---


@dataclass(frozen=True, slots=True)
class ParsedToken:
    """A token that nobody has verified yet: its header and claims are what somebody wrote."""

    header: Claims
    claims: Claims
    signed: bytes = field(repr=False)
    signature: bytes = field(repr=False)


def parse_token(token: str) -> ParsedToken:
    """The parts of *token*, of which nothing is true yet; raises `TokenRefused`."""
    parts = token.split(".") if len(token) <= MAX_TOKEN_BYTES and token.isascii() else []
    if len(parts) == 3 and all(parts[:2]):
        try:
            header, payload, signature = (decode_base64url(part) for part in parts)
        except ValueError:
            header = b""
        read_header = json_object(header)
        # What the header says is critical must be understood (RFC 7515, 4.1.11), and we understand nothing. Unencoded
        # content (RFC 7797) would be signed as other bytes than we read.
        if read_header is not None and "crit" not in read_header and "b64" not in read_header:
            claims = json_object(payload)
            if claims is None:
                raise TokenRefused("its content is not a JSON object")
            return ParsedToken(read_header, claims, token.rpartition(".")[0].encode(), signature)
    raise TokenRefused("it is not a signed token")


def unverified_claims(token: str) -> Claims | None:
    """What *token* says, of which nothing is true yet: for choosing who is to judge it. None if it is no token."""
    parts = token.split(".") if len(token) <= MAX_TOKEN_BYTES and token.isascii() else []
    try:
        return json_object(decode_base64url(parts[1])) if len(parts) == 3 else None
    except ValueError:
        return None


def _verify_signature(token: ParsedToken, keys: Keys, rules: TokenRules) -> str:
    """The algorithm."""
    algorithm, key_id, kind = (token.header.get(name) for name in ("alg", "kid", "typ"))
    # Before any key is looked for: which algorithm counts is for us to say, and not for the token.
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
    """Whom it is from, whom it is for, and when it is good; raises `TokenRefused`."""
    _check_parties(claims, rules)
    _check_times(claims, rules, now)


def time_of(claims: Claims, name: str) -> float | int | None:
    """The time in the claim *name*, in seconds since 1970; None if there is none. Raises `TokenRefused`."""
    value = claims.get(name)
    if value is None:
        return None
    # A boolean is a number to Python. And numbers can be written that no clock will ever show: 1e999.
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
