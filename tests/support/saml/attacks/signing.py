"""Signatures that are missing, empty, by somebody else, or made with what proves nothing."""

from __future__ import annotations

import base64
import hashlib
import hmac

import xmlsec
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from lxml import etree

from tests.support.saml.attacks.scene import (
    Corpus,
    Scene,
    after_issuer,
    clone,
    find,
    rename_victim,
    signature_of,
)
from tests.support.saml.documents import DS, sign, text

SIGNING = Corpus()


@SIGNING.add
def no_signature(scene: Scene) -> etree._Element:
    return scene.response(scene.forged())


@SIGNING.add
def changed_after_it_was_signed(scene: Scene) -> etree._Element:
    return rename_victim(scene.honest())


@SIGNING.add
def changed_in_a_signed_response(scene: Scene) -> etree._Element:
    return rename_victim(scene.signed_response())


@SIGNING.add
def signature_removed(scene: Scene) -> etree._Element:
    response = rename_victim(scene.honest())
    assertion = find(response, "saml:Assertion")
    assertion.remove(signature_of(assertion))
    return response


@SIGNING.add
def signature_of_the_response_removed(scene: Scene) -> etree._Element:
    response = rename_victim(scene.signed_response())
    response.remove(signature_of(response))
    return response


@SIGNING.add
def empty_signature(scene: Scene) -> etree._Element:
    forged = scene.forged()
    after_issuer(forged, etree.Element(f"{{{DS}}}Signature"))
    return scene.response(forged)


def _with_signature(scene: Scene, inner: str) -> etree._Element:
    forged = scene.forged()
    after_issuer(forged, etree.fromstring(f'<ds:Signature xmlns:ds="{DS}">{inner}</ds:Signature>'))
    return scene.response(forged)


_METHODS = (
    '<ds:CanonicalizationMethod Algorithm="http://www.w3.org/2001/10/xml-exc-c14n#"/>'
    '<ds:SignatureMethod Algorithm="http://www.w3.org/2001/04/xmldsig-more#rsa-sha256"/>'
)
SIGNING.named(
    "empty SignedInfo",
    lambda scene: _with_signature(scene, "<ds:SignedInfo/><ds:SignatureValue/>"),
)
SIGNING.named(
    "no Reference",
    lambda scene: _with_signature(scene, f"<ds:SignedInfo>{_METHODS}</ds:SignedInfo><ds:SignatureValue/>"),
)


@SIGNING.add
def no_reference_but_a_good_signature_value(scene: Scene) -> etree._Element:
    """SignedInfo without a Reference covers nothing; signed by the identity system all the same."""
    forged = scene.forged()
    forged = sign(forged, scene.idp.signer)
    signature = signature_of(forged)
    info = find(signature, "ds:SignedInfo")
    info.remove(find(info, "ds:Reference"))
    return scene.response(_resigned(forged, scene))


def _resigned(element: etree._Element, scene: Scene) -> etree._Element:
    """The value of the signature made anew by the identity system, over SignedInfo as it is now."""
    signature = signature_of(element)
    info = etree.tostring(find(signature, "ds:SignedInfo"), method="c14n", exclusive=True)
    key = scene.idp.signer.key
    assert isinstance(key, rsa.RSAPrivateKey)
    value = key.sign(info, padding.PKCS1v15(), hashes.SHA256())
    find(signature, "ds:SignatureValue").text = base64.b64encode(value).decode()
    return element


def _referring(scene: Scene, uri: str | None) -> etree._Element:
    """A good signature of the identity system, whose only Reference is to something else."""
    assertion = scene.assertion()
    reference = find(assertion, "ds:Signature/ds:SignedInfo/ds:Reference")
    if uri is None:
        del reference.attrib["URI"]
    else:
        reference.set("URI", uri)
    return scene.response(rename_victim(_resigned(assertion, scene)))


for _uri in (None, "", "#_status", "https://idp.example.com/assertion", "file:///etc/hostname", "#xpointer(/)"):
    SIGNING.named(f"the Reference has the URI {_uri}", lambda scene, uri=_uri: _referring(scene, uri))  # type: ignore[misc]


