"""Signature wrapping: the signature stays good, and the reader is led to another element.

The first eight are those of Somorovsky et al., "On Breaking SAML: Be Whoever You Want to Be" (2012).
"""

from __future__ import annotations

from lxml import etree

from tests.support.saml.attacks.scene import (
    Corpus,
    Scene,
    after_issuer,
    clone,
    element,
    find,
    in_object,
    rename_victim,
    signature_of,
    take_signature,
)
from tests.support.saml.documents import SAML, SAMLP, text

WRAPPING = Corpus()


@WRAPPING.add
def xsw1_signed_response_inside_the_signature_of_a_forged_one(scene: Scene) -> etree._Element:
    original = scene.signed_response()
    forged = rename_victim(clone(original))
    forged.set("ID", "_forged-response")
    take_signature(forged)
    signature = take_signature(original)
    after_issuer(forged, signature)
    signature.append(in_object(original))
    return forged


@WRAPPING.add
def xsw2_signed_response_beside_its_signature_in_a_forged_one(scene: Scene) -> etree._Element:
    original = scene.signed_response()
    forged = rename_victim(clone(original))
    forged.set("ID", "_forged-response")
    take_signature(forged)
    signature = take_signature(original)
    after_issuer(forged, original)
    after_issuer(forged, signature)
    return forged


@WRAPPING.add
def xsw3_forged_assertion_before_the_signed_one(scene: Scene) -> etree._Element:
    return scene.response(scene.forged(), scene.assertion())


@WRAPPING.add
def forged_assertion_after_the_signed_one(scene: Scene) -> etree._Element:
    return scene.response(scene.assertion(), scene.forged())


@WRAPPING.add
def xsw4_signed_assertion_inside_a_forged_one(scene: Scene) -> etree._Element:
    forged = scene.forged()
    forged.append(scene.assertion())
    return scene.response(forged)


@WRAPPING.add
def xsw5_signature_in_a_forged_assertion_and_the_original_at_the_end(scene: Scene) -> etree._Element:
    original = scene.assertion()
    forged = scene.forged()
    after_issuer(forged, take_signature(original))
    return scene.response(forged, original)


@WRAPPING.add
def xsw6_original_inside_the_signature_of_a_forged_assertion(scene: Scene) -> etree._Element:
    original = scene.assertion()
    signature = take_signature(original)
    forged = scene.forged()
    after_issuer(forged, signature)
    signature.append(original)
    return scene.response(forged)


@WRAPPING.add
def xsw7_forged_assertion_in_extensions(scene: Scene) -> etree._Element:
    response = scene.honest()
    after_issuer(response, element("samlp:Extensions", scene.forged()))
    return response


@WRAPPING.add
def xsw8_original_in_an_object_of_the_forged_assertions_signature(scene: Scene) -> etree._Element:
    original = scene.assertion()
    signature = take_signature(original)
    forged = scene.forged()
    after_issuer(forged, signature)
    signature.append(in_object(original))
    return scene.response(forged)


def _same_id(scene: Scene, first: bool) -> etree._Element:
    original = scene.assertion()
    forged = scene.forged(original.get("ID"))
    return scene.response(forged, original) if first else scene.response(original, forged)


WRAPPING.named("forged assertion with the same ID, first", lambda scene: _same_id(scene, True))
WRAPPING.named("forged assertion with the same ID, last", lambda scene: _same_id(scene, False))


@WRAPPING.add
def forged_assertion_with_the_same_id_and_a_copied_signature(scene: Scene) -> etree._Element:
    original = scene.assertion()
    forged = scene.forged(original.get("ID"))
    after_issuer(forged, clone(signature_of(original)))
    return scene.response(forged, original)


@WRAPPING.add
def forged_assertion_with_the_same_id_and_the_original_hidden_in_it(scene: Scene) -> etree._Element:
    original = scene.assertion()
    forged = scene.forged(original.get("ID"))
    signature = take_signature(original)
    after_issuer(forged, signature)
    forged.append(element("saml:Advice", original))
    return scene.response(forged)


def _other_id(scene: Scene, name: str) -> etree._Element:
    """The forged assertion is found by the reference under another name of an ID."""
    original = scene.assertion()
    forged = scene.forged()
    signature = take_signature(original)
    forged.set(name, original.get("ID"))
    after_issuer(forged, signature)
    forged.append(element("saml:Advice", original))
    return scene.response(forged)


for _name in ("Id", "id", "{http://www.w3.org/XML/1998/namespace}id", f"{{{SAML}}}ID", "AssertionID"):
    WRAPPING.named(
        f"the ID of the original as {_name.rpartition('}')[2]} of a forged assertion"
        + (" in a namespace" if "}" in _name else ""),
        lambda scene, name=_name: _other_id(scene, name),  # type: ignore[misc]
    )


