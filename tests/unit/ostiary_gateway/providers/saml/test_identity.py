"""The provider as the gateway calls it: who is signed in, who is refused, and what each of them and the log is told."""

from __future__ import annotations

import base64
import traceback
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import xmlsec
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from lxml import etree

from ostiary.errors import ConfigurationError, LoginRefused, ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.interfaces.identity import LoginRequest, PostedForm, Redirect, RequiredAuthentication
from ostiary_gateway.sessions.authentication_context import ACR, AUTH_TIME
from ostiary_gateway.testing import FakeClock
from tests.support.saml.documents import (
    NS,
    PASSWORD_TRANSPORT,
    SAML,
    IdentitySystem,
    Signer,
    encrypt,
    sign,
    signer,
    text,
)
from tests.support.saml.service import CALLBACK, ENTITY, LOGOUT, Service

MFA = "https://refeds.org/profile/mfa"


@pytest.fixture
def service(tmp_path: Path, clock: FakeClock) -> Service:
    return Service(tmp_path, clock, attributes={"groups": "groups"})


# --- a sign-in begins ---


async def test_the_browser_is_sent_away_with_a_signed_request(service: Service) -> None:
    """S1, S10."""
    begun = await service.begin()
    assert isinstance(begun.away, Redirect)
    parts = urlsplit(begun.away.url)
    assert f"{parts.scheme}://{parts.netloc}{parts.path}" == "https://idp.example.com/sso"
    request = begun.message
    assert request.get("AssertionConsumerServiceURL") == CALLBACK
    assert request.get("Destination") == "https://idp.example.com/sso"
    assert request.find("saml:Issuer", NS).text == ENTITY
    assert request.get("ForceAuthn") is None
    signed, _, signature = parts.query.rpartition("&Signature=")
    key = service.key.key
    assert isinstance(key, rsa.RSAPrivateKey)
    value = base64.b64decode(parse_qs(f"Signature={signature}")["Signature"][0])
    key.public_key().verify(value, signed.encode(), padding.PKCS1v15(), hashes.SHA256())


async def test_each_request_has_an_id_and_a_state_of_its_own(service: Service) -> None:
    begun = [await service.begin() for _ in range(3)]
    states = {parse_qs(urlsplit(each.away.url).query)["RelayState"][0] for each in begun}
    assert len(states) == len({each.asked.request_id for each in begun}) == 3
    # Identity systems need not carry more than 80 bytes (SAML Bindings 3.4.3).
    assert all(len(state) <= 80 for state in states)


async def test_a_request_by_post_carries_its_signature(tmp_path: Path, clock: FakeClock) -> None:
    service = Service(tmp_path, clock, binding="post")
    begun = await service.begin()
    assert isinstance(begun.away, PostedForm)
    assert begun.away.state_name == "RelayState"
    assert dict(begun.away.fields)["RelayState"]
    check_signature(begun.message, service.key)


async def test_a_key_on_a_curve_signs_both_ways(tmp_path: Path, clock: FakeClock) -> None:
    key = signer("gateway-ec", "ec")
    service = Service(tmp_path, clock, key=key, binding="post")
    check_signature((await service.begin()).message, key)
    begun = await Service(tmp_path, clock, key=key).begin()
    signed, _, signature = urlsplit(begun.away.url).query.rpartition("&Signature=")
    assert isinstance(key.key, ec.EllipticCurvePrivateKey)
    value = base64.b64decode(parse_qs(f"Signature={signature}")["Signature"][0])
    key.key.public_key().verify(value, signed.encode(), ec.ECDSA(hashes.SHA256()))


async def test_what_a_step_up_needs_is_asked_for(service: Service) -> None:
    required = RequiredAuthentication(acr_values=(MFA,), max_age=timedelta(minutes=5))
    begun = await service.begin(required)
    assert begun.message.get("ForceAuthn") == "true"
    classes = begun.message.findall("samlp:RequestedAuthnContext/saml:AuthnContextClassRef", NS)
    assert [each.text for each in classes] == [MFA]
    strong = service.idp.signed_response(begun.asked, context=MFA)
    assert dict((await service.finish(begun, strong)).user.extra)[ACR] == (MFA,)
    with pytest.raises(LoginRefused, match="not in the way that is required") as refusal:
        await service.finish(begun, service.idp.signed_response(begun.asked))
    assert PASSWORD_TRANSPORT in str(refusal.value.cause)