@SIGNING.add
def two_references(scene: Scene) -> etree._Element:
    """The first one is right, and the second one is about nothing that matters."""
    assertion = scene.assertion()
    info = find(assertion, "ds:Signature/ds:SignedInfo")
    info.append(clone(find(info, "ds:Reference")))
    return scene.response(_resigned(assertion, scene))


@SIGNING.add
def signature_over_the_status_only(scene: Scene) -> etree._Element:
    response = scene.response(scene.forged())
    find(response, "samlp:Status").set("ID", "_status")
    signed = scene.idp.assertion(scene.asked, "mallory")
    signed = sign(signed, scene.idp.signer)
    signature = signature_of(signed)
    find(signature, "ds:SignedInfo/ds:Reference").set("URI", "#_status")
    status = etree.tostring(find(response, "samlp:Status"), method="c14n", exclusive=True)
    find(signature, "ds:SignedInfo/ds:Reference/ds:DigestValue").text = base64.b64encode(
        hashlib.sha256(status).digest()
    ).decode()
    after_issuer(response, signature)
    return _resigned(response, scene)


@SIGNING.add
def two_signatures_in_one_assertion(scene: Scene) -> etree._Element:
    assertion = scene.assertion()
    assertion.append(clone(signature_of(assertion)))
    return scene.response(assertion)


@SIGNING.add
def signed_by_a_stranger(scene: Scene) -> etree._Element:
    return scene.response(scene.idp.sign(scene.forged(), scene.stranger))


@SIGNING.add
def response_signed_by_a_stranger(scene: Scene) -> etree._Element:
    return scene.idp.sign(scene.response(scene.forged()), scene.stranger)


@SIGNING.add
def good_assertion_in_a_response_signed_by_a_stranger(scene: Scene) -> etree._Element:
    return scene.idp.sign(scene.honest(), scene.stranger)


@SIGNING.add
def signed_by_a_stranger_who_names_the_identity_systems_certificate(scene: Scene) -> etree._Element:
    forged = scene.idp.sign(scene.forged(), scene.stranger)
    find(forged, "ds:Signature/ds:KeyInfo/ds:X509Data/ds:X509Certificate").text = scene.idp.signer.certificate_text
    return scene.response(forged)


@SIGNING.add
def signed_by_a_stranger_with_key_value(scene: Scene) -> etree._Element:
    forged = scene.idp.sign(scene.forged(), scene.stranger)
    key = scene.stranger.key
    assert isinstance(key, rsa.RSAPrivateKey)
    numbers = key.public_key().public_numbers()
    modulus = base64.b64encode(numbers.n.to_bytes(256, "big")).decode()
    info = find(forged, "ds:Signature/ds:KeyInfo")
    info.clear()
    info.append(
        etree.fromstring(
            f'<ds:KeyValue xmlns:ds="{DS}"><ds:RSAKeyValue><ds:Modulus>{modulus}</ds:Modulus>'
            "<ds:Exponent>AQAB</ds:Exponent></ds:RSAKeyValue></ds:KeyValue>"
        )
    )
    return scene.response(forged)


@SIGNING.add
def key_to_be_fetched(scene: Scene) -> etree._Element:
    forged = scene.idp.sign(scene.forged(), scene.stranger)
    info = find(forged, "ds:Signature/ds:KeyInfo")
    info.clear()
    info.append(etree.fromstring(f'<ds:RetrievalMethod xmlns:ds="{DS}" URI="http://127.0.0.1:1/key"/>'))
    return scene.response(forged)


@SIGNING.add
def signed_with_the_gateways_own_key(scene: Scene) -> etree._Element:
    return scene.response(scene.idp.sign(scene.forged(), scene.gateway))


@SIGNING.add
def signature_of_another_assertion(scene: Scene) -> etree._Element:
    forged = scene.forged()
    after_issuer(forged, clone(signature_of(scene.assertion())))
    return scene.response(forged)


