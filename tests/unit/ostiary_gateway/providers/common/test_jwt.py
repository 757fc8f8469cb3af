"""Which tokens are believed. Every lie that an issuer, or somebody in its name, may tell."""

from __future__ import annotations

import base64
import hashlib
import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from joserfc.jwk import ECKey, KeyParameters, OKPKey
from joserfc.jws import JWSRegistry

from ostiary_gateway.providers.common.jwt import (
    KeyMissing,
    Keys,
    TokenRefused,
    TokenRules,
    at_hash,
    json_object,
    parse_keys,
    unverified_claims,
    verify,
)
from ostiary_gateway.providers.common.jwt_settings import ALGORITHMS
from ostiary_gateway.testing import FakeClock
from tests.support.issuer import ABSENT, ec_key, public, rsa_key, token

ISSUER = "https://sso.example.com"
RULES = TokenRules(ISSUER, frozenset(("gateway",)), client_id="gateway")
NOW = FakeClock().now()
SECONDS = int(NOW.timestamp())
KEY = ec_key()
KEYS = parse_keys({"keys": [public(KEY)]})
NONCE = "of-this-login"
TRUE = {
    "iss": ISSUER,
    "sub": "7f3a",
    "aud": "gateway",
    "exp": SECONDS + 300,
    "iat": SECONDS,
    "nonce": NONCE,
    "at_hash": at_hash("access", "ES256"),
}


def made(claims: dict[str, Any] | None = None, key: Any = KEY, **header: Any) -> str:
    changed = {name: value for name, value in {**TRUE, **(claims or {})}.items() if value is not ABSENT}
    return token(changed, key, **header)


def checked(text: str, keys: Keys = KEYS, rules: TokenRules = RULES) -> Any:
    return verify(text, keys, rules, now=NOW, nonce=NONCE, access_token="access")


def test_a_true_token_is_believed() -> None:
    assert checked(made())["sub"] == "7f3a"
    assert checked(made({"aud": ["gateway"], "azp": "gateway", "nbf": SECONDS}, typ="JWT"))
    assert checked(made(key=KEY, kid=ABSENT)), "one key, so that none need be named"
    assert checked(made(x_unknown="ignored, as RFC 7515 says"))


LIES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("another issuer", {"iss": "https://evil.example"}, {}),
    ("no issuer", {"iss": ABSENT}, {}),
    ("the issuer with a slash more", {"iss": f"{ISSUER}/"}, {}),
    ("the issuer in a list", {"iss": [ISSUER]}, {}),
    ("another audience", {"aud": "somebody-else"}, {}),
    ("an audience too many", {"aud": ["gateway", "somebody-else"], "azp": "gateway"}, {}),
    ("no audience", {"aud": ABSENT}, {}),
    ("an empty list of audiences", {"aud": []}, {}),
    ("an audience that is no text", {"aud": [["gateway"]]}, {}),
    ("an audience that is a mapping", {"aud": {"gateway": True}}, {}),
    ("another authorized party", {"azp": "somebody-else"}, {}),
    ("an authorized party that is nothing", {"azp": ""}, {}),
    ("expired", {"exp": SECONDS - 30}, {}),
    ("no expiry", {"exp": ABSENT}, {}),
    ("an expiry that is a text", {"exp": "2999-01-01"}, {}),
    ("an expiry that is true", {"exp": True}, {}),
    ("an infinite expiry", {"exp": float("inf")}, {}),
    ("an expiry that no float can hold", {"exp": 10**400}, {}),
    ("an expiry before there was time", {"exp": -(10**400)}, {}),
    ("an expiry that is no number", {"exp": float("nan")}, {}),
    ("issued in the future", {"iat": SECONDS + 31}, {}),
    ("not issued", {"iat": ABSENT}, {}),
    ("issued at a text", {"iat": "now"}, {}),
    ("not yet valid", {"nbf": SECONDS + 31}, {}),
    ("no subject", {"sub": ABSENT}, {}),
    ("an empty subject", {"sub": ""}, {}),
    ("a long subject", {"sub": "x" * 256}, {}),
    ("a subject that is a number", {"sub": 7}, {}),
    ("another nonce", {"nonce": "another"}, {}),
    ("no nonce", {"nonce": ABSENT}, {}),
    ("a nonce that is a list", {"nonce": [NONCE]}, {}),
    ("a nonce that has no bytes", {"nonce": "\ud800"}, {}),
    ("another at_hash", {"at_hash": at_hash("another", "ES256")}, {}),
    ("an at_hash that is null", {"at_hash": None}, {}),
    ("unsigned", {}, {"alg": "none"}),
    ("unsigned in capitals", {}, {"alg": "none", "typ": "JWT", "kid": ABSENT}),
    ("signed with the public key", {}, {"alg": "HS256"}),
    ("a critical extension", {}, {"crit": ["exp"], "exp": 1}),
    ("content that is not encoded", {}, {"crit": ["b64"], "b64": False}),
    ("an access token", {}, {"typ": "at+jwt"}),
    ("a logout token", {}, {"typ": "logout+jwt"}),
    ("a type that is a number", {}, {"typ": 1}),
    ("a key id that is a number", {}, {"kid": 1}),
]


