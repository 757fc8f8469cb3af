"""SPIFFE IDs: ``spiffe://trust-domain/path``."""

from __future__ import annotations

import re
from dataclasses import dataclass

SCHEME = "spiffe://"
LONGEST_ID = 2048
TRUST_DOMAIN = r"[a-z0-9._-]{1,255}"
_DOMAIN = re.compile(TRUST_DOMAIN)
_SEGMENT = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class SpiffeId:
    trust_domain: str
    path: str

    def __str__(self) -> str:
        return f"{SCHEME}{self.trust_domain}{self.path}"


def parse_spiffe_id(text: object) -> SpiffeId | None:
    """Return the SPIFFE ID of a workload in *text*. None if it is invalid, or the ID of a trust domain."""
    if not isinstance(text, str) or not text.startswith(SCHEME) or len(text) > LONGEST_ID:
        return None
    domain, slash, path = text.removeprefix(SCHEME).partition("/")
    segments = path.split("/")
    if not slash or not _DOMAIN.fullmatch(domain) or any(segment in (".", "..") for segment in segments):
        return None
    if not all(_SEGMENT.fullmatch(segment) for segment in segments):
        return None
    return SpiffeId(domain, f"/{path}")
