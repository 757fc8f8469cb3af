"""The messages that we write: the request of a sign-in, and what is said at a logout. Pure; called by the provider."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime

from lxml import etree

from ostiary.plugins.saml.assertion import NameId
from ostiary.plugins.saml.response import SUCCESS
from ostiary.plugins.saml.settings import SamlBinding
from ostiary.plugins.saml.xml.documents import PREFIXES, SAML, SAMLP, name

_PREFIXES = {prefix: PREFIXES[prefix] for prefix in ("saml", "samlp")}


def new_id() -> str:
    # An ID begins with a letter or an underscore, and nobody may guess the next one.
    return f"_{secrets.token_hex(20)}"


def authn_request(
    *,
    request_id: str,
    issuer: str,
    destination: str,
    callback_url: str,
    now: datetime,
    name_id_format: str = "",
    context_classes: Sequence[str] = (),
    force: bool = False,
) -> etree._Element:
    """*context_classes* are the ways to sign in of which one is required; with *force* the person is asked again."""
    request = _message("AuthnRequest", request_id, issuer, destination, now)
    request.set("AssertionConsumerServiceURL", callback_url)
    request.set("ProtocolBinding", SamlBinding.POST.uri)
    if force:
        request.set("ForceAuthn", "true")
    policy = etree.SubElement(request, name(SAMLP, "NameIDPolicy"), AllowCreate="true")
    if name_id_format:
        policy.set("Format", name_id_format)
    if context_classes:
        requested = etree.SubElement(request, name(SAMLP, "RequestedAuthnContext"), Comparison="exact")
        for each in context_classes:
            etree.SubElement(requested, name(SAML, "AuthnContextClassRef")).text = each
    return request


def logout_request(
    *, request_id: str, issuer: str, destination: str, now: datetime, name_id: NameId, session_index: str
) -> etree._Element:
    request = _message("LogoutRequest", request_id, issuer, destination, now)
    element = etree.SubElement(request, name(SAML, "NameID"))
    element.text = name_id.value
    qualifiers = {
        "Format": name_id.format,
        "NameQualifier": name_id.name_qualifier,
        "SPNameQualifier": name_id.sp_name_qualifier,
    }
    for key, value in qualifiers.items():
        if value:
            element.set(key, value)
    if session_index:
        etree.SubElement(request, name(SAMLP, "SessionIndex")).text = session_index
    return request


def logout_response(*, issuer: str, destination: str, now: datetime, in_response_to: str) -> etree._Element:
    response = _message("LogoutResponse", new_id(), issuer, destination, now)
    response.set("InResponseTo", in_response_to)
    status = etree.SubElement(response, name(SAMLP, "Status"))
    etree.SubElement(status, name(SAMLP, "StatusCode"), Value=SUCCESS)
    return response


def _message(kind: str, message_id: str, issuer: str, destination: str, now: datetime) -> etree._Element:
    message = etree.Element(name(SAMLP, kind), nsmap=_PREFIXES)
    message.set("ID", message_id)
    message.set("Version", "2.0")
    message.set("IssueInstant", f"{now.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}")
    message.set("Destination", destination)
    etree.SubElement(message, name(SAML, "Issuer")).text = issuer
    return message