@WRAPPING.add
def signed_assertion_in_the_advice_of_a_forged_one(scene: Scene) -> etree._Element:
    forged = scene.forged()
    forged.insert(2, element("saml:Advice", scene.assertion()))
    return scene.response(forged)


@WRAPPING.add
def signed_assertion_in_the_status_detail(scene: Scene) -> etree._Element:
    response = scene.response(scene.forged())
    find(response, "samlp:Status").append(element("samlp:StatusDetail", scene.assertion()))
    return response


@WRAPPING.add
def signed_assertion_in_an_attribute_value(scene: Scene) -> etree._Element:
    forged = scene.forged()
    value = find(forged, "saml:AttributeStatement/saml:Attribute/saml:AttributeValue")
    value.text = None
    value.append(scene.assertion())
    return scene.response(forged)


@WRAPPING.add
def forged_assertion_in_the_confirmation_data_of_an_unsigned_copy(scene: Scene) -> etree._Element:
    forged = scene.forged()
    find(forged, "saml:Subject/saml:SubjectConfirmation/saml:SubjectConfirmationData").append(scene.assertion())
    return scene.response(forged)


@WRAPPING.add
def signed_response_inside_a_forged_response(scene: Scene) -> etree._Element:
    forged = scene.response(scene.forged())
    forged.append(scene.signed_response())
    return forged


@WRAPPING.add
def forged_response_inside_a_signed_one(scene: Scene) -> etree._Element:
    response = scene.signed_response()
    response.append(scene.response(scene.forged()))
    return response


@WRAPPING.add
def signed_response_inside_the_extensions_of_a_forged_one(scene: Scene) -> etree._Element:
    forged = scene.response(scene.forged())
    after_issuer(forged, element("samlp:Extensions", scene.signed_response()))
    return forged


@WRAPPING.add
def forged_assertion_beside_the_one_of_a_signed_response(scene: Scene) -> etree._Element:
    response = scene.signed_response()
    response.append(scene.forged())
    return response


@WRAPPING.add
def forged_assertion_inside_the_signature_of_a_signed_response(scene: Scene) -> etree._Element:
    # The enveloped transform takes the signature out, with all that is in it: the digest stays good.
    response = scene.signed_response()
    signature_of(response).append(in_object(scene.forged()))
    return response


@WRAPPING.add
def forged_assertion_inside_the_signature_of_the_signed_assertion(scene: Scene) -> etree._Element:
    response = scene.honest()
    signature_of(find(response, "saml:Assertion")).append(in_object(scene.forged()))
    return response


@WRAPPING.add
def forged_assertion_in_the_key_info_of_the_assertion(scene: Scene) -> etree._Element:
    response = scene.honest()
    find(response, "saml:Assertion/ds:Signature/ds:KeyInfo").append(scene.forged())
    return response


@WRAPPING.add
def forged_name_inside_the_signature(scene: Scene) -> etree._Element:
    response = scene.honest()
    forged_subject = clone(find(scene.forged(), "saml:Subject"))
    signature_of(find(response, "saml:Assertion")).append(in_object(forged_subject))
    return response


@WRAPPING.add
def response_inside_an_envelope(scene: Scene) -> bytes:
    soap = b'<soap:Envelope xmlns:soap="http://schemas.xmlsoap.org/soap/envelope/"><soap:Body>'
    return soap + text(scene.response(scene.forged())) + text(scene.honest()) + b"</soap:Body></soap:Envelope>"


@WRAPPING.add
def assertion_without_a_response(scene: Scene) -> etree._Element:
    return scene.assertion()


@WRAPPING.add
def another_message_around_the_signed_assertion(scene: Scene) -> etree._Element:
    response = scene.honest()
    response.tag = f"{{{SAMLP}}}ArtifactResponse"
    return response


@WRAPPING.add
def signature_moved_up_to_the_response(scene: Scene) -> etree._Element:
    response = scene.honest()
    assertion = find(response, "saml:Assertion")
    signature = take_signature(assertion)
    rename_victim(assertion)
    after_issuer(response, signature)
    return response


@WRAPPING.add
def signature_moved_down_into_the_subject(scene: Scene) -> etree._Element:
    response = scene.honest()
    assertion = find(response, "saml:Assertion")
    find(assertion, "saml:Subject").append(take_signature(assertion))
    return rename_victim(response)


@WRAPPING.add
def reference_to_a_signed_assertion_elsewhere_in_the_forged_one(scene: Scene) -> etree._Element:
    original = scene.assertion()
    forged = scene.forged()
    after_issuer(forged, clone(signature_of(original)))
    find(forged, "saml:Subject").append(original)
    return scene.response(forged)


@WRAPPING.add_harmless
def forged_assertion_in_the_key_info_of_the_response(scene: Scene) -> etree._Element:
    """The enveloped transform takes the signature out, with all that is in it, and so does the reader."""
    response = scene.signed_response()
    find(response, "ds:Signature/ds:KeyInfo").append(scene.forged())
    return response
