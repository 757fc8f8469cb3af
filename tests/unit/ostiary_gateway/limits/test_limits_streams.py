"""How many streams one user, and all users together, may hold open."""

from __future__ import annotations

import pytest

from ostiary.errors import TooManyRequests
from ostiary.model import UserInfo
from ostiary_gateway.limits.limits import Limits
from ostiary_gateway.limits.settings import LimitSettings
from ostiary_gateway.limits.user_usage import UserUsage


def share(limits: Limits, name: str, *groups: str) -> UserUsage:
    return limits.share(UserInfo(name, groups=groups))


def test_a_user_may_hold_only_so_many_streams_open() -> None:
    """S73, 2.11."""
    limits = Limits(LimitSettings(streams=2))
    streams, jane, joe = limits.streams, share(limits, "jane"), share(limits, "joe")
    first, _ = streams.open(jane), streams.open(jane)
    with pytest.raises(TooManyRequests, match="too many open streams"):
        streams.open(jane)
    assert streams.try_open(jane) is None
    streams.open(joe)()
    first()
    assert streams.open_in_all == 1
    streams.open(jane)()
    assert (streams.open_in_all, jane.streams, joe.streams) == (1, 1, 0)


def test_all_users_together_may_hold_only_so_many_streams_open() -> None:
    """S73, 2.11."""
    limits = Limits(LimitSettings(streams=2, streams_in_all=3))
    held = [limits.open_stream(share(limits, name)) for name in ("jane", "jane", "joe")]
    with pytest.raises(TooManyRequests) as caught:
        limits.open_stream(share(limits, "jim"))
    assert caught.value.cause == "too many streams of all users are open"
    limits.open_stream(share(limits, "root", "system:masters"))()
    held[0]()
    limits.open_stream(share(limits, "jim"))