async def test_an_identity_system_that_wants_signed_requests_gets_none_without_a_signature(
    tmp_path: Path, clock: FakeClock
) -> None:
    metadata = IdentitySystem().metadata()
    metadata[0].set("WantAuthnRequestsSigned", "true")
    service = Service(tmp_path, clock, metadata=metadata, keyFile=None, certificateFile=None)
    with pytest.raises(ProviderError, match="cannot begin"):
        await service.begin()
    assert (await Service(tmp_path, clock, metadata=metadata).begin()).away


# --- the browser returns ---


async def test_a_response_gives_a_user_with_groups(service: Service, clock: FakeClock) -> None:
    """S1, S10."""
    begun = await service.begin()
    attributes = {"groups": ["developers", "drinkers"], "mail": ["alice@example.com"]}
    response = service.idp.signed_response(begun.asked, "alice", attributes=attributes)
    identified = await service.finish(begun, response)
    at = f"{clock.now() - timedelta(seconds=10):%Y-%m-%dT%H:%M:%SZ}"
    extra = ((ACR, (PASSWORD_TRANSPORT,)), (AUTH_TIME, (at,)))
    assert identified.user == UserInfo("alice", groups=("developers", "drinkers"), extra=extra)
    assert identified.subject == "alice"
    assert "session-1" in identified.session_id
    statement = response.find("saml:Assertion/saml:AuthnStatement", NS)
    assert identified.session_until == datetime.fromisoformat(statement.get("SessionNotOnOrAfter"))
    # Once, for as long as anybody would accept it.
    assert identified.token_id == response.find("saml:Assertion", NS).get("ID")
    assert identified.once_until is not None
    assert identified.once_until >= clock.now() + timedelta(minutes=5)


async def test_it_may_be_signed_and_encrypted_in_all_the_usual_ways(
    tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests
) -> None:
    for kind in ["rsa", "ec"]:
        for signed in ["assertion", "response", "both"]:
            for encrypted in [False, True]:
                with subtests.test(kind=kind, signed=signed, encrypted=encrypted):
                    tmp_path = tmp_path_factory.mktemp("case")
                    clock = FakeClock()
                    idp = IdentitySystem(name=f"idp-{kind}", kind=kind)
                    service = Service(tmp_path, clock, idp)
                    begun = await service.begin()
                    assertion = idp.assertion(begun.asked)
                    if signed != "response":
                        assertion = idp.sign(assertion)
                    if encrypted:
                        assertion = encrypt(assertion, service.key.certificate_pem)
                    response = idp.response(begun.asked, assertion)
                    if signed != "assertion":
                        response = idp.sign(response)
                    assert (await service.finish(begun, response)).user.username == "alice"


@pytest.mark.parametrize(
    ("method", "digest"),
    [
        (xmlsec.Transform.RSA_SHA384, xmlsec.Transform.SHA384),
        (xmlsec.Transform.RSA_SHA512, xmlsec.Transform.SHA512),
        (xmlsec.Transform.RSA_SHA256, xmlsec.Transform.SHA512),
    ],
)
async def test_stronger_signatures_are_accepted(service: Service, method: Any, digest: Any) -> None:
    begun = await service.begin()
    assertion = sign(service.idp.assertion(begun.asked), service.idp.signer, method=method, digest=digest)
    assert await service.finish(begun, service.idp.response(begun.asked, assertion))


async def test_only_the_algorithms_of_the_setting_are_accepted(tmp_path: Path, clock: FakeClock) -> None:
    service = Service(tmp_path, clock, algorithms=["rsa-sha512"])
    begun = await service.begin()
    await refused(service, begun, service.idp.signed_response(begun.asked), "algorithm is not accepted")


