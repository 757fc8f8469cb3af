"""What one user holds of what all share."""

from __future__ import annotations

import gc

from ostiary.model import UserInfo
from ostiary_gateway.limits.limits import Limits
from ostiary_gateway.limits.settings import LimitSettings
from ostiary_gateway.limits.user_usage import UserUsage


def share(limits: Limits, name: str, *groups: str) -> UserUsage:
    return limits.share(UserInfo(name, groups=groups))


def test_all_tokens_of_a_user_have_one_share_which_is_gone_with_the_last_of_them() -> None:
    """T2."""
    limits = Limits()
    jane = limits.share(UserInfo("jane", groups=("dev",)))
    assert limits.share(UserInfo("jane", groups=("ops",))) is jane
    assert limits.share(UserInfo("joe")) is not jane
    del jane
    gc.collect()
    assert len(limits._shares) == 0


def test_a_user_may_have_only_so_many_connections() -> None:
    limits = Limits(LimitSettings(connections_per_user=2))
    assert share(limits, "jane").most_connections == 2
    assert share(limits, "root", "system:masters").most_connections == float("inf")
    unlimited = Limits(LimitSettings(connections_per_user=0))
    assert share(unlimited, "jane").most_connections == float("inf")
