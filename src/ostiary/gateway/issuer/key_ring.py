"""Which key signs at a moment, and which keys are published then. Pure; called by the key sources and the issuer.

    published ------------------------------------------------------------->
               (ahead)  signs ---------------->  (its last JWT may still live)
    made       signs_from                      signs_until        published_until

A key is published before it signs, so that whoever keeps a copy of the key set knows it in time, and until the last JWT
that it signed has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # Settings are read with what is here, and most gateways sign nothing.
    from ostiary.gateway.issuer.signing_key import SigningKey

ALWAYS = datetime.min.replace(tzinfo=UTC)
NEVER = datetime.max.replace(tzinfo=UTC)
# How far the clock of a verifier may be behind ours.
CLOCK_SKEW = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class RingKey:
    """A key and its times. `private` is None if we cannot open it: then it neither signs nor is published here.

    A key that we cannot open may have been put into the store by somebody who cannot seal, and wants to be trusted.
    """

    id: str
    jwk: Mapping[str, str]
    private: SigningKey | None
    signs_from: datetime = ALWAYS
    signs_until: datetime = NEVER
    published_until: datetime = NEVER
    # The private half as it is kept in the store.
    sealed: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class KeyRing:
    keys: tuple[RingKey, ...] = ()

    def signing(self, now: datetime) -> RingKey | None:
        """The key that signs: of several whose time it is, the one whose time began last."""
        due = [key for key in self.keys if key.signs_from <= now < key.signs_until]
        return max(due, key=lambda key: key.signs_from, default=None)

    def published_keys(self, now: datetime) -> tuple[RingKey, ...]:
        return tuple(key for key in self.keys if key.private is not None and now < key.published_until)

    def jwks(self, now: datetime) -> dict[str, object]:
        return {"keys": [dict(key.jwk) for key in self.published_keys(now)]}