def test_a_lie_is_not_believed(subtests: pytest.Subtests) -> None:
    """L7, L2."""
    for lie, claims, header in LIES:
        with subtests.test(lie):
            with pytest.raises(TokenRefused) as refused:
                checked(made(claims, **header))
            assert not isinstance(refused.value, KeyMissing), "no other key would change it"


def test_an_unknown_key_may_be_a_newer_one() -> None:
    with pytest.raises(KeyMissing):
        checked(made(kid="ec-2"))
    with pytest.raises(KeyMissing):
        checked(made(key=ec_key("ec-1")))


def test_a_key_that_the_token_brings_along_is_not_used() -> None:
    """L7. Neither ``jwk`` nor an address of one."""
    theirs = ec_key()
    for header in ({"jwk": public(theirs)}, {"jku": "https://evil.example/keys"}, {"x5u": "https://evil.example/x"}):
        with pytest.raises(TokenRefused):
            checked(made(key=theirs, **header))


def test_an_algorithm_is_allowed_by_us_and_fits_the_key() -> None:
    keys = parse_keys({"keys": [public(rsa_key()), public(KEY), public(rsa_key("only-rs256"), alg="RS256")]})
    narrow = TokenRules(ISSUER, RULES.audiences, "gateway", frozenset(("ES256",)))
    for algorithm in ("RS256", "PS384", "RS512"):
        assert checked(made({"at_hash": ABSENT}, rsa_key(), alg=algorithm), keys)
        with pytest.raises(TokenRefused, match="algorithm"):
            checked(made({"at_hash": ABSENT}, rsa_key(), alg=algorithm), keys, narrow)
    with pytest.raises(TokenRefused):
        checked(made({"at_hash": ABSENT}, rsa_key("only-rs256"), alg="PS256"), keys)
    with pytest.raises(TokenRefused):
        checked(made(key=rsa_key(), kid="ec-1"), keys)


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [
        (ECKey.generate_key("P-384", KeyParameters(kid="k")), "ES384"),
        (ECKey.generate_key("P-521", KeyParameters(kid="k")), "ES512"),
        (OKPKey.generate_key("Ed25519", KeyParameters(kid="k")), "EdDSA"),
        (OKPKey.generate_key("Ed25519", KeyParameters(kid="k")), "Ed25519"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_every_algorithm_has_its_hash(key: Any, algorithm: str) -> None:
    keys = parse_keys({"keys": [public(key)]})
    assert checked(made({"at_hash": at_hash("access", algorithm)}, key, alg=algorithm), keys)
    assert len(at_hash("access", algorithm)) > len(at_hash("access", "ES256"))
    assert ALGORITHMS[algorithm].hash in hashlib.algorithms_guaranteed


def test_an_at_hash_needs_its_access_token() -> None:
    with pytest.raises(TokenRefused, match="at_hash"):
        verify(made(), KEYS, RULES, now=NOW, nonce=NONCE)
    assert verify(made({"at_hash": ABSENT}), KEYS, RULES, now=NOW, nonce=NONCE)


def test_the_boundary_second() -> None:
    skew = timedelta(seconds=30)
    assert verify(made(), KEYS, RULES, now=NOW + timedelta(seconds=329), nonce=NONCE, access_token="access")
    with pytest.raises(TokenRefused, match="expired"):
        verify(made(), KEYS, RULES, now=NOW + timedelta(seconds=300) + skew, nonce=NONCE, access_token="access")
    assert verify(made(), KEYS, RULES, now=NOW - skew, nonce=NONCE, access_token="access")


def test_a_token_for_a_client_need_not_be_for_one_without_it() -> None:
    """A cookie's token has audiences, and neither nonce nor subject that we ask for."""
    rules = TokenRules(ISSUER, frozenset(("gateway", "reports")))
    plain = {"sub": ABSENT, "nonce": ABSENT, "at_hash": ABSENT, "iat": ABSENT, "azp": "portal"}
    assert verify(made({**plain, "aud": ["gateway", "reports"]}), KEYS, rules, now=NOW)
    for aud in ("portal", ["gateway", "portal"]):
        with pytest.raises(TokenRefused):
            verify(made({**plain, "aud": aud}), KEYS, rules, now=NOW)


@given(st.text(max_size=200) | st.text(alphabet="eyJ.-_0aA=", max_size=200))
def test_any_text_is_refused_and_nothing_else_happens(text: str) -> None:
    with pytest.raises(TokenRefused):
        checked(text)


@given(st.data())
@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
def test_a_token_that_is_changed_anywhere_is_refused_or_means_the_same(data: st.DataObject) -> None:
    whole = made()
    place = data.draw(st.integers(0, len(whole) - 1))
    changed = whole[:place] + data.draw(st.sampled_from("Aa0_-.=eé\n")) + whole[place + 1 :]
    try:
        claims = checked(changed)
    except TokenRefused:
        return
    assert claims == TRUE


def test_no_refusal_repeats_the_token() -> None:
    """L6."""
    for text in (made(kid="x"), made({"aud": "x"}), made(alg="none"), "canary.canary.canary"):
        with pytest.raises(TokenRefused) as refused:
            checked(text)
        assert refused.value.__cause__ is None
        assert not any(part in repr(refused.value) for part in text.split(".") if part)


# --- keys ---


def test_what_is_no_set_of_keys_is_told(subtests: pytest.Subtests) -> None:
    documents: list[object] = [None, [], {}, {"keys": {}}, {"keys": [{}] * 33}, "keys"]
    for document in documents:
        with subtests.test(document=document), pytest.raises(ValueError, match="it "):
            parse_keys(document)


@pytest.mark.filterwarnings("error")
def test_a_key_that_cannot_be_used_is_left_out_and_the_others_serve(subtests: pytest.Subtests) -> None:
    cases = [
        7,
        {},
        {"kty": "oct", "k": "c2VjcmV0"},
        {"kty": "unheard-of"},
        {"kty": "RSA"},
        {"kty": "RSA", "n": "AQAB", "e": "AQAB"},
        {"kty": "RSA", "n": "_" * 3000, "e": "AQAB"},
        {"kty": "RSA", "n": 7, "e": "AQAB"},
        {"kty": "EC", "crv": "P-256", "x": "AQAB", "y": "AQAB"},
        {"kty": "EC", "crv": "P-256", "x": 7, "y": None},
        {"kty": "OKP", "crv": "X25519", "x": "AQAB"},
        {"kty": "OKP", "crv": "Ed25519", "x": "AQAB"},
        {**public(KEY), "use": "enc"},
        {**public(KEY), "key_ops": ["sign"]},
        {**public(KEY), "key_ops": "verify"},
        {**public(KEY), "kid": 7},
        {**public(KEY), "alg": 7},
    ]
    for unusable in cases:
        with subtests.test(unusable=unusable):
            assert parse_keys({"keys": [unusable]}).published == ()
            assert checked(made(), parse_keys({"keys": [unusable, public(KEY)]}))


@given(st.binary(max_size=60))
def test_json_is_an_object_or_nothing(text: bytes) -> None:
    assert isinstance(json_object(text), dict | None)


def test_json_has_no_numbers_that_are_none() -> None:
    assert json_object(b'{"exp": NaN}') is None
    assert json_object(b'{"exp": Infinity}') is None
    assert json_object(b"[" * 100_000) is None


def test_content_that_is_not_encoded_is_refused_though_it_is_signed() -> None:
    """RFC 7797, 7: no token is made like that, so nobody need understand one."""
    header = base64.urlsafe_b64encode(json.dumps({"alg": "ES256", "b64": False, "crit": ["b64"]}).encode()).rstrip(b"=")
    signed = header + b"." + json.dumps(TRUE).replace(".", "\\u002e").encode()
    signature = base64.urlsafe_b64encode(JWSRegistry.algorithms["ES256"].sign(signed, KEY)).rstrip(b"=")
    with pytest.raises(TokenRefused, match="not a signed token"):
        checked((signed + b"." + signature).decode())


def test_what_is_no_token_says_nothing(subtests: pytest.Subtests) -> None:
    for text in ["", "a.b", "a.b.c", "é.é.é", "a.e30.c.d", "x" * 70_000]:
        with subtests.test(text=text):
            assert unverified_claims(text) is None


def test_a_token_says_what_nobody_has_verified() -> None:
    assert unverified_claims(made({"sub": "anybody"}, key=ec_key("forged")))["sub"] == "anybody"  # type: ignore[index]
