"""Parse ``Authorization: Negotiate`` as far as possible without a key.

    SPNEGO (RFC 4178) around Kerberos, or Kerberos alone (RFC 4121)  ->  AP-REQ (RFC 4120)  ->  `SentTicket`

Parsing before any key is used distinguishes a ticket for another host from a forged one, and names a mechanism other
than Kerberos in the error. NTLM is never accepted, nor is a second round trip: no state is stored in between.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256

from ostiary.errors import LoginRefused
from ostiary_gateway.providers.kerberos.principals import Principal

# Strict DER: definite lengths in their shortest form, no trailing bytes. The Kerberos library parses the same bytes
# again, and a more lenient parser here could see another authenticator than the library does.

OID, OCTETS, SEQUENCE, GENERAL_STRING, INTEGER = 0x06, 0x04, 0x30, 0x1B, 0x02


class BadEncoding(ValueError):
    """The bytes are not valid DER, or not the expected structure."""


@dataclass(frozen=True, slots=True)
class Element:
    tag: int
    content: bytes


def only_element(data: bytes, tag: int) -> bytes:
    """Return the content of the only element in *data*, which must have this *tag*."""
    element, rest = next_element(data)
    if element.tag != tag or rest:
        raise BadEncoding
    return element.content


def next_element(data: bytes) -> tuple[Element, bytes]:
    """Return the first element, and the bytes after it."""
    if len(data) < 2 or data[0] & 0x1F == 0x1F:
        raise BadEncoding
    length, start = data[1], 2
    if length >= 0x80:
        count = length & 0x7F
        start = 2 + count
        if not 1 <= count <= 4 or len(data) < start or data[2] == 0:
            raise BadEncoding
        length = int.from_bytes(data[2:start])
        if length < 0x80:
            raise BadEncoding
    if len(data) < start + length:
        raise BadEncoding
    return Element(data[0], data[start : start + length]), data[start + length :]


def elements(data: bytes) -> Iterator[Element]:
    while data:
        element, data = next_element(data)
        yield element


def fields(sequence: bytes) -> dict[int, bytes]:
    """Return the fields of a SEQUENCE by number. Each may occur once, and they must be in order."""
    found: dict[int, bytes] = {}
    for element in elements(only_element(sequence, SEQUENCE)):
        number = element.tag - 0xA0
        if not 0 <= number < 0x1F or any(number <= before for before in found):
            raise BadEncoding
        found[number] = element.content
    return found


# KRB5 is the OID of RFC 4121. Windows also uses MS_KRB5, a misprint of it.
KRB5 = bytes.fromhex("2a864886f712010202")
MS_KRB5 = bytes.fromhex("2a864882f712010202")
SPNEGO = bytes.fromhex("2b0601050502")
NTLM = bytes.fromhex("2b06010401823702020a")
_NTLM_MESSAGE = b"NTLMSSP\0"
_APPLICATION_0, _TICKET, _AP_REQ = 0x60, 0x61, 0x6E
_AP_REQ_MARK = b"\x01\x00"
LARGEST = 128 * 1024


@dataclass(frozen=True, slots=True)
class SentTicket:
    """`token` is the token from the client, `mechanism_token` the Kerberos token inside it.

    `service` is the principal that the ticket is for, according to the ticket. `key_version` is that of the key that
    encrypts it, or 0 if unspecified. `proof_id` is the digest of the authenticator: a replay has the same one, however
    it is wrapped.
    """

    service: Principal
    key_version: int
    proof_id: str
    token: bytes = field(repr=False)
    mechanism_token: bytes = field(repr=False)


def read_header(value: str) -> SentTicket | None:
    """Return the ticket in an ``Authorization`` header. None for another scheme. Raise `LoginRefused` if invalid."""
    scheme, _, encoded = value.strip().partition(" ")
    if scheme.lower() != "negotiate":
        return None
    try:
        token = b64decode(encoded.strip(), validate=True)
    except (binascii.Error, ValueError):
        token = b""
    if not token or len(token) > LARGEST:
        raise _not_kerberos("the header has no token, or none that can be decoded")
    try:
        return read_token(token)
    except BadEncoding:
        # Raised outside of the handler, so that the exception holds nothing of the token.
        pass
    raise _not_kerberos("the token is not a request of Kerberos in SPNEGO, or not encoded as it must be")


def read_token(token: bytes) -> SentTicket:
    """Parse *token*. Raise `BadEncoding`, or `LoginRefused` for a mechanism that is not Kerberos."""
    if token.startswith(_NTLM_MESSAGE):
        raise _ntlm()
    mechanism, rest = _framed(token)
    mechanism_token = token
    if mechanism == SPNEGO:
        mechanism_token = _mechanism_token(rest)
        mechanism, rest = _framed(mechanism_token)
    if mechanism != KRB5 or not rest.startswith(_AP_REQ_MARK):
        raise BadEncoding
    request = fields(only_element(rest[len(_AP_REQ_MARK) :], _AP_REQ))
    ticket = fields(only_element(request[3], _TICKET)) if 3 in request else {}
    authenticator = fields(request[4]) if 4 in request else {}
    if not {1, 2, 3} <= ticket.keys() or 2 not in authenticator:
        raise BadEncoding
    return SentTicket(
        _principal(ticket[1], ticket[2]),
        _key_version(ticket[3]),
        sha256(only_element(authenticator[2], OCTETS)).hexdigest(),
        token,
        mechanism_token,
    )


def _framed(token: bytes) -> tuple[bytes, bytes]:
    """Return the mechanism's OID, and the bytes after it (RFC 2743, section 3.1)."""
    oid, rest = next_element(only_element(token, _APPLICATION_0))
    if oid.tag != OID:
        raise BadEncoding
    return oid.content, rest


