"""Encryption hides, and proves nothing: everybody has the gateway's public key."""

from __future__ import annotations

import xmlsec
from lxml import etree

from tests.support.saml.attacks.scene import Corpus, Scene, element, find, in_object, rename_victim, signature_of
from tests.support.saml.documents import SAML, XENC, encrypt, text

ENCRYPTED = Corpus()


def _for_gateway(scene: Scene, assertion: etree._Element) -> etree._Element:
    return encrypt(assertion, scene.gateway.certificate_pem)


@ENCRYPTED.add
def forged_assertion_encrypted(scene: Scene) -> etree._Element:
    return scene.response(_for_gateway(scene, scene.forged()))


@ENCRYPTED.add
def forged_assertion_encrypted_beside_a_signed_one(scene: Scene) -> etree._Element:
    return scene.response(_for_gateway(scene, scene.forged()), scene.assertion())


@ENCRYPTED.add
def signed_assertion_encrypted_beside_a_forged_one(scene: Scene) -> etree._Element:
    return scene.response(scene.forged(), _for_gateway(scene, scene.assertion()))


@ENCRYPTED.add
def two_encrypted_assertions(scene: Scene) -> etree._Element:
    return scene.response(_for_gateway(scene, scene.forged()), _for_gateway(scene, scene.assertion()))


@ENCRYPTED.add
def forged_and_encrypted_in_a_signed_response(scene: Scene) -> etree._Element:
    response = scene.signed_response()
    response.replace(find(response, "saml:Assertion"), _for_gateway(scene, scene.forged()))
    return response


@ENCRYPTED.add
def added_to_a_signed_response(scene: Scene) -> etree._Element:
    response = scene.signed_response()
    response.append(_for_gateway(scene, scene.forged()))
    return response


@ENCRYPTED.add
def encrypted_assertion_in_the_signature_of_the_response(scene: Scene) -> etree._Element:
    response = scene.signed_response()
    signature_of(response).append(in_object(_for_gateway(scene, scene.forged())))
    return response


@ENCRYPTED.add
def changed_and_encrypted(scene: Scene) -> etree._Element:
    return scene.response(_for_gateway(scene, rename_victim(scene.assertion())))


@ENCRYPTED.add
def original_inside_the_forged_one_that_is_encrypted(scene: Scene) -> etree._Element:
    forged = scene.forged()
    forged.append(element("saml:Advice", scene.assertion()))
    return scene.response(_for_gateway(scene, forged))


@ENCRYPTED.add
def encrypted_assertion_inside_an_encrypted_one(scene: Scene) -> etree._Element:
    return scene.response(_for_gateway(scene, _for_gateway(scene, scene.assertion())))


@ENCRYPTED.add
def response_in_the_place_of_the_assertion(scene: Scene) -> etree._Element:
    return scene.response(_for_gateway(scene, scene.honest()))


@ENCRYPTED.add
def signed_by_a_stranger_and_encrypted(scene: Scene) -> etree._Element:
    return scene.response(_for_gateway(scene, scene.idp.sign(scene.forged(), scene.stranger)))


@ENCRYPTED.add
def encrypted_for_somebody_else(scene: Scene) -> etree._Element:
    return scene.response(encrypt(scene.assertion(), scene.stranger.certificate_pem))


@ENCRYPTED.add
def key_wrapped_with_pkcs1_v15(scene: Scene) -> etree._Element:
    wrapped = encrypt(scene.assertion(), scene.gateway.certificate_pem, key=xmlsec.Transform.RSA_PKCS1)
    return scene.response(wrapped)


@ENCRYPTED.add
def cbc_that_nobody_allowed(scene: Scene) -> etree._Element:
    wrapped = encrypt(scene.assertion(), scene.gateway.certificate_pem, data=xmlsec.Transform.AES256)
    return scene.response(wrapped)


@ENCRYPTED.add
def ciphertext_at_an_address(scene: Scene) -> etree._Element:
    wrapped = _for_gateway(scene, scene.assertion())
    data = wrapped.find(f".//{{{XENC}}}EncryptedData/{{{XENC}}}CipherData")
    data.clear()
    etree.SubElement(data, f"{{{XENC}}}CipherReference", URI="http://127.0.0.1:1/")
    return scene.response(wrapped)


@ENCRYPTED.add
def ciphertext_changed(scene: Scene) -> etree._Element:
    wrapped = _for_gateway(scene, scene.assertion())
    value = wrapped.find(f"{{{XENC}}}EncryptedData/{{{XENC}}}CipherData/{{{XENC}}}CipherValue")
    value.text = value.text[:40] + ("A" if value.text[40] != "A" else "B") + value.text[41:]
    return scene.response(wrapped)


@ENCRYPTED.add
def no_key(scene: Scene) -> etree._Element:
    wrapped = _for_gateway(scene, scene.assertion())
    wrapped.find(f".//{{{XENC}}}EncryptedKey").getparent().clear()
    return scene.response(wrapped)


@ENCRYPTED.add
def encrypted_element_of_another_name(scene: Scene) -> bytes:
    document = text(scene.response(_for_gateway(scene, scene.forged())))
    return document.replace(b"EncryptedAssertion", b"EncryptedAssertions")


@ENCRYPTED.add
def name_encrypted_and_unsigned(scene: Scene) -> etree._Element:
    """An EncryptedID in the place of the name, put there by somebody."""
    assertion = scene.assertion()
    name_id = find(assertion, "saml:Subject/saml:NameID")
    forged = find(scene.forged(), "saml:Subject/saml:NameID")
    wrapped = _for_gateway(scene, forged)
    wrapped.tag = f"{{{SAML}}}EncryptedID"
    name_id.getparent().replace(name_id, wrapped)
    return scene.response(assertion)
