"""Authenticated bearer tokens, their cache, and the revocation list that invalidates it."""

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

# The conditions are those that `ostiary_gateway.wire.apiserver_config` writes for a kube-apiserver.

K = TypeVar("K", bound=Hashable)


class RevokedTokens:
    """The revocation list of a gateway, indexed for fast lookups."""

    def __init__(self, revoked: RevokedCredentials) -> None:
        self.head = revoked.head
        self.issuer = revoked.issuer
        self._credential_ids = frozenset(revoked.credential_ids)
        self._sessions = frozenset(revoked.sessions)
        self._by_user = _group_by_key((each.username, each) for each in revoked.subjects)
        self._by_group = _group_by_key((each.group, each) for each in revoked.subjects if each.username is None)
        # Subjects without a user and a group: every session that began before the revocation.
        self._others = [each for each in revoked.subjects if each.username is None and each.group is None]
        self._issued_until = revoked.issued_until

    def concern(self, token: TokenDescription) -> bool:
        """Report whether *token* is revoked, or must be looked up again."""
        return self.name(token) or (token.issued_at is None and self._sums_up(token))

    def name(self, token: TokenDescription) -> bool:
        """Report whether *token* is on the list and therefore revoked."""
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
        """Report whether a rule replaces too many single entries, and *token* may be one of those.

        Such a rule compares the time at which a JWT was issued. That time is unknown for an opaque token, which must be
        looked up at the gateway again.
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
# The objects themselves, without their text.
_FIXED_BYTES = 1500


@dataclass(frozen=True, slots=True)
class Bearer:
    """The user of a token and the scope of the token; `delegation` is None for an unscoped token."""

    user: UserInfo
    delegation: Delegation | None = None


class CachedBearer:
    """A valid token.

    `is_revoked` is set on revocation, for code that still holds the object after it left the cache.
    """

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
    """Cache of authenticated bearer tokens, by digest. Bounded in bytes, in total and per user."""

    def __init__(self, *, size: int = SIZE, size_per_user: int = SIZE_PER_USER) -> None:
        self.by_digest: BoundedByOwner[bytes, CachedBearer] = BoundedByOwner(size, size_per_user)

    def remember(self, token: CachedBearer) -> None:
        self.by_digest.keep(token.digest, token, owner=token.bearer.user.username, size=token.size)

    def forget(self, token: CachedBearer) -> None:
        self.by_digest.forget(token.digest)

    def forget_revoked(self, revoked: RevokedTokens, everything: bool) -> None:
        """Evict the tokens that *revoked* concerns, or *everything* if the list may be incomplete.

        Only tokens on the list are marked as revoked. The others are looked up again.
        """
        for token in list(self.by_digest.values()):
            if everything or revoked.concern(token.description):
                token.is_revoked = revoked.name(token.description)
                self.forget(token)