def _hmac(scene: Scene, secret: bytes) -> etree._Element:
    """The public key is no secret, and must not be taken for one."""
    forged = scene.idp.sign(scene.forged())
    signature = signature_of(forged)
    method = find(signature, "ds:SignedInfo/ds:SignatureMethod")
    method.set("Algorithm", "http://www.w3.org/2001/04/xmldsig-more#hmac-sha256")
    info = etree.tostring(find(signature, "ds:SignedInfo"), method="c14n", exclusive=True)
    value = hmac.new(secret, info, "sha256").digest()
    find(signature, "ds:SignatureValue").text = base64.b64encode(value).decode()
    return scene.response(forged)


def _der_text(scene: Scene) -> bytes:
    return scene.idp.signer.certificate_text.encode()


SIGNING.named("HMAC with the certificate (PEM)", lambda scene: _hmac(scene, scene.idp.signer.certificate_pem))
SIGNING.named(
    "HMAC with the certificate (text)", lambda scene: _hmac(scene, scene.idp.signer.certificate_text.encode())
)
SIGNING.named("HMAC with an empty secret", lambda scene: _hmac(scene, b""))


def _algorithm(scene: Scene, path: str, uri: str) -> etree._Element:
    """Another algorithm in SignedInfo, and the signature made anew by the identity system."""
    assertion = scene.assertion()
    find(assertion, f"ds:Signature/ds:SignedInfo/{path}").set("Algorithm", uri)
    return scene.response(rename_victim(_resigned(assertion, scene)))


for _path, _algorithms in {
    "ds:SignatureMethod": ("none", "", "http://www.w3.org/2001/04/xmldsig-more#rsa-md5", f"{DS}dsa-sha1"),
    "ds:Reference/ds:DigestMethod": ("none", "http://www.w3.org/2001/04/xmldsig-more#md5"),
    "ds:CanonicalizationMethod": ("none", "urn:example:c14n"),
}.items():
    for _uri in _algorithms:
        SIGNING.named(
            f'the {_path.rpartition(":")[2]} is "{_uri.rpartition("#")[2]}"',
            lambda scene, path=_path, uri=_uri: _algorithm(scene, path, uri),  # type: ignore[misc]
        )


@SIGNING.add
def signed_with_sha1(scene: Scene) -> etree._Element:
    """By the identity system itself: whoever finds a collision has a second text with the same signature."""
    forged = scene.forged()
    forged = sign(forged, scene.idp.signer, method=xmlsec.Transform.RSA_SHA1)
    return scene.response(forged)


@SIGNING.add
def digested_with_sha1(scene: Scene) -> etree._Element:
    forged = scene.forged()
    forged = sign(forged, scene.idp.signer, digest=xmlsec.Transform.SHA1)
    return scene.response(forged)


def _transformed(scene: Scene, inner: str, uri: str) -> etree._Element:
    """One more transform before canonicalisation, so that what is digested is not what is read."""
    assertion = scene.assertion()
    transforms = find(assertion, "ds:Signature/ds:SignedInfo/ds:Reference/ds:Transforms")
    transforms.insert(
        1, etree.fromstring(f'<ds:Transform xmlns:ds="{DS}" Algorithm="{uri}">{inner}</ds:Transform>')
    )  # fmt: skip
    return scene.response(rename_victim(_resigned(assertion, scene)))


_XSLT = (
    '<xsl:stylesheet xmlns:xsl="http://www.w3.org/1999/XSL/Transform" version="1.0">'
    '<xsl:template match="/"><xsl:value-of select="document(\'file:///etc/hostname\')"/></xsl:template></xsl:stylesheet>'
)
SIGNING.named("XSLT transform", lambda scene: _transformed(scene, _XSLT, "http://www.w3.org/TR/1999/REC-xslt-19991116"))
SIGNING.named(
    "XPath transform that leaves out the subject",
    lambda scene: _transformed(
        scene,
        f'<ds:XPath xmlns:ds="{DS}">not(ancestor-or-self::*[local-name()="Subject"])</ds:XPath>',
        "http://www.w3.org/TR/1999/REC-xpath-19991116",
    ),
)
SIGNING.named("base64 transform", lambda scene: _transformed(scene, "", f"{DS}base64"))
SIGNING.named("unknown transform", lambda scene: _transformed(scene, "", "urn:example:transform"))


