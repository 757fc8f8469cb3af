"""What slow clients leave unread takes no more memory than is allowed."""

from __future__ import annotations

from ostiary.model import UserInfo
from ostiary_gateway.limits.limits import Limits
from ostiary_gateway.limits.settings import LimitSettings
from ostiary_gateway.limits.user_usage import UserUsage


def share(limits: Limits, name: str, *groups: str) -> UserUsage:
    return limits.share(UserInfo(name, groups=groups))


def test_what_slow_clients_leave_unread_is_bounded_for_each_user_and_in_all() -> None:
    """T2."""
    limits = Limits(LimitSettings(unread_per_user=100, unread_in_all=150))
    jane, joe = share(limits, "jane"), share(limits, "joe")
    assert jane.hold_unread(100)
    assert not jane.hold_unread(1)
    jane.release_unread(1)
    assert joe.hold_unread(50)
    assert not joe.hold_unread(1)
    jane.release_unread(100)
    joe.release_unread(51)
    assert (limits.unread, jane.unread, joe.unread) == (0, 0, 0)
