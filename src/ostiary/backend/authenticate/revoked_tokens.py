"""Which tokens the list of revoked credentials concerns. Pure; called by the follower and by the authenticator.

The same conditions that `ostiary.wire.apiserver_config` writes for a kube-apiserver, and that `core.tokens.ends` has.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

from ostiary.wire.ostiary_dev.revoked_credentials import RevokedCredentials, RevokedSubject
from ostiary.wire.ostiary_dev.token_introspection import TokenDescription

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
