"""An identity system that writes whatever a test wants, and signs and encrypts with libxmlsec1: none of our own code.

idp = IdentitySystem()
asked = Asked(request_id="_1", acs="https://gateway/auth/provider", audience="https://gateway/metadata", now=now)
idp.sign(response := idp.response(asked, idp.assertion(asked, name_id="alice")))
"""

from __future__ import annotations

import base64
import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import xmlsec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID
from lxml import etree

SAML = "urn:oasis:names:tc:SAML:2.0:assertion"
SAMLP = "urn:oasis:names:tc:SAML:2.0:protocol"
MD = "urn:oasis:names:tc:SAML:2.0:metadata"
DS = "http://www.w3.org/2000/09/xmldsig#"
XENC = "http://www.w3.org/2001/04/xmlenc#"
NS = {"saml": SAML, "samlp": SAMLP, "ds": DS, "xenc": XENC, "md": MD}
SUCCESS = "urn:oasis:names:tc:SAML:2.0:status:Success"
PASSWORD_TRANSPORT = "urn:oasis:names:tc:SAML:2.0:ac:classes:PasswordProtectedTransport"
PERSISTENT = "urn:oasis:names:tc:SAML:2.0:nameid-format:persistent"
REDIRECT = "urn:oasis:names:tc:SAML:2.0:bindings:HTTP-Redirect"
POST = "urn:oasis:names:tc:SAML:2.0:bindings:HTTP-POST"

Key = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


@dataclass(frozen=True)
class Signer:
    """A key, and a certificate that nobody but its owner has signed."""

    key: Key = field(repr=False)
    certificate: x509.Certificate

    @property
    def key_pem(self) -> bytes:
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    @property
    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def certificate_text(self) -> str:
        return base64.b64encode(self.certificate.public_bytes(serialization.Encoding.DER)).decode()


def signer(name: str, kind: str = "rsa") -> Signer:
    """The same one for the same name: keys take a while to make."""
    return _signer(name, kind)


@cache
def _signer(name: str, kind: str) -> Signer:
    made: Key = (
        ec.generate_private_key(ec.SECP256R1())
        if kind == "ec"
        else rsa.generate_private_key(65537, 1024 if kind == "weak" else 2048)
    )
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(made.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime(2020, 1, 1, tzinfo=UTC))
        # That of an identity system ended long ago: in metadata it is the wrapping of a key, and nothing more.
        .not_valid_after(datetime(2021 if name.startswith("idp") else 2049, 1, 1, tzinfo=UTC))
        .sign(made, hashes.SHA256())
    )
    return Signer(made, certificate)


@dataclass(frozen=True)
class Asked:
    """The request that is answered, and when."""

    request_id: str
    acs: str
    audience: str
    now: datetime

    def at(self, **delta: float) -> str:
        return f"{self.now + timedelta(**delta):%Y-%m-%dT%H:%M:%SZ}"


