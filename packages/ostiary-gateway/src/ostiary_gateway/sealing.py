"""Encrypt text in a store with a secret that the store does not have.

    secret (a cookie, a code, a token that the client holds)  ->  key  ->  AES-GCM

Used for login transactions, and for the state of an identity provider in a session. The secrets are random and long, so
a digest suffices as key derivation.
"""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from hashlib import sha256

_NONCE_BYTES = 12


def derived_key(use: bytes, kind: bytes, secret: str) -> bytes:
    """Derive a 32-byte key of *secret* for one use and one kind of text. Keys of different uses are independent."""
    return sha256(b"ostiary\0" + use + b"\0" + kind + b"\0" + secret.encode("utf-8", "surrogatepass")).digest()


def seal(plain: bytes, kind: bytes, secret: str) -> bytes:
    # Imported lazily: commands that only list a store's sessions decrypt nothing.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = os.urandom(_NONCE_BYTES)
    return nonce + AESGCM(derived_key(b"seal", kind, secret)).encrypt(nonce, plain, kind)


def unseal(sealed: bytes, kind: bytes, secret: str) -> bytes | None:
    """Decrypt *sealed*; None if it was not sealed with this secret and for this kind."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        key = AESGCM(derived_key(b"seal", kind, secret))
        return key.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], kind)
    except (InvalidTag, ValueError):
        return None


def seal_text(text: str, kind: bytes, secret: str) -> str:
    return b64encode(seal(text.encode(), kind, secret)).decode()


def unseal_text(sealed: str, kind: bytes, secret: str) -> str | None:
    try:
        plain = unseal(b64decode(sealed, validate=True), kind, secret)
        return None if plain is None else plain.decode()
    except ValueError:
        return None
