"""Single logout: what the identity system says is believed only if it has signed it, for us, a moment ago."""

from __future__ import annotations

import base64
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from lxml import etree

from ostiary.errors import LoginRefused
from ostiary_gateway.interfaces.identity import LoginRequest, Logout, PostedForm, Redirect, SignOut
from ostiary_gateway.providers.saml.bindings import redirect_url
from ostiary_gateway.sessions import ended_origins, origins_of
from ostiary_gateway.testing import FakeClock
from tests.support.saml.documents import NS, SAML, SAMLP, IdentitySystem, Signer, sign, signer, text
from tests.support.saml.service import LOGOUT, Service, message_of
from tests.unit.ostiary_gateway.providers.saml.test_identity import check_signature


@pytest.fixture
def service(tmp_path: Path, clock: FakeClock) -> Service:
    return Service(tmp_path, clock)


def logout_request(
    service: Service, *, name: str = "alice", indexes: tuple[str, ...] = ("session-1",), **changes: Any
) -> etree._Element:
    now = service.clock.now()
    values = {"issuer": service.idp.entity_id, "Destination": LOGOUT, "IssueInstant": f"{now:%Y-%m-%dT%H:%M:%SZ}"}
    values |= changes
    sessions = "".join(f"<samlp:SessionIndex>{each}</samlp:SessionIndex>" for each in indexes)
    issuer = values.pop("issuer")
    root = etree.fromstring(
        f'<samlp:LogoutRequest xmlns:samlp="{SAMLP}" xmlns:saml="{SAML}" ID="_logout-1" Version="2.0">'
        f"<saml:Issuer>{issuer}</saml:Issuer><saml:NameID>{name}</saml:NameID>{sessions}</samlp:LogoutRequest>"
    )
    for key, value in values.items():
        root.set(key, value)
    return root


def by_redirect(message: etree._Element, by: Signer | None, relay_state: str = "state-of-the-idp") -> LoginRequest:
    key = None if by is None else by.key
    url = redirect_url(LOGOUT, "SAMLRequest", text(message), relay_state=relay_state, key=key)
    return query_request(urlsplit(url).query)


def query_request(query: str) -> LoginRequest:
    return LoginRequest("GET", "/auth/acme/logout", raw_query=query, callback_url=LOGOUT)


def by_post(message: etree._Element, by: Signer | None, relay_state: str = "state-of-the-idp") -> LoginRequest:
    signed = message if by is None else sign(message, by)
    form = (("SAMLRequest", base64.b64encode(text(signed)).decode()), ("RelayState", relay_state))
    return LoginRequest("POST", "/auth/acme/logout", form=form, callback_url=LOGOUT)


SEND = {"redirect": by_redirect, "post": by_post}


@pytest.mark.parametrize("binding", SEND)
async def test_a_signed_request_ends_the_sign_in_that_it_names(service: Service, binding: str) -> None:
    logout = await service.provider.handle_logout(SEND[binding](logout_request(service), service.idp.signer))
    begun = await service.begin()
    signed_in = await service.finish(begun, service.idp.signed_response(begun.asked, "alice"))
    assert logout.session_id == signed_in.session_id != ""
    assert (logout.subject, logout.token_id) == (signed_in.subject, "_logout-1") == ("alice", "_logout-1")
    assert logout.verified
    assert logout.once_until == service.clock.now() + timedelta(minutes=5, seconds=30)
    assert isinstance(logout.answer, PostedForm if binding == "post" else Redirect)
    answer = message_of(logout.answer, "SAMLResponse")
    assert answer.get("InResponseTo") == "_logout-1"
    assert answer.get("Destination") == "https://idp.example.com/slo"
    assert answer.find("samlp:Status/samlp:StatusCode", NS).get("Value").endswith(":Success")
    if isinstance(logout.answer, PostedForm):
        check_signature(answer, service.key)
        assert dict(logout.answer.fields)["RelayState"] == "state-of-the-idp"
    else:
        assert "&RelayState=state-of-the-idp&SigAlg=" in logout.answer.url
        assert "&Signature=" in logout.answer.url


async def test_a_request_ends_no_sign_in_of_somebody_with_the_same_index(service: Service) -> None:
    """An index need not be unique beyond one person: "1" is one that identity systems use for everybody."""
    begun = await service.begin()
    alice = await service.finish(begun, service.idp.signed_response(begun.asked, "alice"))
    message = logout_request(service, name="mallory", indexes=("session-1",))
    logout = await service.provider.handle_logout(by_redirect(message, service.idp.signer))
    ended = ended_origins("acme", session_id=logout.session_id, subject=logout.subject)
    assert not set(ended) & set(origins_of("acme", session_id=alice.session_id, subject=alice.subject))


async def test_without_a_session_or_with_several_all_of_the_person_end(service: Service) -> None:
    for indexes in ((), ("one", "two")):
        message = logout_request(service, indexes=indexes)
        logout = await service.provider.handle_logout(by_redirect(message, service.idp.signer))
        assert (logout.session_id, logout.subject) == ("", "alice")


@pytest.mark.parametrize("binding", SEND)
@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"issuer": "https://other.example.com"}, "its issuer is"),
        ({"Destination": "https://other.example.com/logout"}, "it was sent to"),
        ({"IssueInstant": "2001-01-01T00:00:00Z"}, "it has expired"),
        ({"IssueInstant": "2999-01-01T00:00:00Z"}, "in the future"),
        ({"NotOnOrAfter": "2001-01-01T00:00:00Z"}, "it has expired"),
        ({"Version": "1.1"}, "not a logout request"),
    ],
)
async def test_a_request_that_is_not_for_us_and_now_ends_nothing(
    service: Service, binding: str, changes: dict[str, Any], cause: str
) -> None:
    await refused(service, SEND[binding](logout_request(service, **changes), service.idp.signer), cause)