async def test_what_must_be_signed_is_a_setting(tmp_path: Path, clock: FakeClock) -> None:
    idp = IdentitySystem()
    for setting, cause in (("response", "the response is not signed"), ("assertion", "the assertion is not signed")):
        service = Service(tmp_path, clock, idp, requireSigned=setting)
        begun = await service.begin()
        only_assertion = idp.signed_response(begun.asked)
        only_response = idp.sign(idp.response(begun.asked, idp.assertion(begun.asked)))
        good, bad = (only_response, only_assertion) if setting == "response" else (only_assertion, only_response)
        assert await service.finish(begun, good)
        await refused(service, begun, bad, cause)


async def test_encryption_can_be_required(tmp_path: Path, clock: FakeClock) -> None:
    service = Service(tmp_path, clock, encryption={"required": True})
    begun = await service.begin()
    plain = service.idp.sign(service.idp.assertion(begun.asked))
    await refused(service, begun, service.idp.response(begun.asked, plain), "is not encrypted")
    wrapped = encrypt(plain, service.key.certificate_pem)
    assert await service.finish(begun, service.idp.response(begun.asked, wrapped))


async def test_what_is_encrypted_may_rely_on_the_namespaces_around_it(service: Service) -> None:
    begun = await service.begin()
    signed = service.idp.sign(service.idp.assertion(begun.asked))
    wrapped = encrypt(signed, service.key.certificate_pem, self_contained=False)
    assert await service.finish(begun, service.idp.response(begun.asked, wrapped))


async def test_cbc_is_a_choice_of_the_operator_and_its_failures_look_alike(tmp_path: Path, clock: FakeClock) -> None:
    service = Service(tmp_path, clock, encryption={"cbc": True})
    begun = await service.begin()
    signed = service.idp.sign(service.idp.assertion(begun.asked))
    wrapped = encrypt(signed, service.key.certificate_pem, data=xmlsec.Transform.AES256)
    assert await service.finish(begun, service.idp.response(begun.asked, wrapped))
    value = wrapped.find("xenc:EncryptedData/xenc:CipherData/xenc:CipherValue", NS)
    whole = base64.b64decode(value.text)
    causes = set()
    for changed in (
        whole[:-1] + bytes([whole[-1] ^ 1]),
        whole[:-16],
        whole[:-1],
        whole[:16],
        whole[:20] + bytes([whole[20] ^ 1]) + whole[21:],
        b"",
    ):
        value.text = base64.b64encode(changed).decode()
        with pytest.raises(LoginRefused) as refusal:
            await service.finish(begun, service.idp.response(begun.asked, wrapped))
        causes.add((refusal.value.summary, refusal.value.cause))
    assert len(causes) == 1


async def test_clocks_may_differ_a_little(tmp_path: Path, clock: FakeClock) -> None:
    service = Service(tmp_path, clock, clockSkew="1m")
    begun = await service.begin()
    response = text(service.idp.signed_response(begun.asked, not_before=begun.asked.at(seconds=61)))
    await refused(service, begun, response, "not valid before", says="came too late")
    clock.advance(seconds=1)
    assert await service.finish(begun, response)
    clock.advance(seconds=-1)
    clock.advance(minutes=5, seconds=59)
    assert await service.finish(begun, response)
    clock.advance(seconds=1)
    await refused(service, begun, response, "has expired", says="came too late")


async def test_a_response_from_before_is_refused_later(service: Service, clock: FakeClock) -> None:
    """Replayed into another sign-in, it does not answer that one's request."""
    begun = await service.begin()
    response = text(service.idp.signed_response(begun.asked))
    assert await service.finish(begun, response)
    await refused(service, await service.begin(), response, "InResponseTo")


async def test_a_response_that_nobody_asked_for_is_refused(service: Service) -> None:
    form = (("SAMLResponse", base64.b64encode(b"<x/>").decode()),)
    with pytest.raises(LoginRefused, match="did not start in this browser"):
        await service.provider.handle_provider(LoginRequest("POST", "/auth/provider", form=form, callback_url=CALLBACK))