@SIGNING.add
def xpath_transform_that_the_identity_system_signed(scene: Scene) -> etree._Element:
    """A good signature that covers all but the subject: for whoever reads the document, and not what is signed."""
    assertion = scene.idp.assertion(scene.asked, "mallory")
    subject = find(assertion, "saml:Subject")
    index = assertion.index(subject)
    assertion.remove(subject)
    assertion = sign(assertion, scene.idp.signer)
    assertion.insert(index + 1, find(scene.forged(), "saml:Subject"))
    info = find(assertion, "ds:Signature/ds:SignedInfo/ds:Reference/ds:Transforms")
    info.insert(
        1,
        etree.fromstring(
            f'<ds:Transform xmlns:ds="{DS}" Algorithm="http://www.w3.org/TR/1999/REC-xpath-19991116">'
            f'<ds:XPath>not(ancestor-or-self::*[local-name()="Subject"])</ds:XPath></ds:Transform>'
        ),
    )
    return scene.response(_resigned(assertion, scene))


@SIGNING.add
def no_enveloped_transform(scene: Scene) -> etree._Element:
    assertion = scene.assertion()
    transforms = find(assertion, "ds:Signature/ds:SignedInfo/ds:Reference/ds:Transforms")
    transforms.remove(transforms[0])
    return scene.response(_resigned(assertion, scene))


@SIGNING.add
def no_transforms(scene: Scene) -> etree._Element:
    assertion = scene.assertion()
    reference = find(assertion, "ds:Signature/ds:SignedInfo/ds:Reference")
    reference.remove(find(reference, "ds:Transforms"))
    return scene.response(_resigned(assertion, scene))


@SIGNING.add
def transforms_in_another_namespace(scene: Scene) -> bytes:
    signed = text(scene.response(rename_victim(scene.assertion())))
    return signed.replace(b"<ds:Transforms>", b'<x:Transforms xmlns:x="urn:x">').replace(
        b"</ds:Transforms>", b"</x:Transforms>"
    )


@SIGNING.add
def signature_in_another_namespace(scene: Scene) -> bytes:
    return text(rename_victim(scene.honest())).replace(DS.encode(), b"http://www.w3.org/2000/09/xmldsig")


@SIGNING.add
def empty_signature_value(scene: Scene) -> etree._Element:
    response = scene.honest()
    find(response, "saml:Assertion/ds:Signature/ds:SignatureValue").text = ""
    return response


@SIGNING.add
def empty_digest_value(scene: Scene) -> etree._Element:
    assertion = scene.assertion()
    find(assertion, "ds:Signature/ds:SignedInfo/ds:Reference/ds:DigestValue").text = ""
    return scene.response(rename_victim(_resigned(assertion, scene)))


def _commented_digest(scene: Scene, pattern: str) -> bytes:
    """Readers that take a part of the text, or the comment, compare another digest than what was signed."""
    response = rename_victim(scene.honest())
    assertion = find(response, "saml:Assertion")
    bare = clone(assertion)
    bare.remove(signature_of(bare))
    forged = base64.b64encode(hashlib.sha256(etree.tostring(bare, method="c14n", exclusive=True)).digest()).decode()
    genuine = find(assertion, "ds:Signature/ds:SignedInfo/ds:Reference/ds:DigestValue").text
    return text(response).replace(genuine.encode(), pattern.format(forged=forged, genuine=genuine).encode())


SIGNING.named(
    "the forged digest in a comment of DigestValue",
    lambda scene: _commented_digest(scene, "<!--{forged}-->{genuine}"),
)
SIGNING.named(
    "the forged digest before a comment of DigestValue",
    lambda scene: _commented_digest(scene, "{forged}<!--{genuine}-->"),
)