def _mechanism_token(negotiation: bytes) -> bytes:
    """Return the token for the client's preferred mechanism (NegTokenInit), which must be Kerberos."""
    init = fields(only_element(negotiation, 0xA0))
    offered = [each.content for each in elements(only_element(init.get(0, b""), SEQUENCE)) if each.tag == OID]
    if NTLM in offered and KRB5 not in offered and MS_KRB5 not in offered:
        raise _ntlm()
    if not offered or offered[0] not in (KRB5, MS_KRB5) or 2 not in init:
        # The negotiation would take a second request, and state stored until then.
        raise LoginRefused(
            "your browser or program did not send a Kerberos ticket with its first request: get one with kinit, or"
            " sign in to the domain, and try again",
            cause="SPNEGO without a token for Kerberos, or with another mechanism before it",
        )
    return only_element(init[2], OCTETS)


def _principal(realm: bytes, name: bytes) -> Principal:
    parts = elements(only_element(fields(name).get(1, b""), SEQUENCE))
    try:
        components = tuple(only_text(part.tag, part.content) for part in parts)
        return Principal(components, only_element(realm, GENERAL_STRING).decode())
    except UnicodeDecodeError:
        pass
    raise BadEncoding


def only_text(tag: int, content: bytes) -> str:
    if tag != GENERAL_STRING:
        raise BadEncoding
    return content.decode()


def _key_version(encrypted: bytes) -> int:
    version = fields(encrypted).get(1)
    return 0 if version is None else int.from_bytes(only_element(version, INTEGER))


def _ntlm() -> LoginRefused:
    return LoginRefused(
        "your browser offered NTLM in place of a Kerberos ticket: sign in to the domain, or run kinit, and try again",
        cause="NTLM is not accepted: often the browser found no ticket for this host, or its name is not a"
        " service principal",
    )


def _not_kerberos(cause: str) -> LoginRefused:
    return LoginRefused("this is not a Kerberos ticket: run kinit, and try again", cause=cause)