class IdentitySystem:
    def __init__(
        self, entity_id: str = "https://idp.example.com/metadata", *, name: str = "idp", kind: str = "rsa"
    ) -> None:
        self.entity_id = entity_id
        self.signer = signer(name, kind)
        self._count = 0

    def new_id(self, kind: str) -> str:
        self._count += 1
        return f"_{kind}-{self._count}"

    def metadata(self, *signers: Signer, url: str = "https://idp.example.com", **changes: str) -> etree._Element:
        role = "".join(
            f'<md:KeyDescriptor use="signing"><ds:KeyInfo><ds:X509Data><ds:X509Certificate>{each.certificate_text}'
            "</ds:X509Certificate></ds:X509Data></ds:KeyInfo></md:KeyDescriptor>"
            for each in signers or (self.signer,)
        )
        for kind, path in (("SingleLogoutService", "slo"), ("SingleSignOnService", "sso")):
            for binding in (REDIRECT, POST):
                role += f'<md:{kind} Binding="{binding}" Location="{url}/{path}"/>'
        document = (
            f'<md:EntityDescriptor xmlns:md="{MD}" xmlns:ds="{DS}" entityID="{self.entity_id}" ID="_metadata">'
            f'<md:IDPSSODescriptor protocolSupportEnumeration="{SAMLP}">{role}</md:IDPSSODescriptor>'
            "</md:EntityDescriptor>"
        )
        root = etree.fromstring(document)
        for key, value in changes.items():
            root.set(key, value)
        return root

    def assertion(
        self,
        asked: Asked,
        name_id: str = "alice",
        attributes: Mapping[str, Sequence[str]] | None = None,
        *,
        assertion_id: str = "",
        format: str = PERSISTENT,
        session_index: str = "session-1",
        **changes: Any,
    ) -> etree._Element:
        """*changes* replace the values of the names below: ``audience``, ``recipient``, ``not_on_or_after``..."""
        values = {
            "issuer": self.entity_id,
            "audience": asked.audience,
            "recipient": asked.acs,
            "in_response_to": asked.request_id,
            "not_before": asked.at(minutes=-1),
            "not_on_or_after": asked.at(minutes=5),
            "confirmed_until": asked.at(minutes=5),
            "method": "urn:oasis:names:tc:SAML:2.0:cm:bearer",
            "instant": asked.at(seconds=-10),
            "context": PASSWORD_TRANSPORT,
            "session_until": asked.at(hours=8),
            "version": "2.0",
            **changes,
        }
        statement = "".join(
            f'<saml:Attribute Name="{key}" NameFormat="urn:oasis:names:tc:SAML:2.0:attrname-format:basic">'
            + "".join(f"<saml:AttributeValue>{value}</saml:AttributeValue>" for value in texts)
            + "</saml:Attribute>"
            for key, texts in (attributes or {}).items()
        )
        document = f"""
<saml:Assertion xmlns:saml="{SAML}" ID="{assertion_id or self.new_id("assertion")}"
  Version="{values["version"]}" IssueInstant="{asked.at()}">
  <saml:Issuer>{values["issuer"]}</saml:Issuer>
  <saml:Subject>
    <saml:NameID Format="{format}">{name_id}</saml:NameID>
    <saml:SubjectConfirmation Method="{values["method"]}">
      <saml:SubjectConfirmationData InResponseTo="{values["in_response_to"]}"
        Recipient="{values["recipient"]}" NotOnOrAfter="{values["confirmed_until"]}"/>
    </saml:SubjectConfirmation>
  </saml:Subject>
  <saml:Conditions NotBefore="{values["not_before"]}" NotOnOrAfter="{values["not_on_or_after"]}">
    <saml:AudienceRestriction><saml:Audience>{values["audience"]}</saml:Audience></saml:AudienceRestriction>
  </saml:Conditions>
  <saml:AuthnStatement AuthnInstant="{values["instant"]}" SessionIndex="{session_index}"
    SessionNotOnOrAfter="{values["session_until"]}">
    <saml:AuthnContext><saml:AuthnContextClassRef>{values["context"]}</saml:AuthnContextClassRef></saml:AuthnContext>
  </saml:AuthnStatement>
  {f"<saml:AttributeStatement>{statement}</saml:AttributeStatement>" if statement else ""}
</saml:Assertion>"""
        return etree.fromstring(document.strip())

    def response(
        self,
        asked: Asked,
        *assertions: etree._Element,
        status: str = SUCCESS,
        response_id: str = "",
        issuer: str | None = None,
        **attributes: str,
    ) -> etree._Element:
        values = {"Destination": asked.acs, "InResponseTo": asked.request_id, "Version": "2.0", **attributes}
        document = f"""
<samlp:Response xmlns:samlp="{SAMLP}" xmlns:saml="{SAML}"
  ID="{response_id or self.new_id("response")}" IssueInstant="{asked.at()}">
  <saml:Issuer>{self.entity_id if issuer is None else issuer}</saml:Issuer>
  <samlp:Status><samlp:StatusCode Value="{status}"/></samlp:Status>
</samlp:Response>"""
        root = etree.fromstring(document.strip())
        for key, value in values.items():
            if value:
                root.set(key, value)
        root.extend(assertions)
        return root

    def sign(self, element: etree._Element, by: Signer | None = None, **how: Any) -> etree._Element:
        return sign(element, by or self.signer, **how)

    def signed_response(self, asked: Asked, name_id: str = "alice", **changes: Any) -> etree._Element:
        """As most identity systems write it: the assertion is signed, and the response is not."""
        return self.response(asked, self.sign(self.assertion(asked, name_id, **changes)))


