"""The settings of everything that verifies JWTs: the accepted algorithms and the clock skew."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from ostiary.core.yaml import ConfigSection, Json
from ostiary_gateway.settings.kinds import Duration, SettingKind

# Imports no cryptography, so that settings can be read without it.


@dataclass(frozen=True, slots=True)
class Algorithm:
    """The key type and curve that an algorithm requires, and the hash of its ``at_hash``."""

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

CLOCK_SKEW = timedelta(seconds=30)
MOST_SKEW = timedelta(minutes=5)


@dataclass(frozen=True)
class Algorithms(SettingKind[frozenset[str]]):
    """A set of signature algorithms, by their JWA names."""

    among: tuple[str, ...] = tuple(ALGORITHMS)

    @property
    def label(self) -> str:
        return "list"

    def read(self, fields: ConfigSection, key: str, directory: Path) -> frozenset[str] | None:
        names = fields.strings(key)
        for name in names:
            if name not in self.among:
                fields.problem("unknown or unsafe algorithm", key, f"there are: {', '.join(self.among)}")
        return frozenset(names) & frozenset(self.among) or None

    def schema(self) -> dict[str, Json]:
        return {"type": "array", "items": {"enum": list(self.among)}}

    def blank(self) -> frozenset[str]:
        return frozenset(self.among)


@dataclass(frozen=True)
class ClockSkew(Duration):
    def read(self, fields: ConfigSection, key: str, directory: Path) -> timedelta | None:
        skew = fields.optional_duration(key)
        if skew is not None and not timedelta(0) <= skew <= MOST_SKEW:
            fields.problem("it must be between 0s and 5m", key)
        return skew