@pytest.mark.parametrize("binding", SEND)
async def test_nobody_else_can_end_a_sign_in(service: Service, binding: str) -> None:
    await refused(service, SEND[binding](logout_request(service), None), "not signed")
    await refused(service, SEND[binding](logout_request(service), signer("stranger")), "fits no key")


async def test_the_query_is_verified_as_it_came(service: Service) -> None:
    query = by_redirect(logout_request(service), service.idp.signer).raw_query
    assert await service.provider.handle_logout(query_request(query))
    # Other bytes with the same meaning, of an encoder with other habits: verified as they are, and so not accepted.
    await refused(service, query_request(query.replace("%3D", "%3d", 1)), "fits no key")
    for changed in (
        query.replace("RelayState=state-of-the-idp", "RelayState=another"),
        query.replace("&RelayState=state-of-the-idp", ""),
        query + "&RelayState=another",
        query + "&SAMLRequest=x",
        query + "&%53AMLRequest=x",
        query.replace("rsa-sha256", "rsa-sha1"),
        query.partition("&SigAlg")[0],
        query.replace("SAMLRequest", "SAMLAnything"),
        "",
    ):
        await refused(service, query_request(changed), "")


async def test_a_small_message_that_unpacks_into_a_huge_one_is_refused(service: Service) -> None:
    huge = etree.fromstring(f"<x>{'a' * 5_000_000}</x>")
    await refused(service, by_redirect(huge, service.idp.signer), "too large")


@pytest.mark.parametrize("where", [b"<samlp:LogoutRequest ", b"</ds:SignedInfo>", b"</ds:KeyInfo>"], ids=str)
async def test_a_message_that_takes_long_to_verify_is_refused_before(service: Service, where: bytes) -> None:
    """Anybody can send one, and each key of the identity system would be tried with it."""
    signed = text(sign(logout_request(service), signer("stranger")))
    assert where in signed
    names = b"".join(b'xmlns:n%d="urn:%d" ' % (each, each) for each in range(100))
    more = where + names if where.startswith(b"<s") else b"<n/>" * 100 + where
    document = base64.b64encode(signed.replace(where, more, 1)).decode()
    request = LoginRequest("POST", "/auth/acme/logout", form=(("SAMLRequest", document),), callback_url=LOGOUT)
    await refused(service, request, "more elements or namespaces")


async def test_an_assertion_is_no_logout_request(service: Service) -> None:
    begun = await service.begin()
    assertion = service.idp.assertion(begun.asked)
    await refused(service, by_post(assertion, service.idp.signer), "not a logout request")


async def test_the_answer_to_our_own_request_ends_nothing(service: Service) -> None:
    request = LoginRequest("GET", "/auth/acme/logout", query=(("SAMLResponse", "anything"),))
    assert await service.provider.handle_logout(request) == Logout(verified=False, is_return=True)


# --- a person signs out here ---


async def test_the_identity_system_is_told_who_has_signed_out(service: Service) -> None:
    begun = await service.begin()
    identified = await service.finish(begun, service.idp.signed_response(begun.asked, "alice"))
    away = await service.provider.sign_out(SignOut(identified.sign_out_hint, LOGOUT))
    assert isinstance(away, Redirect)
    assert away.remember == ()
    message = message_of(away)
    assert message.tag == f"{{{SAMLP}}}LogoutRequest"
    assert message.find("saml:NameID", NS).text == "alice"
    assert message.find("saml:NameID", NS).get("Format").endswith("persistent")
    assert message.find("samlp:SessionIndex", NS).text == "session-1"
    assert "&Signature=" in away.url


async def test_the_name_goes_back_with_its_qualifiers(service: Service) -> None:
    begun = await service.begin()
    assertion = service.idp.assertion(begun.asked, "alice")
    for key in ("NameQualifier", "SPNameQualifier"):
        assertion.find("saml:Subject/saml:NameID", NS).set(key, f"the-{key}")
    response = service.idp.response(begun.asked, service.idp.sign(assertion))
    identified = await service.finish(begun, response)
    away = await service.provider.sign_out(SignOut(identified.sign_out_hint, LOGOUT))
    assert isinstance(away, Redirect)
    name_id = message_of(away).find("saml:NameID", NS)
    assert (name_id.get("NameQualifier"), name_id.get("SPNameQualifier")) == (
        "the-NameQualifier",
        "the-SPNameQualifier",
    )


async def test_there_is_nothing_to_do_where_nothing_can_be_done(tmp_path: Path, clock: FakeClock) -> None:
    idp = IdentitySystem()
    without = idp.metadata()
    for each in without.findall("md:IDPSSODescriptor/md:SingleLogoutService", NS):
        each.getparent().remove(each)
    service = Service(tmp_path, clock, idp)
    begun = await service.begin()
    hint = (await service.finish(begun, idp.signed_response(begun.asked))).sign_out_hint
    assert await service.provider.sign_out(SignOut(None, LOGOUT)) is None
    assert await service.provider.sign_out(SignOut(hint, LOGOUT)) is not None
    changes: tuple[dict[str, Any], ...] = (
        {"metadata": without},
        {"singleLogout": False},
        {"keyFile": None, "certificateFile": None},
    )
    for each in changes:
        changed = Service(tmp_path, clock, idp, **each)
        assert await changed.provider.sign_out(SignOut(hint, LOGOUT)) is None


async def refused(service: Service, request: LoginRequest, cause: str) -> None:
    with pytest.raises(LoginRefused, match="the logout is not accepted") as refusal:
        await service.provider.handle_logout(request)
    assert cause in str(refusal.value.cause)
