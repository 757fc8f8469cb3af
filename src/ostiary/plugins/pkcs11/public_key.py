"""The public half of a key in a token: from the key itself, or from what is stored beside it under the same id."""

from __future__ import annotations

from contextlib import suppress

import pkcs11
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from pkcs11 import Attribute, KeyType, ObjectClass
from pkcs11 import exceptions as reasons

from ostiary.core.keys.schemes import PublicKey, usable_public_key
from ostiary.errors import KeyUnusable

_CURVES = {
    bytes.fromhex("06082a8648ce3d030107"): ec.SECP256R1(),
    bytes.fromhex("06052b81040022"): ec.SECP384R1(),
    bytes.fromhex("06052b81040023"): ec.SECP521R1(),
}


def read_public_key(session: pkcs11.Session, key: pkcs11.PrivateKey) -> PublicKey:
    """Raises `KeyUnusable` if the token has it nowhere, or it is of a kind that we do not know."""
    if key.key_type is KeyType.RSA:
        modulus, exponent = (
            int.from_bytes(key[name], "big") for name in (Attribute.MODULUS, Attribute.PUBLIC_EXPONENT)
        )
        return _usable(rsa.RSAPublicNumbers(exponent, modulus).public_key())
    for kind, read in ((ObjectClass.PUBLIC_KEY, _point), (ObjectClass.CERTIFICATE, _certified)):
        for each in session.get_objects({Attribute.CLASS: kind, Attribute.ID: key[Attribute.ID]}):
            with suppress(reasons.PKCS11Error, ValueError):
                return _usable(read(each))
    raise KeyUnusable(
        "the key cannot be used",
        cause="the token has neither a public key nor a certificate with the id of the private key",
        hint="write one of them to the token: pkcs11-tool --write-object cert.der --type cert --id ID",
        code="key-not-found",
    )


def _usable(public: object) -> PublicKey:
    try:
        return usable_public_key(public)
    except ValueError as error:
        raise KeyUnusable("the key cannot be used", cause=str(error), code="key-mismatch") from None


def _point(each: pkcs11.Object) -> object:
    curve = _CURVES.get(bytes(each[Attribute.EC_PARAMS]))
    if curve is None:
        raise KeyUnusable(
            "the key cannot be used", cause="its curve is none of P-256, P-384, P-521", code="key-mismatch"
        )
    point = bytes(each[Attribute.EC_POINT])
    # An OCTET STRING in DER around the point, which some tokens leave out.
    length = 1 + 2 * ((curve.key_size + 7) // 8)
    return ec.EllipticCurvePublicKey.from_encoded_point(curve, point[-length:])


def _certified(each: pkcs11.Object) -> object:
    return x509.load_der_x509_certificate(bytes(each[Attribute.VALUE])).public_key()
