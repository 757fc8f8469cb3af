"""What all attacks begin with: a gateway that asked, an answer for Mallory, and a forged copy of it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from lxml import etree

from tests.support.saml.documents import DS, NS, SAML, Asked, IdentitySystem, Signer, signer, text

# What the victim's name begins with is a name of its own: a reader that stops at a comment is fooled.
VICTIM = "admin@example.com"
MALLORY = "admin@example.com.mallory.example"
ACS = "https://gateway.example.com/auth/provider"
ENTITY = "https://gateway.example.com/auth/acme/metadata"
REQUEST = "_request-of-this-sign-in"


@dataclass(frozen=True)
class Scene:
    idp: IdentitySystem
    asked: Asked
    gateway: Signer
    stranger: Signer

    @classmethod
    def begin(cls, now: datetime) -> Scene:
        return cls(IdentitySystem(), Asked(REQUEST, ACS, ENTITY, now), signer("gateway"), signer("stranger"))

    def assertion(self, **changes: str) -> etree._Element:
        """Of the identity system, about Mallory, signed."""
        return self.idp.sign(self.idp.assertion(self.asked, MALLORY, {"groups": ["users"]}, **changes))

    def forged(self, assertion_id: str = "_forged") -> etree._Element:
        """About the victim, and signed by nobody."""
        return self.idp.assertion(self.asked, VICTIM, {"groups": ["admins"]}, assertion_id=assertion_id)

    def response(self, *assertions: etree._Element) -> etree._Element:
        return self.idp.response(self.asked, *assertions)

    def honest(self) -> etree._Element:
        return self.response(self.assertion())

    def signed_response(self) -> etree._Element:
        """The response is signed, and the assertion is not."""
        plain = self.idp.assertion(self.asked, MALLORY, {"groups": ["users"]})
        return self.idp.sign(self.response(plain))


@dataclass(frozen=True)
class Attack:
    """`sees_mallory`: what is signed is untouched, so a careful reader may see Mallory, and only Mallory."""

    name: str
    build: Callable[[Scene], bytes]
    sees_mallory: bool = False

    def __str__(self) -> str:
        return self.name


Change = Callable[[Scene], etree._Element | bytes | str]


class Corpus(list[Attack]):
    """Collects attacks: the name of a function is that of its attack."""

    def add(self, change: Change) -> Change:
        self._append(change, sees_mallory=False)
        return change

    def add_harmless(self, change: Change) -> Change:
        """What is signed stays as it is, and must be read as it is."""
        self._append(change, sees_mallory=True)
        return change

    def named(self, name: str, change: Change) -> None:
        self.append(Attack(name, lambda scene: _bytes(change(scene))))

    def _append(self, change: Change, *, sees_mallory: bool) -> None:
        name = change.__name__.replace("_", " ").strip()
        self.append(Attack(name, lambda scene: _bytes(change(scene)), sees_mallory))


def _bytes(document: etree._Element | bytes | str) -> bytes:
    if isinstance(document, bytes):
        return document
    return document.encode() if isinstance(document, str) else text(document)


# --- handles ---


def clone(element: etree._Element) -> etree._Element:
    return copy.deepcopy(element)


def find(element: etree._Element, path: str) -> etree._Element:
    return element.find(path, NS)


def signature_of(element: etree._Element) -> etree._Element:
    return find(element, "ds:Signature")


def take_signature(element: etree._Element) -> etree._Element:
    signature = signature_of(element)
    element.remove(signature)
    return signature


def after_issuer(element: etree._Element, child: etree._Element) -> None:
    element.insert(1 if element[0].tag == f"{{{SAML}}}Issuer" else 0, child)


def rename_victim(element: etree._Element) -> etree._Element:
    """*element* with the victim's name in place of Mallory's."""
    for name_id in element.iter(f"{{{SAML}}}NameID"):
        name_id.text = VICTIM
    return element


def element(tag: str, *children: etree._Element) -> etree._Element:
    prefix, local = tag.split(":")
    made = etree.Element(f"{{{NS[prefix]}}}{local}", nsmap={prefix: NS[prefix]})
    made.extend(children)
    return made


def in_object(*children: etree._Element) -> etree._Element:
    made = etree.Element(f"{{{DS}}}Object", nsmap={"ds": DS})
    made.extend(children)
    return made
