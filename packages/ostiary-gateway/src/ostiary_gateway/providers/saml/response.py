"""SAML messages: verification of responses, and construction of the messages that the gateway sends.

    parse -> one Response -> its signature, if any -> one Assertion, decrypted if encrypted -> its signature, if any
    -> `validate_assertion.read_assertion`

A signature that is present must be valid, and one must cover the assertion: its own, or that of the response. After
each signature only the covered part is used (`docs/decisions/0067`). An unsigned response can only cause a denial.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from cryptography.hazmat.primitives.asymmetric import rsa
from lxml import etree

from ostiary.core.text import printable
from ostiary_gateway.providers.saml.assertion import Assertion, NameId
from ostiary_gateway.providers.saml.encryption import decrypt_element
from ostiary_gateway.providers.saml.metadata import IdentitySystem
from ostiary_gateway.providers.saml.settings import SamlBinding, Signed
from ostiary_gateway.providers.saml.signatures import is_signed, verify_element
from ostiary_gateway.providers.saml.validate_assertion import Expected, check_issuer, read_assertion
from ostiary_gateway.providers.saml.xml import (
    PREFIXES,
    SAML,
    SAMLP,
    DocumentRefused,
    check_ids,
    name,
    only_child,
    parse,
    quoted,
    required_child,
    text_of,
)

SUCCESS = "urn:oasis:names:tc:SAML:2.0:status:Success"


class SignInDeclined(Exception):
    """The IdP did not sign the user in. The text is its status."""


@dataclass(frozen=True, slots=True)
class ResponseRules:
    """Requirements of the operator."""

    algorithms: Collection[str]
    signed: Signed = Signed.EITHER
    must_be_encrypted: bool = False
    cbc: bool = False


def read_response(
    data: bytes,
    system: IdentitySystem,
    expected: Expected,
    rules: ResponseRules,
    decryption_key: rsa.RSAPrivateKey | None = None,
) -> Assertion:
    """Return the assertion in *data*. Raise `DocumentRefused` if it is invalid, `SignInDeclined` if the IdP denies."""
    response = parse(data)
    if response.tag != name(SAMLP, "Response") or response.get("Version") != "2.0":
        raise DocumentRefused("it is not a response of SAML 2.0")
    check_ids(response)
    is_covered = is_signed(response)
    if is_covered:
        response = verify_element(response, system.certificates, rules.algorithms)
    elif rules.signed is Signed.RESPONSE:
        raise DocumentRefused("the response is not signed (setting requireSigned)")
    _check_envelope(response, expected)
    assertion = _open_assertion(response, rules, decryption_key)
    if is_signed(assertion):
        assertion = verify_element(assertion, system.certificates, rules.algorithms)
    elif rules.signed is Signed.ASSERTION:
        raise DocumentRefused("the assertion is not signed (setting requireSigned)")
    elif not is_covered:
        raise DocumentRefused("neither the response nor the assertion is signed")
    return read_assertion(assertion, expected)


def _check_envelope(response: etree._Element, expected: Expected) -> None:
    issuer = only_child(response, SAML, "Issuer")
    if issuer is not None:
        check_issuer(issuer, expected.issuer)
    destination = response.get("Destination")
    if destination not in (None, "", expected.recipient):
        raise DocumentRefused(f"it was sent to {quoted(destination)}, not {expected.recipient} (Destination)")
    if response.get("InResponseTo") != expected.request_id:
        raise DocumentRefused("it does not answer the request of this sign-in (InResponseTo)")
    check_status(response)


def check_status(response: etree._Element) -> None:
    """Raise `SignInDeclined` with the status codes unless the status is a success."""
    status = required_child(response, SAMLP, "Status")
    code = required_child(status, SAMLP, "StatusCode")
    if code.get("Value") == SUCCESS:
        return
    codes = [each.get("Value") or "" for each in code.iter(name(SAMLP, "StatusCode"))]
    message = only_child(status, SAMLP, "StatusMessage")
    said = "" if message is None else f": {printable(text_of(message)[:200])}"
    raise SignInDeclined(printable(", ".join(each.rpartition(":")[2][:64] for each in codes[:3])) + said)


def _open_assertion(
    response: etree._Element, rules: ResponseRules, decryption_key: rsa.RSAPrivateKey | None
) -> etree._Element:
    """Return the only assertion. A second one anywhere could mislead a reader that selects the wrong one."""
    assertions = list(response.iter(name(SAML, "Assertion")))
    encrypted = list(response.iter(name(SAML, "EncryptedAssertion")))
    if len(assertions) + len(encrypted) != 1 or (assertions or encrypted)[0].getparent() is not response:
        raise DocumentRefused("it must have one assertion, as a part of the response itself")
    if assertions:
        if rules.must_be_encrypted:
            raise DocumentRefused("the assertion is not encrypted (setting encryption.required)")
        return assertions[0]
    if decryption_key is None:
        raise DocumentRefused("the assertion is encrypted, and there is no RSA key to open it (setting keyFile)")
    assertion = decrypt_element(encrypted[0], decryption_key, cbc=rules.cbc)
    if assertion.tag != name(SAML, "Assertion") or _has_another_assertion(assertion):
        raise DocumentRefused("what is encrypted is not one assertion")
    return assertion


def _has_another_assertion(assertion: etree._Element) -> bool:
    names = (name(SAML, "Assertion"), name(SAML, "EncryptedAssertion"))
    return any(each is not assertion for each in assertion.iter(*names))


# The messages that the gateway sends.

_PREFIXES = {prefix: PREFIXES[prefix] for prefix in ("saml", "samlp")}


def new_id() -> str:
    # An XML ID begins with a letter or an underscore, and the next one must be unpredictable.
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
    """Build an AuthnRequest. One of *context_classes* is required; *force* makes the user authenticate again."""
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
