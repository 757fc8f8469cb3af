"""Responses that an attacker sends: Mallory has an account at the identity system, and wants to be somebody else.

    for attack in ATTACKS:
        attack.build(Scene.begin(now))     # the bytes of a response

Each is made from a response that the identity system really signed for Mallory, or from none. A reader may refuse it,
or see Mallory in it; a reader that sees `VICTIM` was fooled.
"""

from __future__ import annotations

from tests.support.saml.attacks.content import CONTENT
from tests.support.saml.attacks.documents import DOCUMENTS
from tests.support.saml.attacks.encrypted import ENCRYPTED
from tests.support.saml.attacks.scene import MALLORY, VICTIM, Attack, Scene
from tests.support.saml.attacks.signing import SIGNING
from tests.support.saml.attacks.wrapping import WRAPPING

ATTACKS: tuple[Attack, ...] = (*WRAPPING, *SIGNING, *DOCUMENTS, *CONTENT, *ENCRYPTED)

__all__ = ["ATTACKS", "MALLORY", "VICTIM", "Attack", "Scene"]
