"""What the gateway says about itself, for the administrators of identity systems. Pure; called by the provider."""

from __future__ import annotations

from base64 import b64encode

from cryptography.hazmat.primitives.serialization import Encoding
from lxml import etree

from ostiary.plugins.saml.settings import SamlBinding
from ostiary.plugins.saml.xml.documents import DS, MD, SAMLP, name
from ostiary.plugins.saml.xml.keys import KeyPair


def own_metadata(
    *,
    entity_id: str,
    callback_url: str,
    logout_url: str,
    name_id_format: str,
    pair: KeyPair | None,
    wants_signed_assertions: bool,
) -> etree._Element:
    """Without a key nothing is signed, nothing can be encrypted for us, and there is no single logout."""
    entity = etree.Element(name(MD, "EntityDescriptor"), nsmap={"md": MD, "ds": DS})
    entity.set("entityID", entity_id)
    role = etree.SubElement(entity, name(MD, "SPSSODescriptor"))
    role.set("AuthnRequestsSigned", _text(pair is not None))
    role.set("WantAssertionsSigned", _text(wants_signed_assertions))
    role.set("protocolSupportEnumeration", SAMLP)
    if pair is not None:
        _add_key(role, pair, "signing")
        if pair.decryption_key is not None:
            _add_key(role, pair, "encryption")
        for binding in SamlBinding:
            etree.SubElement(role, name(MD, "SingleLogoutService"), Binding=binding.uri, Location=logout_url)
    if name_id_format:
        etree.SubElement(role, name(MD, "NameIDFormat")).text = name_id_format
    service = etree.SubElement(role, name(MD, "AssertionConsumerService"))
    for key, value in (("Binding", SamlBinding.POST.uri), ("Location", callback_url), ("index", "0")):
        service.set(key, value)
    service.set("isDefault", "true")
    return entity


def _add_key(role: etree._Element, pair: KeyPair, use: str) -> None:
    descriptor = etree.SubElement(role, name(MD, "KeyDescriptor"), use=use)
    data = etree.SubElement(etree.SubElement(descriptor, name(DS, "KeyInfo")), name(DS, "X509Data"))
    certificate = b64encode(pair.certificate.public_bytes(Encoding.DER)).decode()
    etree.SubElement(data, name(DS, "X509Certificate")).text = certificate


def _text(flag: bool) -> str:
    return "true" if flag else "false"
