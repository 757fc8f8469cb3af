"""SAML bindings: messages in the query of a redirect, or in a form that a page posts.

    redirect   DEFLATE, base64, and a signature over the query (SAML Bindings 3.4.4.1)
    POST       base64 of the document, which has its own signature

The signature of a redirect is verified over the query as the browser sent it: encoding it again might change bytes.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote_plus, urlsplit, urlunsplit

from cryptography import x509
from lxml import etree

from ostiary_gateway.interfaces.identity import PostedForm, Redirect
from ostiary_gateway.providers.saml.settings import SamlBinding
from ostiary_gateway.providers.saml.signatures import (
    KeyPair,
    PrivateKey,
    sign_bytes,
    sign_element,
    signature_method,
    verify_bytes,
)
from ostiary_gateway.providers.saml.xml import MAX_BYTES, DocumentRefused, decode_base64, serialize

REQUEST, RESPONSE, RELAY_STATE = "SAMLRequest", "SAMLResponse", "RelayState"
_DEFLATE = "urn:oasis:names:tc:SAML:2.0:bindings:URL-Encoding:DEFLATE"


def send(
    message: etree._Element, parameter: str, url: str, binding: SamlBinding, pair: KeyPair | None, relay_state: str = ""
) -> Redirect | PostedForm:
    """Return the redirect or form that sends *message* to *url*, signed if *pair* is given."""
    if binding is SamlBinding.POST:
        signed = message if pair is None else sign_element(message, pair.key, pair.certificate)
        return PostedForm(url, post_fields(parameter, serialize(signed), relay_state), state_name=RELAY_STATE)
    key = None if pair is None else pair.key
    location = redirect_url(url, parameter, serialize(message), relay_state=relay_state, key=key)
    return Redirect(location, state_name=RELAY_STATE)


def redirect_url(
    location: str, parameter: str, document: bytes, *, relay_state: str = "", key: PrivateKey | None = None
) -> str:
    """Return *location* with the message as *parameter*, signed if *key* is given."""
    compressor = zlib.compressobj(wbits=-15)
    deflated = compressor.compress(document) + compressor.flush()
    pairs = [(parameter, base64.b64encode(deflated).decode())]
    if relay_state:
        pairs.append((RELAY_STATE, relay_state))
    if key is not None:
        pairs.append(("SigAlg", signature_method(key).value))
    query = "&".join(f"{name}={quote(value, safe='')}" for name, value in pairs)
    if key is not None:
        query += f"&Signature={quote(base64.b64encode(sign_bytes(query.encode(), key)).decode(), safe='')}"
    parts = urlsplit(location)
    # The endpoints of some IdPs have query parameters of their own.
    return urlunsplit(parts._replace(query=f"{parts.query}&{query}" if parts.query else query))


def post_fields(parameter: str, document: bytes, relay_state: str = "") -> tuple[tuple[str, str], ...]:
    fields = ((parameter, base64.b64encode(document).decode()),)
    return (*fields, (RELAY_STATE, relay_state)) if relay_state else fields


def from_post(form: Sequence[tuple[str, str]], parameter: str) -> bytes:
    return decode_base64(_only(form, parameter))


@dataclass(frozen=True, slots=True)
class RedirectMessage:
    """An unverified message from a query. Call `verify` before using it."""

    document: bytes
    relay_state: str
    algorithm: str
    signature: bytes
    signed: bytes

    def verify(self, certificates: Sequence[x509.Certificate], algorithms: Collection[str]) -> None:
        verify_bytes(self.signed, self.signature, self.algorithm, certificates, algorithms)


def from_redirect(query: str, parameter: str) -> RedirectMessage:
    """Parse the message in *query*, which must be unchanged. Raise `DocumentRefused` if it is not signed."""
    raw: dict[str, str] = {}
    for pair in query.split("&"):
        name, _, value = pair.partition("=")
        # Parsers disagree about a name that is encoded unusually or occurs twice.
        if name in raw or (unquote_plus(name) != name and unquote_plus(name) in _KNOWN):
            raise DocumentRefused("a parameter stands twice in the query")
        raw[name] = value
    if "SigAlg" not in raw or "Signature" not in raw:
        raise DocumentRefused("the message is not signed")
    if parameter not in raw or unquote_plus(raw.get("SAMLEncoding", _DEFLATE)) != _DEFLATE:
        raise DocumentRefused(f"there is no {parameter}")
    signed = "&".join(f"{name}={raw[name]}" for name in (parameter, RELAY_STATE, "SigAlg") if name in raw)
    return RedirectMessage(
        document=_inflate(decode_base64(unquote_plus(raw[parameter]))),
        relay_state=unquote_plus(raw.get(RELAY_STATE, "")),
        algorithm=unquote_plus(raw["SigAlg"]),
        signature=decode_base64(unquote_plus(raw["Signature"])),
        signed=signed.encode(),
    )


_KNOWN = (REQUEST, RESPONSE, RELAY_STATE, "SigAlg", "Signature", "SAMLEncoding")


def _inflate(deflated: bytes) -> bytes:
    """Decompress at most as many bytes as a document may have: a small message could expand into a huge one."""
    decompressor = zlib.decompressobj(wbits=-15)
    try:
        document = decompressor.decompress(deflated, MAX_BYTES + 1)
    except zlib.error:
        raise DocumentRefused("the message is not compressed as it must be") from None
    if len(document) > MAX_BYTES or not decompressor.eof or decompressor.unused_data:
        raise DocumentRefused("the message is too large, or damaged")
    return document


def _only(pairs: Sequence[tuple[str, str]], name: str) -> str:
    values = [value for key, value in pairs if key == name]
    if len(values) != 1:
        raise DocumentRefused(f"there is no {name}, or more than one")
    return values[0]