async def test_the_response_must_come_once_and_by_post(service: Service) -> None:
    begun = await service.begin()
    value = base64.b64encode(text(service.idp.signed_response(begun.asked))).decode()
    fields = ("SAMLResponse", value)
    for method, form, query in (
        ("GET", (), (fields,)),
        ("POST", (), (fields,)),
        ("POST", (fields, fields), ()),
        ("POST", (("SAMLResponse", "not base64!"),), ()),
    ):
        request = LoginRequest(
            method, "/auth/provider", form=form, query=query, callback_url=CALLBACK, remembered=begun.away.remember
        )
        with pytest.raises(LoginRefused):
            await service.provider.handle_provider(request)


async def test_a_person_reads_a_plain_sentence_and_the_log_the_detail(service: Service) -> None:
    begun = await service.begin()
    declined = service.idp.response(begun.asked, status="urn:oasis:names:tc:SAML:2.0:status:NoAuthnContext")
    await refused(service, begun, declined, "NoAuthnContext", says="did not sign you in")
    foreign = service.idp.signed_response(begun.asked, audience="https://other.example.com")
    refusal = await refused(service, begun, foreign, "https://other.example.com", says="is invalid")
    assert "other.example.com" not in refusal.summary
    assert "ask the administrator" in refusal.summary


async def test_no_error_repeats_the_assertion(service: Service) -> None:
    begun = await service.begin()
    response = service.idp.sign(service.idp.response(begun.asked), signer("stranger"))
    response.append(service.idp.assertion(begun.asked, "canary-user", {"groups": ["canary-group"]}))
    refusal = await refused(service, begun, response, "")
    shown = f"{refusal}{refusal!r}{refusal.cause}{''.join(traceback.format_exception(refusal))}"
    assert "canary" not in shown


# --- who it is ---


async def test_attributes_say_who_it_is(tmp_path: Path, clock: FakeClock) -> None:
    names = {"username": "mail", "uid": "employee", "groups": "memberOf", "extra": {"example.com/team": "team"}}
    service = Service(tmp_path, clock, attributes=names)
    begun = await service.begin()
    attributes = {"mail": ["a@example.com"], "employee": ["7"], "memberOf": ["dev", "ops", "dev"], "team": ["x", "y"]}
    user = (await service.finish(begun, service.idp.signed_response(begun.asked, attributes=attributes))).user
    assert (user.username, user.uid, user.groups) == ("a@example.com", "7", ("dev", "ops"))
    assert dict(user.extra)["example.com/team"] == ("x", "y")
    cases: tuple[dict[str, list[str]], ...] = (
        {},
        {"mail": []},
        {"mail": ["a@b", "b@b"]},
        {"mail": [" a"]},
        {"mail": [""]},
    )
    for wrong in cases:
        response = service.idp.signed_response(begun.asked, attributes=wrong)
        with pytest.raises(LoginRefused, match="no usable user name"):
            await service.finish(begun, response)


async def test_a_value_that_is_not_a_text_is_not_used(tmp_path: Path, clock: FakeClock) -> None:
    service = Service(tmp_path, clock, attributes={"groups": "groups"})
    begun = await service.begin()
    odd = service.idp.signed_response(begun.asked, attributes={"groups": ["<b>admins</b>"]})
    with pytest.raises(ProviderError, match="cannot be used"):
        await service.finish(begun, odd)


async def test_a_name_for_one_sign_in_is_no_user_name(service: Service) -> None:
    begun = await service.begin()
    transient = "urn:oasis:names:tc:SAML:2.0:nameid-format:transient"
    with pytest.raises(LoginRefused, match="no usable user name"):
        await service.finish(begun, service.idp.signed_response(begun.asked, "_f3a9", format=transient))


# --- keys change ---


async def test_two_keys_are_good_while_the_identity_system_changes_them(tmp_path: Path, clock: FakeClock) -> None:
    idp = IdentitySystem()
    service = Service(tmp_path, clock, idp, metadata=idp.metadata(signer("idp-old"), idp.signer))
    begun = await service.begin()
    for key in (idp.signer, signer("idp-old")):
        assert await service.finish(begun, idp.response(begun.asked, idp.sign(idp.assertion(begun.asked), key)))


