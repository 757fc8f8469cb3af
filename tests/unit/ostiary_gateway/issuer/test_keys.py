"""One signing key. Its signatures are verified with joserfc, which shares no code with it."""

from __future__ import annotations

import json

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from joserfc import jwt
from joserfc.errors import BadSignatureError
from joserfc.jwk import ECKey, KeySet

from ostiary_gateway.issuer.keys import SigningKey

PKCS8 = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)


def verified(text: str, *keys: SigningKey) -> jwt.Token:
    return jwt.decode(text, KeySet([ECKey.import_key(dict(key.jwk)) for key in keys]), algorithms=["ES256"])


def test_another_library_verifies_what_it_signs() -> None:
    key, other = SigningKey.generate(), SigningKey.generate()
    token = verified(key.sign({"sub": "ann", "groups": ["a", "ü"]}), other, key)
    assert token.claims == {"sub": "ann", "groups": ["a", "ü"]}
    assert token.header == {"alg": "ES256", "kid": key.id, "typ": "JWT"}


def test_short_numbers_of_a_signature_keep_their_length() -> None:
    """One signature in 128 has an r or s that begins with a zero byte."""
    key = SigningKey.generate()
    for number in range(600):
        verified(key.sign({"n": number}), key)


def test_another_key_with_the_same_id_does_not_verify_it() -> None:
    key, other = SigningKey.generate(), SigningKey.generate()
    forged = ECKey.import_key({**other.jwk, "kid": key.id})
    with pytest.raises(BadSignatureError):
        jwt.decode(key.sign({"sub": "ann"}), KeySet([forged]), algorithms=["ES256"])


def test_the_id_is_the_thumbprint_of_the_public_key() -> None:
    key = SigningKey.generate()
    assert key.id == ECKey.import_key(dict(key.jwk)).thumbprint()
    assert SigningKey.from_pem(key.pem()).id == key.id


def test_what_is_published_has_no_private_half() -> None:
    key = SigningKey.generate()
    assert set(key.jwk) == {"crv", "kty", "x", "y", "kid", "use", "alg"}
    assert key.pem().splitlines()[1].decode() not in f"{key!r}{json.dumps(dict(key.jwk))}{vars(key)}"


@pytest.mark.parametrize(
    ("pem", "mistake"),
    [
        (b"canary-of-the-key", "it is not a private key in PEM"),
        (b"", "it is not a private key in PEM"),
        (
            ec.generate_private_key(ec.SECP256R1()).private_bytes(
                *PKCS8, serialization.BestAvailableEncryption(b"canary-password")
            ),
            "without a password",
        ),
        (ec.generate_private_key(ec.SECP384R1()).private_bytes(*PKCS8, serialization.NoEncryption()), "curve P-256"),
        (rsa.generate_private_key(65537, 2048).private_bytes(*PKCS8, serialization.NoEncryption()), "curve P-256"),
    ],
    ids=["text", "empty", "password", "P-384", "RSA"],
)
def test_a_file_that_is_no_key_is_refused_without_quoting_it(pem: bytes, mistake: str) -> None:
    with pytest.raises(ValueError, match=mistake) as caught:
        SigningKey.from_pem(pem)
    assert caught.value.__context__ is None
    assert "canary" not in str(caught.value)
