"""All providers of a configuration that follow an upstream: started, taken over by the next configuration, and shown.

Called by the app, and by whoever needs such a policy once (`load_once`). Each worker follows for itself: a policy is
there only where decisions are made by it, and no worker depends on another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.errors import ConfigurationError, ProviderError
from ostiary.gateway.config.settings import Authorization, UpstreamConfig
from ostiary.gateway.observe.metrics import Metrics
from ostiary.gateway.upstream.following.in_chain import followers_of
from ostiary.gateway.upstream.following.reader import FollowedUpstream
from ostiary.interfaces.upstream_abilities.following import FollowedFigures, UpstreamFollower

# How long a reload waits for the first list of an upstream that was not followed before.
LOAD_SECONDS = 30.0
_NOTHING = FollowedFigures(None, 0)


@dataclass(frozen=True, slots=True)
class _Followed:
    """One provider, and the upstream that it follows."""

    name: str
    follower: UpstreamFollower
    configured: UpstreamConfig
    reader: FollowedUpstream


class Followers:
    """The providers of *chain* that follow one of *upstreams*."""

    def __init__(
        self,
        chain: Iterable[Authorization],
        upstreams: Iterable[UpstreamConfig],
        loop: asyncio.AbstractEventLoop,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        by_name = {upstream.name: upstream for upstream in upstreams}
        self._followed = tuple(
            _Followed(
                name, follower, by_name[follower.upstream], FollowedUpstream(by_name[follower.upstream], loop, clock)
            )
            for name, follower in followers_of(chain)
            # One whose upstream is not there has no policy, and says so when it is asked.
            if follower.upstream in by_name
        )
        self._shown: dict[str, FollowedFigures] = {}

    def start(self, keep_running: Callable[[str, Callable[[], Awaitable[None]]], None]) -> None:
        for followed in self._followed:
            work = partial(followed.follower.follow, followed.reader)
            keep_running(f"following the policy of {followed.name} at {followed.configured.name}", work)

    async def prepare(self, old: Followers) -> None:
        """Before these take the place of *old*: have a policy, so that no request meets a gateway without one.

        Raises `ConfigurationError` if an upstream that was not followed before cannot be read. Of one that was, what is
        known is taken over, though it may be too old: then nothing is lost, and the rest of the configuration matters.
        """
        for followed in self._followed:
            same = old._same(followed)
            if same is not None and (followed.follower.adopt(same.follower) or same.follower.trouble()):
                continue
            try:
                async with asyncio.timeout(LOAD_SECONDS):
                    await followed.follower.load(followed.reader)
            except (ProviderError, TimeoutError) as error:
                cause = error.cause or error.summary if isinstance(error, ProviderError) else "it took too long"
                raise ConfigurationError(
                    "the configuration was not reloaded",
                    cause=f'the policy of "{followed.name}" cannot be read from "{followed.configured.name}": {cause}',
                    hint=error.hint if isinstance(error, ProviderError) else None,
                ) from None

    def adopt(self, old: Followers) -> None:
        """Go on from what *old* knows, whose work has been stopped."""
        for followed in self._followed:
            same = old._same(followed)
            if same is not None and followed.follower.adopt(same.follower):
                self._shown[followed.name] = same.follower.figures()

    def tick(self, now: float) -> None:
        for followed in self._followed:
            followed.reader.tick(now)

    def show_figures(self, metrics: Metrics) -> None:
        for followed in self._followed:
            name, figures = followed.name, followed.follower.figures()
            if figures.age is not None:
                metrics.policy_age.set(figures.age, name)
            metrics.policy_objects.set(figures.objects, name)
            shown, self._shown[name] = self._shown.get(name, _NOTHING), figures
            # A follower that begins anew begins at zero, and what is counted must never become less.
            metrics.policy_lists.inc(name, by=max(0, figures.lists - shown.lists))
            metrics.policy_changes.inc(name, by=max(0, figures.changes - shown.changes))
            metrics.policy_unreadable.inc(name, by=max(0, figures.unreadable - shown.unreadable))

    def troubles(self) -> list[tuple[str, str]]:
        """Each policy, and why it cannot be used."""
        return [(f"policy {followed.name}", followed.follower.trouble()) for followed in self._followed]

    def report(self) -> list[tuple[str, str]]:
        """The same for readiness probes, with its age: an outage shows before the policy is too old."""
        ages = (followed.follower.figures().age for followed in self._followed)
        return [
            (name if age is None else f"{name}, confirmed {age:.0f} s ago", trouble)
            for (name, trouble), age in zip(self.troubles(), ages, strict=True)
        ]

    def close(self) -> None:
        for followed in self._followed:
            followed.reader.close()

    def _same(self, other: _Followed) -> _Followed | None:
        """The one of ours that follows the same upstream in the same way."""
        for followed in self._followed:
            if followed.name == other.name and _address(followed.configured) == _address(other.configured):
                return followed
        return None


async def load_once(chain: Sequence[Authorization], upstreams: Iterable[UpstreamConfig]) -> None:
    """Read the policies of *chain* that are followed, for somebody who does not serve. Raises `ProviderError`."""
    followers = Followers(chain, upstreams, asyncio.get_running_loop())
    try:
        for followed in followers._followed:
            await followed.follower.load(followed.reader)
    finally:
        followers.close()


async def probe(follower: UpstreamFollower, upstream: UpstreamConfig) -> str:
    """Whether the gateway's credential may read all that *follower* needs of *upstream*; raises `ProviderError`."""
    reader = FollowedUpstream(upstream, asyncio.get_running_loop(), SYSTEM_CLOCK)
    try:
        return await follower.probe(reader)
    finally:
        reader.close()


def _address(configured: UpstreamConfig) -> tuple[object, ...]:
    """Where it is and how we reach it: what makes it the same cluster."""
    return (
        configured.name,
        configured.server,
        configured.socket,
        configured.tls,
        configured.token_file,
        configured.authorities_pem,
        configured.identity,
    )
