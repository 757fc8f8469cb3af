"""Which providers of a chain follow an upstream, and what they need there.

Apart from `followers`, which does the following: commands ask this about every policy, and need no HTTP library for one
that is in files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ostiary.core.abilities import ability
from ostiary.gateway.config.settings import Authorization
from ostiary.interfaces.upstream_abilities.following import FollowsUpstream, NeededAccess, UpstreamFollower


def followers_of(chain: Iterable[Authorization]) -> Iterator[tuple[str, UpstreamFollower]]:
    """The providers of *chain* that follow an upstream, by name."""
    for link in chain:
        following = ability(link.instance, FollowsUpstream)
        if following is not None:
            yield link.name, following.following


def needed_access(chain: Iterable[Authorization], upstream: str) -> list[NeededAccess]:
    """What the gateway's own credential must be allowed at *upstream*, so that it can be followed."""
    return [follower.needs() for _, follower in followers_of(chain) if follower.upstream == upstream]
