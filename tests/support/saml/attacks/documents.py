"""XML that two readers read in two ways: comments, entities, encodings, namespaces, canonicalisation."""

from __future__ import annotations

from lxml import etree

from tests.support.saml.attacks.scene import MALLORY, VICTIM, Corpus, Scene, find, rename_victim
from tests.support.saml.documents import SAML, text

DOCUMENTS = Corpus()
_REST = MALLORY.removeprefix(VICTIM)


def _honest(scene: Scene) -> bytes:
    return text(scene.honest())


def _in_name(scene: Scene, between: str) -> bytes:
    """Something between the victim's name and the rest of Mallory's."""
    return _honest(scene).replace(MALLORY.encode(), f"{VICTIM}{between}{_REST}".encode())


# What is signed stays the same: canonicalisation leaves out comments, and has no CDATA.


@DOCUMENTS.add_harmless
def comment_in_the_name(scene: Scene) -> bytes:
    return _in_name(scene, "<!-- -->")


@DOCUMENTS.add_harmless
def empty_comment_in_the_name(scene: Scene) -> bytes:
    return _in_name(scene, "<!---->")


@DOCUMENTS.add_harmless
def comment_with_markup_in_the_name(scene: Scene) -> bytes:
    return _in_name(scene, "<!--</saml:NameID>-->")


@DOCUMENTS.add_harmless
def comment_in_the_name_of_a_signed_response(scene: Scene) -> bytes:
    return text(scene.signed_response()).replace(MALLORY.encode(), f"{VICTIM}<!---->{_REST}".encode())


@DOCUMENTS.add_harmless
def comment_in_an_attribute(scene: Scene) -> bytes:
    return _honest(scene).replace(b">users<", b">us<!---->ers<")


@DOCUMENTS.add_harmless
def cdata_in_the_name(scene: Scene) -> bytes:
    return _in_name(scene, "<![CDATA[]]>")


@DOCUMENTS.add_harmless
def name_partly_in_cdata(scene: Scene) -> bytes:
    return _honest(scene).replace(MALLORY.encode(), f"{VICTIM}<![CDATA[{_REST}]]>".encode())


@DOCUMENTS.add_harmless
def name_with_character_references(scene: Scene) -> bytes:
    return _honest(scene).replace(MALLORY.encode(), (VICTIM + _REST.replace(".", "&#46;")).encode())


@DOCUMENTS.add_harmless
def unused_namespaces_in_the_response(scene: Scene) -> bytes:
    return _honest(scene).replace(b"<samlp:Response ", b'<samlp:Response xmlns:evil="urn:evil" ', 1)


@DOCUMENTS.add_harmless
def byte_order_mark(scene: Scene) -> bytes:
    return b"\xef\xbb\xbf" + _honest(scene)


@DOCUMENTS.add_harmless
def unsigned_attributes_of_the_response_changed(scene: Scene) -> etree._Element:
    response = scene.honest()
    response.set("Consent", "urn:oasis:names:tc:SAML:2.0:consent:obtained")
    response.set("IssueInstant", "2001-01-01T00:00:00Z")
    return response


@DOCUMENTS.add
def processing_instruction_in_the_name(scene: Scene) -> bytes:
    return _in_name(scene, "<?evil?>")


@DOCUMENTS.add
def element_in_the_name(scene: Scene) -> bytes:
    return _in_name(scene, "<b/>")


@DOCUMENTS.add
def stylesheet_before_the_response(scene: Scene) -> bytes:
    return b'<?xml-stylesheet type="text/xsl" href="http://127.0.0.1:1/evil.xsl"?>' + _honest(scene)


# --- document types and entities ---


@DOCUMENTS.add
def document_type(scene: Scene) -> bytes:
    return b"<!DOCTYPE samlp:Response>" + _honest(scene)


@DOCUMENTS.add
def document_type_from_elsewhere(scene: Scene) -> bytes:
    return b'<!DOCTYPE samlp:Response SYSTEM "http://127.0.0.1:1/evil.dtd">' + _honest(scene)


@DOCUMENTS.add
def entity_as_the_name(scene: Scene) -> bytes:
    declared = f'<!DOCTYPE r [<!ENTITY who "{VICTIM}">]>'.encode()
    return declared + text(scene.response(scene.forged())).replace(VICTIM.encode(), b"&who;")


@DOCUMENTS.add
def entity_that_ends_the_name(scene: Scene) -> bytes:
    return f'<!DOCTYPE r [<!ENTITY rest "{_REST}">]>'.encode() + _in_name(scene, "").replace(
        MALLORY.encode(), f"{VICTIM}&rest;".encode()
    )


@DOCUMENTS.add
def file_as_an_entity(scene: Scene) -> bytes:
    return b'<!DOCTYPE r [<!ENTITY file SYSTEM "file:///etc/hostname">]>' + _in_name(scene, "&file;")


@DOCUMENTS.add
def address_as_an_entity(scene: Scene) -> bytes:
    return b'<!DOCTYPE r [<!ENTITY page SYSTEM "http://127.0.0.1:1/">]>' + _in_name(scene, "&page;")


@DOCUMENTS.add
def parameter_entity(scene: Scene) -> bytes:
    declared = b'<!DOCTYPE r [<!ENTITY % all SYSTEM "http://127.0.0.1:1/evil.dtd"> %all;]>'
    return declared + _honest(scene)