def sign(
    element: etree._Element,
    by: Signer,
    *,
    method: Any = None,
    digest: Any = xmlsec.Transform.SHA256,
    c14n: Any = xmlsec.Transform.EXCL_C14N,
    transforms: Sequence[Any] = (xmlsec.Transform.ENVELOPED, xmlsec.Transform.EXCL_C14N),
    uri: str | None = None,
) -> etree._Element:
    """*element* with an enveloped signature, after the Issuer."""
    ecdsa = isinstance(by.key, ec.EllipticCurvePrivateKey)
    method = method or (xmlsec.Transform.ECDSA_SHA256 if ecdsa else xmlsec.Transform.RSA_SHA256)
    signature = xmlsec.template.create(element, c14n, method, ns="ds")
    first = element[0] if len(element) else None
    element.insert(1 if first is not None and first.tag == f"{{{SAML}}}Issuer" else 0, signature)
    reference = xmlsec.template.add_reference(signature, digest, uri=f"#{element.get('ID')}" if uri is None else uri)
    for transform in transforms:
        xmlsec.template.add_transform(reference, transform)
    xmlsec.template.add_x509_data(xmlsec.template.ensure_key_info(signature))
    xmlsec.tree.add_ids(element, ["ID"])
    context = xmlsec.SignatureContext()
    context.key = xmlsec.Key.from_memory(by.key_pem, xmlsec.KeyFormat.PEM)
    context.key.load_cert_from_memory(by.certificate_pem, xmlsec.KeyFormat.PEM)
    context.sign(signature)
    # What libxmlsec1 has added to the tree, lxml does not find by its name.
    return etree.fromstring(text(element))


def encrypt(
    assertion: etree._Element,
    certificate_pem: bytes,
    *,
    data: Any = xmlsec.Transform.AES256_GCM,
    key: Any = xmlsec.Transform.RSA_OAEP,
    key_size: int = 256,
    self_contained: bool = True,
) -> etree._Element:
    """An EncryptedAssertion with *assertion* in it, for the owner of the certificate.

    Unless it is *self_contained*, it relies on the namespaces of the element around it.
    """
    wrapper = etree.Element(f"{{{SAML}}}EncryptedAssertion", nsmap={"saml": SAML})
    plain = copy.deepcopy(assertion)
    wrapper.append(plain)
    template = xmlsec.template.encrypted_data_create(wrapper, data, type=xmlsec.EncryptionType.ELEMENT, ns="xenc")
    xmlsec.template.encrypted_data_ensure_cipher_value(template)
    info = xmlsec.template.encrypted_data_ensure_key_info(template, ns="ds")
    wrapped = xmlsec.template.add_encrypted_key(info, key)
    xmlsec.template.encrypted_data_ensure_cipher_value(wrapped)
    manager = xmlsec.KeysManager()
    manager.add_key(xmlsec.Key.from_memory(certificate_pem, xmlsec.KeyFormat.CERT_PEM))
    context = xmlsec.EncryptionContext(manager)
    context.key = xmlsec.Key.generate(xmlsec.KeyData.AES, key_size, xmlsec.KeyDataType.SESSION)
    if self_contained:
        context.encrypt_binary(template, text(assertion))
        wrapper.replace(plain, template)
    else:
        context.encrypt_xml(template, plain)
    return etree.fromstring(text(wrapper))


def text(element: etree._Element) -> bytes:
    return bytes(etree.tostring(element))
