"""Two other readers of SAML judge the same responses. Where they differ from ours, the table says why.

No difference is one in which ours believes more than it should: wherever a judge sees somebody, ours sees the same
person or nobody.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest
from lxml import etree

from tests.support.saml import judges
from tests.support.saml.attacks import ATTACKS, MALLORY, VICTIM, Scene
from tests.support.saml.documents import Signer, encrypt, text

pytestmark = pytest.mark.needs("xmlsec1")


class Difference(NamedTuple):
    """What python3-saml and pysaml2 see, and why ours sees something else."""

    python3_saml: str | None
    pysaml2: str | None
    why: str


_NOT_READ = "what is signed is untouched, and they do not look at the rest; we refuse a document that is not one answer"
_SHA1 = "the identity system itself has signed with SHA-1, which pysaml2 believes unless it is told otherwise"
_OPTIONAL = "the web browser profile requires it (SAML Profiles 4.1.4.2), and pysaml2 reads an assertion without it"
_WEAK = "the assertion inside is good, and they open whatever libxmlsec1 can open; ours leaves no oracle"

DIFFERENCES: dict[str, Difference] = {
    "xsw7 forged assertion in extensions": Difference(None, MALLORY, _NOT_READ),
    "forged assertion in the key info of the assertion": Difference(None, MALLORY, _NOT_READ),
    "forged name inside the signature": Difference(MALLORY, None, _NOT_READ),
    "forged assertion in the key info of the response": Difference(
        None, MALLORY, "python3-saml counts assertions before it looks at the signature, ours afterwards"
    ),
    "two references": Difference(
        MALLORY, None, "both references are to the assertion, which is good; SAML Core 5.4.2 allows one"
    ),
    "signed with sha1": Difference(None, VICTIM, _SHA1),
    "digested with sha1": Difference(None, VICTIM, _SHA1),
    "unsigned attributes of the response changed": Difference(
        MALLORY, None, "pysaml2 compares the time of the response, which nobody signed; ours that of the assertion"
    ),
    "processing instruction in the name": Difference(
        MALLORY, None, "python3-saml removes it after the signature was verified; it could as well split the name"
    ),
    "stylesheet before the response": Difference(MALLORY, MALLORY, _NOT_READ),
    "document type": Difference(None, MALLORY, "pysaml2 lets a document type pass as long as it declares no entities"),
    "document type from elsewhere": Difference(None, MALLORY, "the same; it is not fetched"),
    "utf 16": Difference(MALLORY, None, "ours and pysaml2 read UTF-8 alone"),
    "very large": Difference(MALLORY, MALLORY, "they have no limit"),
    "an assertion sent to another service": Difference(
        None, VICTIM, "pysaml2 compares the Recipient only in a response without InResponseTo"
    ),
    "an assertion to be vouched for": Difference(
        None, VICTIM, "pysaml2 takes sender-vouches for a bearer confirmation that needs no data"
    ),
    "an assertion of SAML 1.1": Difference(None, VICTIM, "pysaml2 compares the version of the response only"),
    "an assertion with a sign-in in the future": Difference(
        None, VICTIM, "pysaml2 does not compare AuthnInstant, by which step-up rules go here"
    ),
    "an assertion without Conditions": Difference(None, VICTIM, _OPTIONAL),
    "an assertion without AudienceRestriction": Difference(None, VICTIM, _OPTIONAL),
    "a confirmation without NotOnOrAfter": Difference(None, VICTIM, _OPTIONAL),
    "a time without a zone": Difference(None, VICTIM, "SAML Core 1.3.3 wants UTC; pysaml2 takes it for granted"),
    "one of two audience restrictions is for others": Difference(
        None, VICTIM, "each restriction must be met (SAML Core 2.5.1.4); pysaml2 is content with one of them"
    ),
    "two names": Difference(None, "mallory", "pysaml2 takes the last name of several; the schema allows one"),
    "a response of another issuer": Difference(
        None, VICTIM, "nobody signed the response; pysaml2 compares the issuer of the assertion only"
    ),
    "key wrapped with pkcs1 v15": Difference(MALLORY, MALLORY, _WEAK),
    "cbc that nobody allowed": Difference(MALLORY, MALLORY, _WEAK),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("judges")


def test_the_judges_agree_or_the_difference_is_explained(subtests: pytest.Subtests, folder: Path) -> None:
    """S10."""
    for attack in ATTACKS:
        with subtests.test(attack.name):
            scene = Scene.begin(datetime.now(UTC))
            document = attack.build(scene)
            ours = MALLORY if attack.sees_mallory else None
            expected = DIFFERENCES.get(attack.name, Difference(ours, ours, ""))
            assert judges.python3_saml(scene, document, folder) == expected.python3_saml
            assert judges.pysaml2(scene, document, folder) == expected.pysaml2


def test_the_table_has_a_reason_for_each_and_no_other_names() -> None:
    assert DIFFERENCES.keys() <= {attack.name for attack in ATTACKS}
    assert all(difference.why for difference in DIFFERENCES.values())
    ours = {attack.name: MALLORY if attack.sees_mallory else None for attack in ATTACKS}
    assert all((row.python3_saml, row.pysaml2) != (ours[name], ours[name]) for name, row in DIFFERENCES.items())


def test_the_judges_accept_what_we_accept(subtests: pytest.Subtests, folder: Path) -> None:
    for signed in ["assertion", "response", "both"]:
        for encrypted in [False, True]:
            with subtests.test(signed=signed, encrypted=encrypted):
                scene = Scene.begin(datetime.now(UTC))
                document = text(honest(scene, scene.gateway, signed, encrypted))
                assert judges.python3_saml(scene, document, folder) == MALLORY
                assert judges.pysaml2(scene, document, folder) == MALLORY


def honest(scene: Scene, gateway: Signer, signed: str, encrypted: bool) -> etree._Element:
    # python3-saml insists on attributes.
    assertion = scene.idp.assertion(scene.asked, MALLORY, {"groups": ["users"]})
    if signed != "response":
        assertion = scene.idp.sign(assertion)
    response = scene.response(encrypt(assertion, gateway.certificate_pem) if encrypted else assertion)
    return response if signed == "assertion" else scene.idp.sign(response)
