"""Who presents a token, and the tokens that are remembered. Bounded in bytes: one user's evict only that user's."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from ostiary.core.bounded_cache import BoundedByOwner
from ostiary.core.cache import size_of
from ostiary.core.scopes import Delegation, decode
from ostiary.model import UserInfo
from ostiary_gateway.wire.revoked_credentials import RevokedCredentials, RevokedSubject
from ostiary_gateway.wire.token_introspection import TokenDescription

# Which tokens the list of revoked credentials concerns. Pure; called by the follower and by the authenticator.
#
# The same conditions that `ostiary_gateway.wire.apiserver_config` writes for a kube-apiserver, and that
# `core.tokens.ends` has.

K = TypeVar("K", bound=Hashable)


class RevokedTokens:
    """A list of a gateway, made quick to ask."""

    def __init__(self, revoked: RevokedCredentials) -> None:
        self.head = revoked.head
        self.issuer = revoked.issuer
        self._credential_ids = frozenset(revoked.credential_ids)
        self._sessions = frozenset(revoked.sessions)
        self._by_user = _group_by_key((each.username, each) for each in revoked.subjects)
        self._by_group = _group_by_key((each.group, each) for each in revoked.subjects if each.username is None)
        # Those that name neither: everything that began before.
        self._others = [each for each in revoked.subjects if each.username is None and each.group is None]
        self._issued_until = revoked.issued_until

    def concern(self, token: TokenDescription) -> bool:
        """Whether *token* must not be used any more, or must be asked about again."""
        return self.name(token) or (token.issued_at is None and self._sums_up(token))

    def name(self, token: TokenDescription) -> bool:
        """Whether *token* is on the list, and so must not be used any more."""
        if token.credential_id in self._credential_ids or token.session in self._sessions:
            return True
        if self._issued_until is not None and _was_issued_until(self._issued_until, token):
            return True
        user = token.user
        candidates = [*self._others, *self._by_user.get(user.username, ())]
        for group in user.groups:
            candidates += self._by_group.get(group, ())
        return any(_fits(subject, token) for subject in candidates)

    def _sums_up(self, token: TokenDescription) -> bool:
        """Whether a rule stands for entries that were too many, and *token* may be one of those.

        The rule goes by the time at which a JWT was issued. An opaque token has none here, but can be asked about.
        """
        of_user = self._by_user.get(token.user.username, ())
        return self._issued_until is not None or any(each.issued_until is not None for each in of_user)


def _fits(subject: RevokedSubject, token: TokenDescription) -> bool:
    return (
        (subject.group is None or subject.group in token.user.groups)
        and (subject.sequence is None or token.sequence < subject.sequence)
        and (subject.began_until is None or token.began_at <= subject.began_until)
        and (subject.issued_until is None or _was_issued_until(subject.issued_until, token))
    )


def _was_issued_until(limit: int, token: TokenDescription) -> bool:
    return token.issued_at is not None and token.issued_at <= limit


def _group_by_key(pairs: Iterable[tuple[K | None, RevokedSubject]]) -> Mapping[K, list[RevokedSubject]]:
    grouped: dict[K, list[RevokedSubject]] = {}
    for key, subject in pairs:
        if key is not None:
            grouped.setdefault(key, []).append(subject)
    return grouped


SIZE = 32 * 1024 * 1024
SIZE_PER_USER = 1024 * 1024
# The objects themselves, without the text in them.
_FIXED_BYTES = 1500


@dataclass(frozen=True, slots=True)
class Bearer:
    """The user of a token, and what the token may be used for; `delegation` is None for all that its user may do."""

    user: UserInfo
    delegation: Delegation | None = None


class CachedBearer:
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


class BearerCache:
    def __init__(self, *, size: int = SIZE, size_per_user: int = SIZE_PER_USER) -> None:
        self.by_digest: BoundedByOwner[bytes, CachedBearer] = BoundedByOwner(size, size_per_user)

    def remember(self, token: CachedBearer) -> None:
        self.by_digest.keep(token.digest, token, owner=token.bearer.user.username, size=token.size)

    def forget(self, token: CachedBearer) -> None:
        self.by_digest.forget(token.digest)

    def forget_revoked(self, revoked: RevokedTokens, everything: bool) -> None:
        """Forget those that *revoked* concern; *everything* if nobody can say which.

        Whoever is asked about again is not refused meanwhile: only what the list names is revoked.
        """
        for token in list(self.by_digest.values()):
            if everything or revoked.concern(token.description):
                token.is_revoked = revoked.name(token.description)
                self.forget(token)
