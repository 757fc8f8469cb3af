"""The signatures that are believed. Pure; the settings name them, and `keys` finds the keys that go with them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Algorithm:
    """What a key must be to go with it, and the hash that ``at_hash`` is made with."""

    kind: str
    curve: str | None
    hash: str


ALGORITHMS: dict[str, Algorithm] = {
    **{f"{family}{bits}": Algorithm("RSA", None, f"sha{bits}") for family in ("RS", "PS") for bits in (256, 384, 512)},
    "ES256": Algorithm("EC", "P-256", "sha256"),
    "ES384": Algorithm("EC", "P-384", "sha384"),
    "ES512": Algorithm("EC", "P-521", "sha512"),
    "EdDSA": Algorithm("OKP", "Ed25519", "sha512"),
    "Ed25519": Algorithm("OKP", "Ed25519", "sha512"),
}
