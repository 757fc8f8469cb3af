"""Parse untrusted XML.

A document must be small UTF-8 without a document type, and so without entities, and without processing instructions.
Comments are dropped while parsing, so that the text of an element is one piece. Anything else is a `DocumentRefused`.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections import Counter
from datetime import UTC, datetime

from lxml import etree

from ostiary.core.text import printable

MAX_BYTES = 256 * 1024
SAML = "urn:oasis:names:tc:SAML:2.0:assertion"
SAMLP = "urn:oasis:names:tc:SAML:2.0:protocol"
MD = "urn:oasis:names:tc:SAML:2.0:metadata"
DS = "http://www.w3.org/2000/09/xmldsig#"
XENC = "http://www.w3.org/2001/04/xmlenc#"
XENC11 = "http://www.w3.org/2009/xmlenc11#"
PREFIXES = {"saml": SAML, "samlp": SAMLP, "md": MD, "ds": DS, "xenc": XENC, "xenc11": XENC11}
LONGEST_QUOTE = 200
_IDS = ("ID", "Id", "id", "{http://www.w3.org/XML/1998/namespace}id")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,12})?(Z|[+-]\d\d:\d\d)")
_DURATION = re.compile(r"P(?:(\d{1,6})D)?(?:T(?:(\d{1,6})H)?(?:(\d{1,8})M)?(?:(\d{1,9})(?:\.\d+)?S)?)?")


class DocumentRefused(Exception):
    """A document is rejected. The text is for the operator and quotes only names and identifiers."""


def parse(data: bytes, *, limit: int = MAX_BYTES) -> etree._Element:
    """Return the root of the document *data*."""
    if len(data) > limit:
        raise DocumentRefused(f"the document is larger than {limit // 1024} KiB")
    try:
        text = data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError:
        raise DocumentRefused("the document is not UTF-8") from None
    # Rejected before parsing, so that the parser never sees an entity: they require a document type.
    if re.search(r"<!(?!--|\[CDATA\[)", text):
        raise DocumentRefused("the document has a document type or declares entities")
    if text.count("<?") > text.startswith("<?xml "):
        raise DocumentRefused("the document has processing instructions")
    try:
        # The explicit encoding overrides the one that the document declares.
        root = etree.fromstring(text.encode(), _parser())
    except etree.XMLSyntaxError:
        raise DocumentRefused("the document is not well-formed XML") from None
    if any(not isinstance(element.tag, str) for element in root.iter()):
        raise DocumentRefused("the document has more than elements and text")
    return root


def _parser() -> etree.XMLParser:
    # A parser has state, so each document gets a new one.
    return etree.XMLParser(
        encoding="utf-8",
        resolve_entities=False,
        no_network=True,
        load_dtd=False,
        dtd_validation=False,
        attribute_defaults=False,
        huge_tree=False,
        remove_comments=True,
        recover=False,
        collect_ids=False,
    )


def serialize(element: etree._Element) -> bytes:
    """Return *element* as a document of its own, with the namespaces in scope."""
    return bytes(etree.tostring(element, with_tail=False))


def name(namespace: str, local: str) -> str:
    return f"{{{namespace}}}{local}"


def check_ids(root: etree._Element) -> None:
    """Raise `DocumentRefused` if an ID occurs twice, in any attribute: a reference to it would be ambiguous."""
    counts = Counter(value for element in root.iter() for key in _IDS if (value := element.get(key)) is not None)
    if any(count > 1 for count in counts.values()):
        raise DocumentRefused("an ID stands twice in the document")


def children(element: etree._Element, namespace: str, local: str) -> list[etree._Element]:
    return [child for child in element if child.tag == name(namespace, local)]


def only_child(element: etree._Element, namespace: str, local: str) -> etree._Element | None:
    """Return the child with this name, or None. Raise `DocumentRefused` if there are several."""
    named = children(element, namespace, local)
    if len(named) > 1:
        raise DocumentRefused(f"there is more than one {local}")
    return named[0] if named else None


def required_child(element: etree._Element, namespace: str, local: str) -> etree._Element:
    child = only_child(element, namespace, local)
    if child is None:
        raise DocumentRefused(f"there is no {local}")
    return child


def text_of(element: etree._Element) -> str:
    """Return the text of *element*, which must not contain elements."""
    if len(element):
        raise DocumentRefused(f"{local_name(element)} has elements where its text should be")
    return element.text or ""


def local_name(element: etree._Element) -> str:
    return str(etree.QName(element).localname)


def attribute(element: etree._Element, key: str) -> str:
    """Return a required attribute."""
    value = element.get(key)
    if not value:
        raise DocumentRefused(f"{local_name(element)} has no {key}")
    return str(value)


def time_of(element: etree._Element, key: str) -> datetime | None:
    """Return the time in an attribute, or None if it is absent."""
    value = element.get(key)
    return None if value is None else read_time(value)


def read_time(text: str) -> datetime:
    try:
        if _TIME.fullmatch(text):
            return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise DocumentRefused(f"a time cannot be read: {quoted(text)}")


def duration_seconds(text: str) -> float | None:
    """Return an XML duration in seconds. None if it is invalid, or has months or years."""
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groups()):
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def decode_base64(text: str) -> bytes:
    try:
        return base64.b64decode(re.sub(r"[ \t\r\n]", "", text), validate=True)
    except (binascii.Error, ValueError):
        raise DocumentRefused("a value is not base64") from None


def quoted(text: str) -> str:
    """Quote an untrusted name for the log."""
    return f'"{printable(text[:LONGEST_QUOTE])}"'
