"""Who presents a token, and the tokens that are remembered. Bounded in bytes: one user's evict only that user's."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ostiary.backend.authenticate.revoked_tokens import RevokedTokens
from ostiary.core.caching.bounded import BoundedByOwner
from ostiary.core.caching.cache import size_of
from ostiary.core.delegation import Delegation, decode
from ostiary.model import UserInfo
from ostiary.wire.ostiary_dev.token_introspection import TokenDescription

SIZE = 32 * 1024 * 1024
SIZE_PER_USER = 1024 * 1024
# The objects themselves, without the text in them.
_FIXED_BYTES = 1500


@dataclass(frozen=True, slots=True)
class Bearer:
    """The user of a token, and what the token may be used for; `delegation` is None for all that its user may do."""

    user: UserInfo
    delegation: Delegation | None = None


class RememberedToken:
    """A token that was found good. `is_revoked` tells whoever still holds it that it is not any more."""

    __slots__ = ("bearer", "description", "digest", "expires_at", "is_revoked")

    def __init__(self, token_digest: bytes, description: TokenDescription) -> None:
        self.digest = token_digest
        self.description = description
        delegation = decode(description.delegation) if description.delegation else None
        self.bearer = Bearer(description.user, delegation)
        self.expires_at: datetime = description.expires_at
        self.is_revoked = False

    @property
    def size(self) -> int:
        user = self.description.user
        texts = (user.username, user.uid, user.groups, user.extra, self.description.delegation)
        return _FIXED_BYTES + 2 * size_of(texts)


class RememberedTokens:
    def __init__(self, *, size: int = SIZE, size_per_user: int = SIZE_PER_USER) -> None:
        self.by_digest: BoundedByOwner[bytes, RememberedToken] = BoundedByOwner(size, size_per_user)

    def remember(self, token: RememberedToken) -> None:
        self.by_digest.keep(token.digest, token, owner=token.bearer.user.username, size=token.size)

    def forget(self, token: RememberedToken) -> None:
        self.by_digest.forget(token.digest)

    def forget_revoked(self, revoked: RevokedTokens, everything: bool) -> None:
        """Forget those that *revoked* concern; *everything* if nobody can say which.

        Whoever is asked about again is not refused meanwhile: only what the list names is revoked.
        """
        for token in list(self.by_digest.values()):
            if everything or revoked.concern(token.description):
                token.is_revoked = revoked.name(token.description)
                self.forget(token)
