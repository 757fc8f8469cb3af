"""XML signatures, signatures of the redirect binding, and the gateway's own key pair.

    an element -> one ds:Signature, a child of it -> one Reference, to that element -> a trusted key -> the signed bytes

Callers supply the trusted keys; a key inside a signature is ignored (`docs/decisions/0067`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from lxml import etree
from signxml.algorithms import CanonicalizationMethod, DigestAlgorithm, SignatureConstructionMethod, SignatureMethod
from signxml.signer import XMLSigner
from signxml.verifier import SignatureConfiguration, XMLVerifier

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.watched_file import WatchedFile
from ostiary.core.yaml import ConfigSection
from ostiary.errors import ConfigurationError, ProviderError
from ostiary.model import Place, Problem
from ostiary_gateway.providers.saml.settings import ALGORITHMS
from ostiary_gateway.providers.saml.xml import (
    DS,
    DocumentRefused,
    attribute,
    check_ids,
    children,
    local_name,
    name,
    parse,
    quoted,
    required_child,
    serialize,
)

# signxml logs whole documents at DEBUG.
logging.getLogger("signxml").setLevel(logging.INFO)

PrivateKey: TypeAlias = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey

_DIGESTS = frozenset((DigestAlgorithm.SHA256, DigestAlgorithm.SHA384, DigestAlgorithm.SHA512))
_HASHES: Mapping[str, type[hashes.HashAlgorithm]] = MappingProxyType(
    {"256": hashes.SHA256, "384": hashes.SHA384, "512": hashes.SHA512}
)
ENVELOPED = SignatureConstructionMethod.enveloped.value
EXCLUSIVE = CanonicalizationMethod.EXCLUSIVE_XML_CANONICALIZATION_1_0.value
# The parser removes comments, so both variants give the same bytes.
_EXCLUSIVE = frozenset((EXCLUSIVE, CanonicalizationMethod.EXCLUSIVE_XML_CANONICALIZATION_1_0_WITH_COMMENTS.value))
# The canonicalisation of SignedInfo itself. It does not affect the signed content.
_OF_SIGNED_INFO = _EXCLUSIVE | {
    CanonicalizationMethod.CANONICAL_XML_1_0.value,
    CanonicalizationMethod.CANONICAL_XML_1_1.value,
}
_PARTS = frozenset(name(DS, each) for each in ("SignedInfo", "SignatureValue", "KeyInfo"))
MOST_CERTIFICATES = 8
# Anyone may send a logout request, and each key has to be tried. A signature with many elements, inside many
# namespaces, takes twenty times as long to verify as a normal one.
MOST_IN_SIGNATURE, MOST_NAMESPACES = 64, 64


class KeyUnknown(DocumentRefused):
    """The signature is well formed, but no trusted key made it. The IdP may have a new key."""


def is_signed(element: etree._Element) -> bool:
    """Return whether *element* has a signature of its own, valid or not."""
    return bool(children(element, DS, "Signature"))


def verify_element(
    element: etree._Element, certificates: Sequence[x509.Certificate], algorithms: Collection[str]
) -> etree._Element:
    """Verify the signature in *element* and return the signed element, or raise `DocumentRefused`.

    The result is parsed from the very bytes whose digest was compared, and has no signature in it. Use nothing else of
    the document afterwards.
    """
    if len(element.nsmap) > MOST_NAMESPACES or _elements_in_signatures(element) > MOST_IN_SIGNATURE:
        raise DocumentRefused("the signature has more elements or namespaces than any signature of SAML")
    # Serialised once: the checks here and the library work on the same bytes.
    alone = serialize(element)
    candidate = parse(alone, limit=len(alone))
    check_ids(candidate)
    _check_shape(candidate, algorithms)
    for certificate in certificates[:MOST_CERTIFICATES]:
        signed = _signed_bytes(alone, certificate, algorithms)
        if signed is not None:
            return _checked_root(parse(signed, limit=len(signed)), candidate)
    raise KeyUnknown(f"the signature of the {local_name(element)} fits no key of the identity system")


def _elements_in_signatures(element: etree._Element) -> int:
    return sum(1 for signature in children(element, DS, "Signature") for _ in signature.iter())


def _check_shape(candidate: etree._Element, algorithms: Collection[str]) -> None:
    signature = required_child(candidate, DS, "Signature")
    if any(child.tag not in _PARTS for child in signature):
        # The signature does not cover the content of an Object, but a reader might use it.
        raise DocumentRefused("the signature has more parts than a signature of SAML")
    signed_info = required_child(signature, DS, "SignedInfo")
    method = attribute(required_child(signed_info, DS, "SignatureMethod"), "Algorithm")
    if method not in {ALGORITHMS[each] for each in algorithms}:
        raise DocumentRefused(f"the signature algorithm is not accepted: {quoted(method)}")
    if attribute(required_child(signed_info, DS, "CanonicalizationMethod"), "Algorithm") not in _OF_SIGNED_INFO:
        raise DocumentRefused("the canonicalisation of SignedInfo is not accepted")
    reference = required_child(signed_info, DS, "Reference")
    if reference.get("URI") != f"#{attribute(candidate, 'ID')}":
        raise DocumentRefused(f"the signature is not about the {local_name(candidate)} that it stands in")
    transforms = [attribute(each, "Algorithm") for each in required_child(reference, DS, "Transforms")]
    if len(transforms) != 2 or transforms[0] != ENVELOPED or transforms[1] not in _EXCLUSIVE:
        raise DocumentRefused("the transforms of the signature are not accepted")
    digest = attribute(required_child(reference, DS, "DigestMethod"), "Algorithm")
    if digest not in {each.value for each in _DIGESTS}:
        raise DocumentRefused(f"the digest algorithm is not accepted: {quoted(digest)}")


def _signed_bytes(alone: bytes, certificate: x509.Certificate, algorithms: Collection[str]) -> bytes | None:
    """Return the bytes signed with the key of *certificate*, or None if they are not."""
    rules = SignatureConfiguration(
        location="./",
        expect_references=1,
        signature_methods=frozenset(SignatureMethod(ALGORITHMS[each]) for each in algorithms),
        digest_algorithms=_DIGESTS,
        # A certificate in metadata is only a container for a key, which is valid as long as it is listed there.
        verification_time=certificate.not_valid_before_utc,
        ignore_ambiguous_key_info=True,
    )
    try:
        result = XMLVerifier().verify(alone, x509_cert=certificate, expect_config=rules)
    except Exception:
        # The library may raise anything for an untrusted document. Then the signature is not valid.
        return None
    return None if isinstance(result, list) else bytes(result.signed_data)


def _checked_root(signed: etree._Element, candidate: etree._Element) -> etree._Element:
    if (signed.tag, signed.get("ID")) != (candidate.tag, candidate.get("ID")) or is_signed(signed):
        raise DocumentRefused("the signature covers another element")
    return signed


def sign_element(element: etree._Element, key: PrivateKey, certificate: x509.Certificate) -> etree._Element:
    """Return *element* with a signature after its Issuer, as SAML requires."""
    place = etree.Element(f"{{{DS}}}Signature", nsmap={"ds": DS})
    place.set("Id", "placeholder")
    element.insert(1 if len(element) and local_name(element[0]) == "Issuer" else 0, place)
    signer = XMLSigner(
        signature_algorithm=signature_method(key), digest_algorithm=DigestAlgorithm.SHA256, c14n_algorithm=EXCLUSIVE
    )
    return signer.sign(element, key=key, cert=[certificate], reference_uri=f"#{attribute(element, 'ID')}")


# --- signatures of the redirect binding ---


def signature_method(key: PrivateKey | rsa.RSAPublicKey | ec.EllipticCurvePublicKey) -> SignatureMethod:
    return (
        SignatureMethod.RSA_SHA256
        if isinstance(key, (rsa.RSAPrivateKey, rsa.RSAPublicKey))
        else SignatureMethod.ECDSA_SHA256
    )


def sign_bytes(data: bytes, key: PrivateKey) -> bytes:
    if isinstance(key, rsa.RSAPrivateKey):
        return key.sign(data, padding.PKCS1v15(), hashes.SHA256())
    return key.sign(data, ec.ECDSA(hashes.SHA256()))


def verify_bytes(
    data: bytes,
    signature: bytes,
    algorithm: str,
    certificates: Sequence[x509.Certificate],
    algorithms: Collection[str],
) -> None:
    """Raise `DocumentRefused` unless one of *certificates* made *signature*. *algorithm* is a URI."""
    names = [each for each in algorithms if ALGORITHMS[each] == algorithm]
    if not names:
        raise DocumentRefused(f"the signature algorithm is not accepted: {quoted(algorithm)}")
    for certificate in certificates[:MOST_CERTIFICATES]:
        try:
            _verify_with(certificate.public_key(), data, signature, names[0])
        except (InvalidSignature, TypeError):
            continue
        return
    raise KeyUnknown("the signature of the query fits no key of the identity system")


def _verify_with(key: object, data: bytes, signature: bytes, algorithm: str) -> None:
    digest = next(made() for bits, made in _HASHES.items() if f"sha{bits}" in algorithm)
    if algorithm.startswith("ecdsa-") and isinstance(key, ec.EllipticCurvePublicKey):
        key.verify(signature, data, ec.ECDSA(digest))
    elif algorithm.startswith("rsa-") and isinstance(key, rsa.RSAPublicKey):
        key.verify(signature, data, padding.PKCS1v15(), digest)
    elif algorithm.endswith("-mgf1") and isinstance(key, rsa.RSAPublicKey):
        key.verify(signature, data, padding.PSS(padding.MGF1(digest), digest.digest_size), digest)
    else:
        raise TypeError("the key is of another kind")


# The gateway's key and certificate, from files that are reloaded when they change.

LEAST_RSA_BITS = 2048
_CURVES = (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)
MAX_FILE = 64 * 1024


@dataclass(frozen=True, slots=True)
class KeyPair:
    key: PrivateKey = field(repr=False)
    certificate: x509.Certificate

    @property
    def decryption_key(self) -> rsa.RSAPrivateKey | None:
        """The key for decryption, if it is RSA; other keys cannot decrypt."""
        return self.key if isinstance(self.key, rsa.RSAPrivateKey) else None


def check_strength(key: object) -> None:
    """Raise ValueError if *key* is too weak to trust its signatures."""
    if isinstance(key, rsa.RSAPublicKey):
        if key.key_size < LEAST_RSA_BITS:
            raise ValueError(f"an RSA key has {key.key_size} bits, and needs {LEAST_RSA_BITS}")
    elif not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, _CURVES):
        raise ValueError("a key is neither RSA nor of one of the curves P-256, P-384 and P-521")


class OwnKey:
    """The gateway's key and certificate for SAML, reloaded when their files change."""

    def __init__(
        self, key: str | os.PathLike[str], certificate: str | os.PathLike[str], *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._key = WatchedFile(key, _read_key, clock=clock)
        self._certificate = WatchedFile(certificate, read_certificate, clock=clock)

    def current(self) -> KeyPair:
        """Return the key pair. Raise `ProviderError` while the files cannot be used."""
        try:
            return self._pair()
        except ConfigurationError as error:
            cause = error.cause or error.summary
            raise ProviderError("the key of the gateway cannot be read", cause=cause, where=error.where) from None

    def check(self, fields: ConfigSection) -> None:
        """Read both files once. An error is reported for the setting that names the file."""
        self._key.check(fields, "keyFile")
        self._certificate.check(fields, "certificateFile")
        try:
            self._pair()
        except ConfigurationError as error:
            # An error in one of the files has already been reported.
            if not error.problems:
                fields.problem(error.summary, "certificateFile")

    def _pair(self) -> KeyPair:
        pair = KeyPair(self._key.current(), self._certificate.current())
        if pair.key.public_key() != pair.certificate.public_key():
            raise ConfigurationError("the certificate is not that of the key")
        return pair


def read_certificate(path: str) -> x509.Certificate:
    try:
        with Path(path).open("rb") as file:
            certificate = x509.load_pem_x509_certificate(file.read(MAX_FILE))
        check_strength(certificate.public_key())
    except OSError as error:
        why = error.strerror or "it cannot be opened"
    except ValueError as error:
        why = str(error) if "key" in str(error) else "it is not a certificate (PEM)"
    else:
        return certificate
    raise ConfigurationError("the certificate cannot be read", problems=[Problem(why, Place(path))])


def _read_key(path: str) -> PrivateKey:
    why = "it is not a private key (PEM, without a password): RSA, or on the curve P-256, P-384 or P-521"
    try:
        with Path(path).open("rb") as file:
            key = load_pem_private_key(file.read(MAX_FILE), None)
        if isinstance(key, (rsa.RSAPrivateKey, ec.EllipticCurvePrivateKey)):
            check_strength(key.public_key())
            return key
    except OSError as error:
        why = error.strerror or "it cannot be opened"
    except (ValueError, TypeError):
        pass
    # Raised outside of the handler: a library's exception may contain parts of the key.
    raise ConfigurationError("the key cannot be read", problems=[Problem(why, Place(path))])
