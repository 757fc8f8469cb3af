"""Validate an assertion: its issuer, audience, times, and that it belongs to this sign-in.

Callers pass an element that a signature covers. The clock skew is applied in the IdP's favour to every time, in both
directions (SAML Core 2.5.1, Profiles 4.1.4.3).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from lxml import etree

from ostiary_gateway.providers.saml.assertion import Assertion, NameId
from ostiary_gateway.providers.saml.xml import (
    SAML,
    DocumentRefused,
    attribute,
    children,
    local_name,
    name,
    only_child,
    quoted,
    required_child,
    text_of,
    time_of,
)

BEARER = "urn:oasis:names:tc:SAML:2.0:cm:bearer"
ENTITY = "urn:oasis:names:tc:SAML:2.0:nameid-format:entity"
# They restrict later use of an assertion. The gateway reads it once and passes it to no other party.
_HARMLESS_CONDITIONS = (name(SAML, "OneTimeUse"), name(SAML, "ProxyRestriction"))
_NIL = "{http://www.w3.org/2001/XMLSchema-instance}nil"


class AssertionExpired(DocumentRefused):
    """The assertion came too late or too early. A new sign-in, or a corrected clock, helps."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The issuer, audience, recipient and request that the assertion must match, and the time."""

    issuer: str
    audience: str
    recipient: str
    request_id: str
    now: datetime
    skew: timedelta


def read_assertion(element: etree._Element, expected: Expected) -> Assertion:
    """Return the assertion. Raise `DocumentRefused` unless it is for this gateway and sign-in, and valid now."""
    if element.tag != name(SAML, "Assertion") or element.get("Version") != "2.0":
        raise DocumentRefused("it is not an assertion of SAML 2.0")
    check_issuer(required_child(element, SAML, "Issuer"), expected.issuer)
    subject = required_child(element, SAML, "Subject")
    confirmed_until = _confirmed_until(subject, expected)
    _check_conditions(required_child(element, SAML, "Conditions"), expected)
    statement = _sign_in_statement(element, expected)
    context = only_child(statement, SAML, "AuthnContext")
    class_ref = None if context is None else only_child(context, SAML, "AuthnContextClassRef")
    return Assertion(
        id=attribute(element, "ID"),
        name_id=name_id_of(subject),
        attributes=_attributes(element),
        good_until=confirmed_until + expected.skew,
        session_index=statement.get("SessionIndex") or "",
        authenticated_at=time_of(statement, "AuthnInstant"),
        context_class="" if class_ref is None else text_of(class_ref).strip(),
        session_until=time_of(statement, "SessionNotOnOrAfter"),
    )


def check_issuer(issuer: etree._Element, expected: str) -> None:
    if issuer.get("Format") not in (None, ENTITY) or text_of(issuer) != expected:
        raise DocumentRefused(f"its issuer is {quoted(text_of(issuer))}, and not the identity system")


def name_id_of(subject: etree._Element) -> NameId:
    """Return the only NameID in *subject*, a Subject or a LogoutRequest."""
    element = only_child(subject, SAML, "NameID")
    if element is None:
        hint = ", but an EncryptedID, which is not supported" if children(subject, SAML, "EncryptedID") else ""
        raise DocumentRefused(f"its subject has no NameID{hint}")
    return NameId(
        text_of(element),
        element.get("Format") or "",
        element.get("NameQualifier") or "",
        element.get("SPNameQualifier") or "",
    )


def _confirmed_until(subject: etree._Element, expected: Expected) -> datetime:
    """Return the end of a confirmation that fits this sign-in, or raise the error of the last one."""
    refusal = DocumentRefused("its subject has no bearer confirmation")
    for confirmation in children(subject, SAML, "SubjectConfirmation"):
        if confirmation.get("Method") != BEARER:
            continue
        try:
            return _check_confirmation(required_child(confirmation, SAML, "SubjectConfirmationData"), expected)
        except DocumentRefused as refused:
            refusal = refused
    raise refusal


def _check_confirmation(data: etree._Element, expected: Expected) -> datetime:
    if data.get("Recipient") != expected.recipient:
        raise DocumentRefused(f"its recipient is {quoted(data.get('Recipient') or '')}, not {expected.recipient}")
    if data.get("InResponseTo") != expected.request_id:
        raise DocumentRefused("it does not answer the request of this sign-in (InResponseTo)")
    until = time_of(data, "NotOnOrAfter")
    if until is None:
        raise DocumentRefused("its confirmation has no end (NotOnOrAfter)")
    _check_times(data, expected)
    return until


def _check_conditions(conditions: etree._Element, expected: Expected) -> None:
    _check_times(conditions, expected)
    restrictions = children(conditions, SAML, "AudienceRestriction")
    if not restrictions:
        raise DocumentRefused("it names no audience")
    for restriction in restrictions:
        audiences = [text_of(each) for each in children(restriction, SAML, "Audience")]
        if expected.audience not in audiences:
            raise DocumentRefused(f"its audience is {quoted(' '.join(audiences))}, not {expected.audience}")
    for condition in conditions:
        if condition.tag != name(SAML, "AudienceRestriction") and condition.tag not in _HARMLESS_CONDITIONS:
            raise DocumentRefused(f"it has a condition that is not known here: {quoted(local_name(condition))}")


def _check_times(element: etree._Element, expected: Expected) -> None:
    begin, end = time_of(element, "NotBefore"), time_of(element, "NotOnOrAfter")
    if begin is not None and expected.now < begin - expected.skew:
        raise AssertionExpired(f"{local_name(element)}: it is not valid before {begin:%Y-%m-%d %H:%M:%S} UTC")
    if end is not None and expected.now >= end + expected.skew:
        raise AssertionExpired(f"{local_name(element)}: it has expired at {end:%Y-%m-%d %H:%M:%S} UTC")


def _sign_in_statement(element: etree._Element, expected: Expected) -> etree._Element:
    statements = children(element, SAML, "AuthnStatement")
    if len(statements) != 1:
        raise DocumentRefused("it must say once how the person signed in (AuthnStatement)")
    statement = statements[0]
    instant, end = time_of(statement, "AuthnInstant"), time_of(statement, "SessionNotOnOrAfter")
    if instant is None or instant - expected.skew > expected.now:
        raise AssertionExpired("the person signed in at no time, or in the future (AuthnInstant)")
    if end is not None and expected.now >= end:
        raise AssertionExpired("the session at the identity system has ended (SessionNotOnOrAfter)")
    return statement


def _attributes(element: etree._Element) -> dict[str, tuple[str | None, ...]]:
    """Return all values by attribute name. None stands for a value that is not text and must not be used."""
    values: dict[str, tuple[str | None, ...]] = {}
    for statement in children(element, SAML, "AttributeStatement"):
        for each in children(statement, SAML, "Attribute"):
            key = attribute(each, "Name")
            more = tuple(
                None if len(value) else (value.text or "")
                for value in children(each, SAML, "AttributeValue")
                if value.get(_NIL) not in ("true", "1")
            )
            values[key] = (*values.get(key, ()), *more)
    return values
