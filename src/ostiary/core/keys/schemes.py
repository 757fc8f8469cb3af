"""Which signature goes with which key, and what curves are called. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from ostiary.model import SignatureScheme

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
    """*key*, if it is of a kind that signs in TLS; raises `ValueError` with a sentence."""
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
    """Raises `ValueError` if there is none: for SHA-1, for instance."""
    kind = "ecdsa" if isinstance(key, EllipticCurvePublicKey) else "rsa-pss" if is_pss else "rsa-pkcs1"
    return SignatureScheme(f"{kind}-{hash_name}")


def signature_bytes(key: PublicKey) -> int:
    """The longest signature of *key*: for EC two numbers in DER, each with a sign byte and a head."""
    if isinstance(key, RSAPublicKey):
        return (key.key_size + 7) // 8
    return 2 * (CURVES[key.curve.name].size + 3) + 4


def kind_of(key: PublicKey) -> str:
    """For people: EC P-256, RSA 2048."""
    if isinstance(key, RSAPublicKey):
        return f"RSA {key.key_size}"
    return f"EC P-{key.key_size}"
