"""Addresses of external keys: ``pkcs11:token=...``, ``tpm2:handle:0x81000001``. Pure.

The plugin for the scheme parses the rest. An address is valid wherever the path of a key file is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from ostiary.errors import ConfigurationError
from ostiary.model import SignatureScheme

# At least two letters: one may be the drive of a path.
_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]+):(.*)", re.DOTALL)
LONGEST = 4096


@dataclass(frozen=True, slots=True)
class KeyAddress:
    """An address and the base of its relative paths. It holds no secret, because a PIN in it is rejected."""

    text: str
    directory: Path = Path()

    @property
    def scheme(self) -> str:
        return self.text.partition(":")[0]

    @property
    def rest(self) -> str:
        return self.text.partition(":")[2]

    def __str__(self) -> str:
        return self.text


def key_file(place: Path | KeyAddress | None) -> Path | None:
    """Return the file of a key; None for an external key, which has no file to check."""
    return place if isinstance(place, Path) else None


def is_address(text: str) -> bool:
    """Return whether *text* is an address, and not the path of a file. A file of such a name is written ``./a:b``."""
    return _ADDRESS.fullmatch(text) is not None


def parse_address(text: str, directory: Path = Path()) -> KeyAddress:
    """Parse *text*; raises `ValueError` with a sentence."""
    if len(text) > LONGEST:
        raise ValueError(f"it is longer than {LONGEST} characters")
    if not is_address(text):
        raise ValueError("it does not begin with a scheme, as in pkcs11:... or tpm2:handle:0x81000001")
    if not text.isprintable():
        raise ValueError("it contains a line break or another control character")
    return KeyAddress(text, directory)


def read_address(text: str, directory: Path = Path()) -> KeyAddress:
    """Like `parse_address`, but raises `ConfigurationError`."""
    try:
        return parse_address(text, directory)
    except ValueError as error:
        summary = "the address of a key cannot be read"
        raise ConfigurationError(summary, cause=str(error), code="key-address-invalid") from None


# Signature schemes and display names of keys.

PublicKey: TypeAlias = EllipticCurvePublicKey | RSAPublicKey
SMALLEST_RSA_BITS = 2048


@dataclass(frozen=True, slots=True)
class Curve:
    openssl_name: str
    # Of one of the two numbers of a signature.
    size: int


CURVES = {
    "secp256r1": Curve("prime256v1", 32),
    "secp384r1": Curve("secp384r1", 48),
    "secp521r1": Curve("secp521r1", 66),
}


def usable_public_key(key: object) -> PublicKey:
    """Return *key* if it can sign in TLS; raises `ValueError` with a sentence."""
    if isinstance(key, EllipticCurvePublicKey):
        if key.curve.name not in CURVES:
            raise ValueError(f"the curve {key.curve.name} is not one of {', '.join(CURVES)}")
        return key
    if isinstance(key, RSAPublicKey):
        if key.key_size < SMALLEST_RSA_BITS:
            raise ValueError(f"the RSA key has {key.key_size} bits, and needs {SMALLEST_RSA_BITS}")
        return key
    raise ValueError("the key is neither an EC nor an RSA key")


def scheme_for(key: PublicKey, hash_name: str, *, is_pss: bool = True) -> SignatureScheme:
    """Return the signature scheme; raises `ValueError` if there is none, as for SHA-1."""
    kind = "ecdsa" if isinstance(key, EllipticCurvePublicKey) else "rsa-pss" if is_pss else "rsa-pkcs1"
    return SignatureScheme(f"{kind}-{hash_name}")


def signature_bytes(key: PublicKey) -> int:
    """Return the maximum signature length of *key*: for EC two numbers in DER, each with a sign byte and a header."""
    if isinstance(key, RSAPublicKey):
        return (key.key_size + 7) // 8
    return 2 * (CURVES[key.curve.name].size + 3) + 4


def kind_of(key: PublicKey) -> str:
    """Return the display name: EC P-256, RSA 2048."""
    if isinstance(key, RSAPublicKey):
        return f"RSA {key.key_size}"
    return f"EC P-{key.key_size}"