async def test_a_file_with_new_metadata_is_taken_up(service: Service, clock: FakeClock) -> None:
    begun = await service.begin()
    newer = service.idp.sign(service.idp.assertion(begun.asked), signer("idp-new"))
    response = text(service.idp.response(begun.asked, newer))
    await refused(service, begun, response, "fits no key")
    service.metadata_file.write_bytes(text(service.idp.metadata(signer("idp-new"))))
    clock.advance(seconds=3)
    assert await service.finish(begun, response)


# --- about ourselves ---


async def test_our_metadata_says_where_and_with_which_key(service: Service) -> None:
    request = LoginRequest("GET", "/auth/acme/metadata", callback_url=CALLBACK)
    published = await service.provider.publish_metadata(request)
    assert published.media_type == "application/samlmetadata+xml"
    entity = etree.fromstring(published.content)
    assert entity.get("entityID") == ENTITY
    assert entity.find(".//md:AssertionConsumerService", NS).get("Location") == CALLBACK
    assert {each.get("Location") for each in entity.findall(".//md:SingleLogoutService", NS)} == {LOGOUT}
    assert [each.get("use") for each in entity.findall(".//md:KeyDescriptor", NS)] == ["signing", "encryption"]
    certificates = {each.text for each in entity.findall(".//ds:X509Certificate", NS)}
    assert certificates == {service.key.certificate_text}
    assert b"PRIVATE" not in published.content


async def test_renewals_follow_the_setting(tmp_path: Path, clock: FakeClock) -> None:
    assert not hasattr(Service(tmp_path, clock).provider, "revalidate")
    service = Service(tmp_path, clock, renewal="signIn")
    with pytest.raises(LoginRefused, match="sign in again"):
        await service.provider.revalidate(UserInfo("alice"))


# --- settings ---


async def test_a_wrong_setting_stops_the_start(
    tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests
) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"metadataFile": None}, "either metadataFile or metadataURL"),
        ({"metadataURL": "https://idp.example.com/metadata"}, "not both"),
        ({"metadataFile": None, "metadataURL": "http://idp.example.com/metadata"}, "not a https URL"),
        ({"metadataFile": "absent.xml"}, "No such file"),
        ({"metadataFile": "saml.crt"}, "not well-formed"),
        ({"keyFile": None}, "set together"),
        ({"keyFile": "saml.crt"}, "not a private key"),
        ({"certificateFile": "other.crt"}, "not that of the key"),
        ({"certificateFile": "saml.key"}, "not a certificate"),
        ({"keyFile": None, "certificateFile": None, "encryption": {"required": True}}, "need a key"),
        ({"algorithms": ["rsa-sha1"]}, "unknown or unsafe algorithm"),
        ({"requireSigned": "nothing"}, "unknown value"),
        ({"clockSkew": "1h"}, "between 0s and 5m"),
        ({"metadataCertificateFile": "other.crt"}, "Signature"),
        ({"identitySystem": "https://other.example.com"}, "it is not about"),
        ({"sso": True}, "unknown field"),
    ]
    for changes, problem in cases:
        with subtests.test(changes=changes, problem=problem):
            tmp_path = tmp_path_factory.mktemp("case")
            clock = FakeClock()
            (tmp_path / "other.crt").write_bytes(signer("stranger").certificate_pem)
            with pytest.raises(ConfigurationError, match=problem):
                Service(tmp_path, clock, **changes)


# --- handles ---


async def refused(
    service: Service, begun: Any, response: etree._Element | bytes, cause: str, *, says: str = "is invalid"
) -> LoginRefused:
    with pytest.raises(LoginRefused, match=says) as refusal:
        await service.finish(begun, response)
    assert cause in str(refusal.value.cause)
    return refusal.value


def check_signature(message: etree._Element, by: Signer) -> None:
    """As libxmlsec1 judges it."""
    xmlsec.tree.add_ids(message, ["ID"])
    signature: Any = xmlsec.tree.find_node(message, xmlsec.constants.NodeSignature)
    assert signature.getparent().tag == message.tag
    assert message[0].tag == f"{{{SAML}}}Issuer", "the signature comes after the issuer"
    context = xmlsec.SignatureContext()
    context.key = xmlsec.Key.from_memory(by.certificate_pem, xmlsec.KeyFormat.CERT_PEM)
    context.verify(signature)
