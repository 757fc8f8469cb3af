"""A corpus of hostile responses: nobody becomes somebody else by any of them."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from ostiary_gateway.providers.saml.assertion import Assertion
from ostiary_gateway.providers.saml.metadata import read_metadata
from ostiary_gateway.providers.saml.response import ResponseRules, SignInDeclined, read_response
from ostiary_gateway.providers.saml.settings import ALGORITHMS
from ostiary_gateway.providers.saml.validate_assertion import Expected
from ostiary_gateway.providers.saml.xml import DocumentRefused
from ostiary_gateway.testing import FakeClock
from tests.support.saml.attacks import ATTACKS, MALLORY, Scene
from tests.support.saml.documents import text
from tests.support.saml.judges import SKEW


def read(scene: Scene, document: bytes) -> Assertion:
    system = read_metadata(text(scene.idp.metadata()), algorithms=ALGORITHMS)
    asked = scene.asked
    expected = Expected(system.entity_id, asked.audience, asked.acs, asked.request_id, asked.now, SKEW)
    key = scene.gateway.key
    assert isinstance(key, rsa.RSAPrivateKey)
    return read_response(document, system, expected, ResponseRules(tuple(ALGORITHMS)), key)


@pytest.fixture
def scene(clock: FakeClock) -> Scene:
    return Scene.begin(clock.now())


def test_what_the_corpus_is_made_from_is_accepted(scene: Scene) -> None:
    """Else the attacks would be refused for another reason than they should."""
    for honest in (scene.honest(), scene.signed_response(), scene.idp.sign(scene.honest())):
        assert read(scene, text(honest)).name_id.value == MALLORY


def test_nobody_becomes_somebody_else(subtests: pytest.Subtests, clock: FakeClock) -> None:
    """S1, S10, S25."""
    for attack in ATTACKS:
        with subtests.test(attack.name):
            scene = Scene.begin(clock.now())
            document = attack.build(scene)
            if attack.sees_mallory:
                assertion = read(scene, document)
                assert (assertion.name_id.value, assertion.attributes) == (MALLORY, {"groups": ("users",)})
            else:
                with pytest.raises((DocumentRefused, SignInDeclined)):
                    read(scene, document)


def test_there_is_no_attack_twice() -> None:
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS) >= 180
