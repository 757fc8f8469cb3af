"""Remembered tokens are bounded, one user's part too, and forgotten when they are revoked."""

from __future__ import annotations

from datetime import UTC, datetime

from ostiary.model import UserInfo
from ostiary_gateway.middleware.bearer import BearerCache, CachedBearer, RevokedTokens
from ostiary_gateway.wire.revoked_credentials import RevokedCredentials, RevokedSubject
from ostiary_gateway.wire.token_introspection import TokenDescription

FAR = datetime(2999, 1, 1, tzinfo=UTC)


def token(number: int, username: str = "ann") -> CachedBearer:
    return CachedBearer(b"%032d" % number, TokenDescription(UserInfo(username), FAR, f"{number}", "session"))


def test_one_users_tokens_evict_only_that_users() -> None:
    """T2."""
    size = token(0).size
    remembered = BearerCache(size=20 * size, size_per_user=5 * size)
    kept = token(1000, "bob")
    remembered.remember(kept)
    for number in range(100):
        remembered.remember(token(number))
    assert len(remembered.by_digest) <= 6
    assert remembered.by_digest[kept.digest] is kept


def test_the_revoked_are_forgotten_and_whoever_holds_them_is_told() -> None:
    remembered = BearerCache()
    ann, bob = token(1, "ann"), token(2, "bob")
    for each in (ann, bob):
        remembered.remember(each)
    revoked = RevokedTokens(RevokedCredentials("", (), 1, subjects=(RevokedSubject("ann"),)))
    remembered.forget_revoked(revoked, False)
    assert (ann.is_revoked, bob.is_revoked, len(remembered.by_digest)) == (True, False, 1)
    # Asked about again, and not refused meanwhile.
    remembered.forget_revoked(revoked, True)
    assert (bob.is_revoked, len(remembered.by_digest)) == (False, 0)