@DOCUMENTS.add
def a_billion_laughs(scene: Scene) -> bytes:
    levels = "".join(f'<!ENTITY l{level + 1} "{f"&l{level};" * 10}">' for level in range(9))
    return f'<!DOCTYPE r [<!ENTITY l0 "lol">{levels}]>'.encode() + _in_name(scene, "&l9;")


@DOCUMENTS.add
def a_billion_laughs_in_an_attribute(scene: Scene) -> bytes:
    levels = "".join(f'<!ENTITY l{level + 1} "{f"&l{level};" * 10}">' for level in range(9))
    declared = f'<!DOCTYPE r [<!ENTITY l0 "lol">{levels}]>'.encode()
    return declared + _honest(scene).replace(b"<samlp:Response ", b'<samlp:Response Consent="&l9;" ', 1)


@DOCUMENTS.add
def one_large_entity_many_times(scene: Scene) -> bytes:
    return f'<!DOCTYPE r [<!ENTITY a "{"a" * 20000}">]>'.encode() + _in_name(scene, "&a;" * 2000)


@DOCUMENTS.add
def default_attributes(scene: Scene) -> bytes:
    """The document type gives the forged assertion the ID that the signature refers to."""
    original = scene.assertion()
    forged = scene.forged()
    del forged.attrib["ID"]
    declared = f'<!DOCTYPE r [<!ATTLIST saml:Assertion ID CDATA "{original.get("ID")}">]>'
    return declared.encode() + text(scene.response(forged, original))


@DOCUMENTS.add
def document_type_in_utf_16(scene: Scene) -> bytes:
    """Whoever looks for it in the bytes does not find it."""
    document = '<?xml version="1.0" encoding="UTF-16"?><!DOCTYPE r [<!ENTITY x "y">]>' + _honest(scene).decode()
    return document.encode("utf-16")


@DOCUMENTS.add
def utf_16(scene: Scene) -> bytes:
    return f'<?xml version="1.0" encoding="UTF-16"?>{_honest(scene).decode()}'.encode("utf-16")


@DOCUMENTS.add
def document_type_in_utf_7(scene: Scene) -> bytes:
    hidden = "<!DOCTYPE r [<!ENTITY x 'y'>]>".encode("utf-7")
    return b'<?xml version="1.0" encoding="UTF-7"?>' + hidden + _honest(scene)


@DOCUMENTS.add
def document_type_in_ebcdic(scene: Scene) -> bytes:
    document = '<?xml version="1.0" encoding="IBM037"?><!DOCTYPE r [<!ENTITY x "y">]>' + _honest(scene).decode()
    return document.encode("cp037")


@DOCUMENTS.add
def include_of_a_file(scene: Scene) -> bytes:
    include = '<xi:include xmlns:xi="http://www.w3.org/2001/XInclude" href="file:///etc/hostname" parse="text"/>'
    return _in_name(scene, include)


# --- two documents, and none ---


@DOCUMENTS.add
def two_documents(scene: Scene) -> bytes:
    return text(scene.response(scene.forged())) + _honest(scene)


@DOCUMENTS.add
def nothing(scene: Scene) -> bytes:
    return b""


@DOCUMENTS.add
def no_xml(scene: Scene) -> bytes:
    return b"not xml"


@DOCUMENTS.add
def cut_in_the_middle(scene: Scene) -> bytes:
    return _honest(scene)[:-20]


@DOCUMENTS.add
def a_null_in_the_name(scene: Scene) -> bytes:
    return _in_name(scene, "\0")


@DOCUMENTS.add
def a_null_as_a_reference_in_the_name(scene: Scene) -> bytes:
    return _in_name(scene, "&#0;")


@DOCUMENTS.add
def very_large(scene: Scene) -> bytes:
    return _honest(scene).replace(b"</samlp:Response>", b" " * 400_000 + b"</samlp:Response>")


@DOCUMENTS.add
def very_deep(scene: Scene) -> bytes:
    depth = 5000
    return _honest(scene).replace(
        b"</samlp:Response>", b"<samlp:Extensions>" * depth + b"</samlp:Extensions>" * depth + b"</samlp:Response>"
    )


# --- namespaces ---


@DOCUMENTS.add
def prefix_means_something_else(scene: Scene) -> bytes:
    """The forged assertion is in no namespace of SAML, but its prefix says saml."""
    forged = text(scene.forged()).replace(SAML.encode(), b"urn:evil")
    return text(scene.response()).replace(b"</samlp:Response>", forged + b"</samlp:Response>")


@DOCUMENTS.add
def assertion_of_saml_1(scene: Scene) -> bytes:
    old = b"urn:oasis:names:tc:SAML:1.0:assertion"
    return text(scene.response(scene.forged())).replace(SAML.encode(), old)


@DOCUMENTS.add
def other_namespace_after_signing(scene: Scene) -> bytes:
    return _honest(scene).replace(b'xmlns:saml="' + SAML.encode(), b'xmlns:saml="' + SAML.encode() + b"#")


@DOCUMENTS.add
def whitespace_in_the_name_after_signing(scene: Scene) -> bytes:
    return _honest(scene).replace(MALLORY.encode(), f"{VICTIM} {_REST}".encode())


@DOCUMENTS.add
def name_replaced_in_an_attribute_of_name_id(scene: Scene) -> etree._Element:
    response = scene.honest()
    find(response, "saml:Assertion/saml:Subject/saml:NameID").set("SPProvidedID", VICTIM)
    return rename_victim(response)
