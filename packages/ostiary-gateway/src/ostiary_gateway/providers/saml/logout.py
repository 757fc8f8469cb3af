"""Single logout: requests from the IdP, and the requests that the gateway sends.

A request from the IdP must be signed: by redirect in the query, by POST in the document.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta

from lxml import etree

from ostiary.model import Secret
from ostiary_gateway.interfaces.identity import LoginRequest
from ostiary_gateway.providers.saml import bindings
from ostiary_gateway.providers.saml.assertion import Assertion, NameId
from ostiary_gateway.providers.saml.metadata import IdentitySystem
from ostiary_gateway.providers.saml.settings import SamlBinding
from ostiary_gateway.providers.saml.signatures import is_signed, verify_element
from ostiary_gateway.providers.saml.validate_assertion import check_issuer, name_id_of
from ostiary_gateway.providers.saml.xml import (
    SAML,
    SAMLP,
    DocumentRefused,
    attribute,
    children,
    name,
    parse,
    quoted,
    required_child,
    text_of,
    time_of,
)

# The lifetime of a request without NotOnOrAfter, and the maximum of any.
LIFETIME = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class LogoutRequested:
    """What the IdP ends. An empty `session_id` means all sign-ins of `subject`: the request names none, or several."""

    id: str
    subject: str
    session_id: str
    good_until: datetime
    binding: SamlBinding
    relay_state: str


def sign_in_id(name_id: NameId, session_index: str) -> str:
    """Return a unique id of the sign-in, or an empty string if it has no index.

    An index distinguishes the sign-ins of one user only: to prevent correlation across services, an IdP may number them
    from one, or use the same few for all users (SAML Core 2.7.2).
    """
    return json.dumps([name_id.value, session_index]) if session_index else ""


def is_answer(request: LoginRequest) -> bool:
    """Return whether the request is the response to our own logout request. Its content is not used."""
    return any(key == bindings.RESPONSE for key, _ in (*request.query, *request.form))


def read_logout_request(
    request: LoginRequest,
    system: IdentitySystem,
    *,
    destination: str,
    algorithms: Collection[str],
    now: datetime,
    skew: timedelta,
) -> LogoutRequested:
    """Return the request in *request*. Raise `DocumentRefused` unless the IdP signed it recently, for this gateway."""
    if request.method == "POST":
        message = parse(bindings.from_post(request.form, bindings.REQUEST))
        if not is_signed(message):
            raise DocumentRefused("the logout request is not signed")
        message = verify_element(message, system.certificates, algorithms)
        states = [value for key, value in request.form if key == bindings.RELAY_STATE]
        binding, relay_state = SamlBinding.POST, states[0] if len(states) == 1 else ""
    else:
        received = bindings.from_redirect(request.raw_query, bindings.REQUEST)
        received.verify(system.certificates, algorithms)
        message = parse(received.document)
        binding, relay_state = SamlBinding.REDIRECT, received.relay_state
    if message.tag != name(SAMLP, "LogoutRequest") or message.get("Version") != "2.0":
        raise DocumentRefused("it is not a logout request of SAML 2.0")
    check_issuer(required_child(message, SAML, "Issuer"), system.entity_id)
    if message.get("Destination") not in (None, "", destination):
        raise DocumentRefused(f"it was sent to {quoted(message.get('Destination'))}, not {destination} (Destination)")
    indexes = [text_of(each) for each in children(message, SAMLP, "SessionIndex")]
    name_id = name_id_of(message)
    return LogoutRequested(
        id=attribute(message, "ID"),
        subject=name_id.value,
        session_id=sign_in_id(name_id, indexes[0]) if len(indexes) == 1 else "",
        good_until=_good_until(message, now, skew),
        binding=binding,
        relay_state=relay_state,
    )


def _good_until(message: etree._Element, now: datetime, skew: timedelta) -> datetime:
    issued, end = time_of(message, "IssueInstant"), time_of(message, "NotOnOrAfter")
    if issued is None or issued - skew > now:
        raise DocumentRefused("it was issued at no time, or in the future (IssueInstant)")
    until = min(issued + LIFETIME, end or issued + LIFETIME) + skew
    if now >= until:
        raise DocumentRefused("it has expired")
    return until


def endpoint_of(system: IdentitySystem, preferred: SamlBinding) -> SamlBinding | None:
    """Return the binding for a logout message to the IdP, or None if it has no logout endpoint."""
    return preferred if preferred in system.logout else next(iter(system.logout), None)


# --- the hint stored for our own request ---


def hint_of(assertion: Assertion) -> Secret:
    return Secret(json.dumps({**asdict(assertion.name_id), "session_index": assertion.session_index}))


def read_hint(hint: Secret) -> tuple[NameId, str]:
    fields = json.loads(hint.reveal())
    session_index = str(fields.pop("session_index"))
    return NameId(**fields), session_index
