"""Parses XML that anybody may have sent, and reads it without surprises.

Called with responses, logout messages and metadata. A document is UTF-8, small, without a document type, and so
without entities; without processing instructions; comments are dropped while it is parsed, so that the text of an
element is one piece. Whatever else it is, is a `DocumentRefused`.
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
    """A document is not accepted. The text is for the operator: it quotes nothing but names and identifiers."""


def parse(data: bytes, *, limit: int = MAX_BYTES) -> etree._Element:
    """The root of the document *data*."""
    if len(data) > limit:
        raise DocumentRefused(f"the document is larger than {limit // 1024} KiB")
    try:
        text = data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError:
        raise DocumentRefused("the document is not UTF-8") from None
    # Looked for in the text, so that the parser never sees one: entities begin with a document type.
    if re.search(r"<!(?!--|\[CDATA\[)", text):
        raise DocumentRefused("the document has a document type or declares entities")
    if text.count("<?") > text.startswith("<?xml "):
        raise DocumentRefused("the document has processing instructions")
    try:
        # With the encoding given, the one that the document claims for itself has no effect.
        root = etree.fromstring(text.encode(), _parser())
    except etree.XMLSyntaxError:
        raise DocumentRefused("the document is not well-formed XML") from None
    if any(not isinstance(element.tag, str) for element in root.iter()):
        raise DocumentRefused("the document has more than elements and text")
    return root


def _parser() -> etree.XMLParser:
    # A parser has a state of its own: a new one for each document.
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
    """*element* as a document of its own, with the namespaces that hold where it stands."""
    return bytes(etree.tostring(element, with_tail=False))


def name(namespace: str, local: str) -> str:
    return f"{{{namespace}}}{local}"


def check_ids(root: etree._Element) -> None:
    """Raises `DocumentRefused` if one ID stands twice, under whatever name: a reference could mean either element."""
    counts = Counter(value for element in root.iter() for key in _IDS if (value := element.get(key)) is not None)
    if any(count > 1 for count in counts.values()):
        raise DocumentRefused("an ID stands twice in the document")


def children(element: etree._Element, namespace: str, local: str) -> list[etree._Element]:
    return [child for child in element if child.tag == name(namespace, local)]


def only_child(element: etree._Element, namespace: str, local: str) -> etree._Element | None:
    """The child of this name, or None. Raises `DocumentRefused` if there are several."""
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
    """All the text of *element*, which must have no elements in it."""
    if len(element):
        raise DocumentRefused(f"{local_name(element)} has elements where its text should be")
    return element.text or ""


def local_name(element: etree._Element) -> str:
    return str(etree.QName(element).localname)


def attribute(element: etree._Element, key: str) -> str:
    """An attribute that must be there."""
    value = element.get(key)
    if not value:
        raise DocumentRefused(f"{local_name(element)} has no {key}")
    return str(value)


def time_of(element: etree._Element, key: str) -> datetime | None:
    """The time in an attribute, if it is there."""
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
    """An XML duration of days and less; None if it is longer, or none."""
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
    """A name that a stranger chose, for the log."""
    return f'"{printable(text[:LONGEST_QUOTE])}"'
