"""Assertions that the identity system really signed, but not for this sign-in: replayed, expired, for somebody else."""

from __future__ import annotations

from typing import Any

from lxml import etree

from tests.support.saml.attacks.scene import VICTIM, Corpus, Scene, find
from tests.support.saml.documents import NS, SAML, sign

CONTENT = Corpus()


def _signed(scene: Scene, **changes: Any) -> etree._Element:
    """About the victim, who signed in elsewhere, or some time ago."""
    return scene.response(scene.idp.sign(scene.idp.assertion(scene.asked, VICTIM, **changes)))


for _name, _changes in {
    "for another service": {"audience": "https://other.example.com/metadata"},
    "for a service whose name begins like ours": {"audience": "https://gateway.example.com/auth/acme/metadata.evil"},
    "sent to another service": {"recipient": "https://other.example.com/acs"},
    "sent to no service": {"recipient": ""},
    "the answer to another request": {"in_response_to": "_another-request"},
    "the answer to no request": {"in_response_to": ""},
    "of another issuer": {"issuer": "https://other-idp.example.com"},
    "to be confirmed by a key": {"method": "urn:oasis:names:tc:SAML:2.0:cm:holder-of-key"},
    "to be vouched for": {"method": "urn:oasis:names:tc:SAML:2.0:cm:sender-vouches"},
    "of SAML 1.1": {"version": "1.1"},
}.items():
    CONTENT.named(f"an assertion {_name}", lambda scene, changes=_changes: _signed(scene, **changes))  # type: ignore[misc]

for _name, _times in {
    "expired conditions": {"not_on_or_after": {"minutes": -10}},
    "conditions that begin later": {"not_before": {"minutes": 10}},
    "an expired confirmation": {"confirmed_until": {"minutes": -10}},
    "a sign-in in the future": {"instant": {"hours": 1}},
    "a session that has ended": {"session_until": {"minutes": -1}},
}.items():
    CONTENT.named(
        f"an assertion with {_name}",
        lambda scene, times=_times: _signed(  # type: ignore[misc]
            scene, **{key: scene.asked.at(**delta) for key, delta in times.items()}
        ),
    )


def _without(scene: Scene, path: str) -> etree._Element:
    assertion = scene.idp.assertion(scene.asked, VICTIM)
    for each in assertion.findall(path, NS):
        each.getparent().remove(each)
    return scene.response(sign(assertion, scene.idp.signer))


for _path in (
    "saml:Issuer",
    "saml:Subject",
    "saml:Subject/saml:NameID",
    "saml:Subject/saml:SubjectConfirmation",
    "saml:Subject/saml:SubjectConfirmation/saml:SubjectConfirmationData",
    "saml:Conditions",
    "saml:Conditions/saml:AudienceRestriction",
    "saml:Conditions/saml:AudienceRestriction/saml:Audience",
    "saml:AuthnStatement",
):
    CONTENT.named(
        f"an assertion without {_path.rpartition(':')[2]}",
        lambda scene, path=_path: _without(scene, path),  # type: ignore[misc]
    )


def _changed(scene: Scene, path: str, key: str, value: str | None) -> etree._Element:
    assertion = scene.idp.assertion(scene.asked, VICTIM)
    changed = find(assertion, path)
    if value is None:
        del changed.attrib[key]
    else:
        changed.set(key, value)
    return scene.response(sign(assertion, scene.idp.signer))


_DATA = "saml:Subject/saml:SubjectConfirmation/saml:SubjectConfirmationData"
for _key in ("Recipient", "NotOnOrAfter", "InResponseTo"):
    CONTENT.named(
        f"a confirmation without {_key}",
        lambda scene, key=_key: _changed(scene, _DATA, key, None),  # type: ignore[misc]
    )
CONTENT.named(
    "a time that cannot be read",
    lambda scene: _changed(scene, "saml:Conditions", "NotOnOrAfter", "9999-99-99T00:00:00Z"),
)
CONTENT.named(
    "a time without a zone", lambda scene: _changed(scene, "saml:Conditions", "NotOnOrAfter", "2999-01-01T00:00:00")
)


@CONTENT.add
def one_of_two_audience_restrictions_is_for_others(scene: Scene) -> etree._Element:
    assertion = scene.idp.assertion(scene.asked, VICTIM)
    other = etree.fromstring(
        f'<saml:AudienceRestriction xmlns:saml="{SAML}"><saml:Audience>https://other.example.com</saml:Audience>'
        "</saml:AudienceRestriction>"
    )
    find(assertion, "saml:Conditions").append(other)
    return scene.response(sign(assertion, scene.idp.signer))


@CONTENT.add
def unknown_condition(scene: Scene) -> etree._Element:
    assertion = scene.idp.assertion(scene.asked, VICTIM)
    condition = '<x:OnlyOnMondays xmlns:x="urn:example"/>'
    find(assertion, "saml:Conditions").append(etree.fromstring(condition))
    return scene.response(sign(assertion, scene.idp.signer))


@CONTENT.add
def two_names(scene: Scene) -> etree._Element:
    assertion = scene.idp.assertion(scene.asked, "mallory")
    subject = find(assertion, "saml:Subject")
    subject.insert(0, etree.fromstring(f'<saml:NameID xmlns:saml="{SAML}">{VICTIM}</saml:NameID>'))
    return scene.response(sign(assertion, scene.idp.signer))


# --- what the response itself says ---


def _response(scene: Scene, **attributes: str) -> etree._Element:
    signed = scene.idp.sign(scene.idp.assertion(scene.asked, VICTIM))
    return scene.idp.response(scene.asked, signed, **attributes)


CONTENT.named(
    "the sign-in failed", lambda scene: _response(scene, status="urn:oasis:names:tc:SAML:2.0:status:Responder")
)
CONTENT.named("a status of no kind", lambda scene: _response(scene, status=""))
CONTENT.named(
    "a response sent to another service", lambda scene: _response(scene, Destination="https://other.example.com/acs")
)
CONTENT.named("a response to another request", lambda scene: _response(scene, InResponseTo="_another-request"))
CONTENT.named("a response that nobody asked for", lambda scene: _response(scene, InResponseTo=""))
CONTENT.named("a response of another issuer", lambda scene: _response(scene, issuer="https://other-idp.example.com"))
CONTENT.named("a response of SAML 1.1", lambda scene: _response(scene, Version="1.1"))


@CONTENT.add
def no_assertion(scene: Scene) -> etree._Element:
    return scene.idp.sign(scene.response())


@CONTENT.add
def two_signed_assertions(scene: Scene) -> etree._Element:
    victims = scene.idp.sign(scene.idp.assertion(scene.asked, VICTIM, audience="https://other.example.com"))
    return scene.response(victims, scene.assertion())
