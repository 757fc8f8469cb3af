"""A response that was signed for somebody, changed in any way: it is refused, or it still says the same.

`one_input` takes a document and raises if something is wrong, so that a fuzzer can drive it as well:

    atheris.Setup(sys.argv, one_input); atheris.Fuzz()
"""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from functools import cache
from typing import Any

from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from ostiary_gateway.providers.saml.assertion import Assertion
from ostiary_gateway.providers.saml.metadata import IdentitySystem, read_metadata
from ostiary_gateway.providers.saml.response import ResponseRules, SignInDeclined, read_response
from ostiary_gateway.providers.saml.settings import ALGORITHMS
from ostiary_gateway.providers.saml.validate_assertion import Expected
from ostiary_gateway.providers.saml.xml import DocumentRefused
from tests.support.saml.attacks import MALLORY, VICTIM, Scene
from tests.support.saml.documents import text
from tests.support.saml.judges import SKEW

PIECES = (
    *(b"<!---->", b"<!-- x -->", b"<?x?>", b"<![CDATA[", b"]]>", b"<!DOCTYPE x>", b"<!ENTITY x 'y'>", b"&x;", b"&#0;"),
    *(b"<", b">", b'"', b"'", b"&amp;", b"&", b"\x00", b"\xff", b"\xc3\xa9", b" ", b"\n", b"\r", b"&#13;", b"</"),
    *(b"<saml:Assertion>", b"</saml:Assertion>", b"<ds:Object>", b"</ds:Object>", b' ID="x"', b' xmlns:saml="x"', b"#"),
    *(VICTIM.encode(), MALLORY.encode(), b"saml:", b"samlp:", b"ds:", b"urn:oasis:names:tc:SAML:2.0:assertion"),
)


@cache
def scene() -> tuple[Scene, IdentitySystem, tuple[bytes, ...]]:
    made = Scene.begin(datetime(2026, 1, 1, tzinfo=UTC))
    documents = tuple(map(text, (made.honest(), made.signed_response(), made.idp.sign(made.honest()))))
    return made, read_metadata(text(made.idp.metadata()), algorithms=ALGORITHMS), documents


def read(document: bytes) -> Assertion | None:
    made, system, _ = scene()
    asked, key = made.asked, made.gateway.key
    assert isinstance(key, rsa.RSAPrivateKey)
    expected = Expected(system.entity_id, asked.audience, asked.acs, asked.request_id, asked.now, SKEW)
    try:
        return read_response(document, system, expected, ResponseRules(tuple(ALGORITHMS)), key)
    except (DocumentRefused, SignInDeclined):
        return None


def one_input(document: bytes) -> None:
    assertion = read(document)
    if assertion is not None:
        assert (assertion.name_id.value, assertion.attributes) == (MALLORY, {"groups": ("users",)})
        assert assertion.session_index == "session-1"


documents = st.integers(0, 2)
positions = st.floats(0, 1, exclude_max=True)


def test_the_documents_themselves_are_accepted() -> None:
    assert all(read(document) is not None for document in scene()[2])


@given(st.binary(max_size=200))
@settings(max_examples=100, deadline=None)
def test_random_bytes(data: bytes) -> None:
    one_input(data)


@given(documents, st.lists(st.tuples(positions, st.integers(0, 60), st.sampled_from(PIECES)), min_size=1, max_size=3))
@settings(max_examples=300, deadline=None)
def test_a_document_with_pieces_put_in_or_replaced(which: int, changes: list[tuple[float, int, bytes]]) -> None:
    document = scene()[2][which]
    for position, removed, piece in changes:
        at = int(position * len(document))
        document = document[:at] + piece + document[at + removed :]
    one_input(document)


@given(documents, positions, positions, st.sampled_from(["move", "copy", "swap", "remove", "wrap"]))
@settings(max_examples=300, deadline=None)
def test_a_document_whose_elements_are_moved(which: int, first: float, second: float, how: str) -> None:
    root = etree.fromstring(scene()[2][which])
    elements: list[Any] = list(root.iter())[1:]
    one, other = (elements[int(position * len(elements))] for position in (first, second))
    if how == "remove":
        one.getparent().remove(one)
    elif how == "wrap":
        copied = copy.deepcopy(one)
        one.getparent().replace(one, other if one not in other.iter() else copied)
        one.append(copied)
    elif one not in other.iter() and other not in one.iter():
        moved = copy.deepcopy(one) if how == "copy" else one
        if how == "swap":
            other.getparent().replace(other, copy.deepcopy(one))
        other.append(moved)
    one_input(text(root))


@given(documents, positions, st.sampled_from(["text", "attribute", "name"]))
@settings(max_examples=200, deadline=None)
def test_a_document_with_one_value_changed(which: int, position: float, what: str) -> None:
    root = etree.fromstring(scene()[2][which])
    elements: list[Any] = list(root.iter())
    element = elements[int(position * len(elements))]
    if what == "text":
        element.text = VICTIM
    elif what == "attribute" and element.attrib:
        key = sorted(element.attrib)[0]
        element.set(key, VICTIM)
    else:
        element.tag = f"{{urn:x}}{etree.QName(element).localname}"
    one_input(text(root))
