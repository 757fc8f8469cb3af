"""SPIFFE: what a JWT-SVID must say, and which keys of a trust bundle are for them. Pure.

A JWT-SVID names its subject and need not name its issuer: whose keys count is a matter of the trust domain.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from ostiary.errors import LoginRefused
from ostiary.plugins.common.jwt.keys import Keys, parse_keys
from ostiary.plugins.common.spiffe_id import parse_spiffe_id
from ostiary.plugins.workload.platforms import Platform, TokenClaims, Workload
from ostiary.plugins.workload.rules import WorkloadNames

# What JWT-SVID (section 2.1) allows; and what its header may say that it is (2.3).
ALGORITHMS = frozenset(f"{family}{bits}" for family in ("RS", "ES", "PS") for bits in (256, 384, 512))
TYPES = frozenset(("jwt", "jose"))
# The trust bundle also has keys for certificates, which must not verify tokens (SPIFFE Trust Domain and Bundle, 4.2.2).
FOR_TOKENS = frozenset(("jwt-svid",))


def parse_bundle(document: object) -> Keys:
    return parse_keys(document, uses=FOR_TOKENS)


def spiffe(trust_domain: str) -> Platform:
    return Platform(
        "spiffe",
        claims=frozenset(("sub", "aud", "iss", "jti", "path")),
        types=TYPES,
        algorithms=ALGORITHMS,
        needs_rules=False,
        read=partial(_read, trust_domain),
    )


def _read(trust_domain: str, claims: Mapping[str, object]) -> Workload:
    """Raises `LoginRefused` if the subject is nobody of the trust domain."""
    identity = parse_spiffe_id(claims.get("sub"))
    if identity is None or identity.trust_domain != trust_domain:
        raise LoginRefused(
            "this token is not of the trust domain", cause="its subject is no SPIFFE ID of the trust domain"
        )
    return Workload(TokenClaims(claims, {"path": identity.path}), WorkloadNames(str(identity)))
