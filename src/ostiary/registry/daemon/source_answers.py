"""What the kubelet's provider is answered, kept for as long as its sources say, and fetched once for all who ask.

Used by the daemon, one instance for each ``ImageCredentialSources`` file. A kept answer says how much longer it holds,
and not how long it held when it was new: the kubelet keeps it in turn.

As in `registry.cache`, what is kept without a service account is for all pods, and what was given for a token is for
that token alone.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

from ostiary.core.caching.flight import SingleFlight
from ostiary.core.caching.waiting import wait_async
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.registry.kubelet.respond import respond
from ostiary.registry.kubelet.sources.config import LoginSource
from ostiary.registry.matching.image_match import matches
from ostiary.wire.credential_provider import CacheKeyType, Request, Response

ENTRY_LIMIT = 4096
_Key = tuple[tuple[int, ...], str, str]


@dataclass(frozen=True, slots=True)
class _KeptResponse:
    response: Response
    expires_at: float


class _SourceRun(Future[Response]):
    """The sources are being asked, for *image*; others of its registry may wait for the same answer."""

    def __init__(self, image: str) -> None:
        super().__init__()
        self.image = image


class SourceAnswers:
    """The sources of one file and what they answered. Used from one event loop; sources are asked in threads."""

    def __init__(
        self,
        sources: tuple[LoginSource, ...],
        *,
        clock: Clock = SYSTEM_CLOCK,
        ask: Callable[[Request, tuple[LoginSource, ...]], Response] = respond,
        limit: int = ENTRY_LIMIT,
    ) -> None:
        self.sources = sources
        self.runs = 0
        self._ask = ask
        self._clock = clock
        self._limit = limit
        self._kept: OrderedDict[_Key, _KeptResponse] = OrderedDict()
        self._flights: SingleFlight[_SourceRun] = SingleFlight(thread_name="ostiary-credential-source")

    async def respond(self, request: Request) -> Response:
        """Raises what the sources raise; that is not kept."""
        indexes = tuple(
            index
            for index, source in enumerate(self.sources)
            if any(matches(pattern, request.image) for pattern in source.match_images)
        )
        account = _account_key(request)
        kept = self._find(indexes, request.image, account)
        if kept is not None:
            return kept
        registry = request.image.partition("/")[0]
        if indexes and self.sources[indexes[0]].cache_key_type is CacheKeyType.REGISTRY:
            run = self._join((indexes, registry, account), request)
            try:
                response = await wait_async(run)
            except Exception:
                if run.image == request.image:
                    raise
            else:
                if response.cache_key_type is CacheKeyType.REGISTRY:
                    return response
            # It may be for another image of that registry, and then says nothing of ours. So does its error.
        kept = self._find(indexes, request.image, account)
        if kept is not None:
            return kept
        return await wait_async(self._join((indexes, request.image, account), request))

    def clear(self) -> None:
        with self._flights.lock:
            self._kept.clear()

    def __len__(self) -> int:
        """How many answers are kept at this moment."""
        now = self._clock.monotonic()
        with self._flights.lock:
            return sum(now < entry.expires_at for entry in self._kept.values())

    def _find(self, indexes: tuple[int, ...], image: str, account: str) -> Response | None:
        now = self._clock.monotonic()
        for base in (image, image.partition("/")[0]):
            entry = self._kept.get((indexes, base, account))
            if entry is not None and now < entry.expires_at:
                # Whole seconds, rounded down: never longer than it holds.
                return replace(entry.response, cache_duration=timedelta(seconds=int(entry.expires_at - now)))
        return None

    def _join(self, key: _Key, request: Request) -> _SourceRun:
        with self._flights.lock:
            running = self._flights.running(key)
            if running is not None:
                return running
            self.runs += 1
            started_at = self._clock.monotonic()
            settle = partial(self._keep, key, request, started_at)
            return self._flights.start(
                _SourceRun(request.image), lambda: self._ask(request, self.sources), settle=settle, key=key
            )

    def _keep(
        self, key: _Key, request: Request, started_at: float, response: Response | None, error: BaseException | None
    ) -> None:
        if response is None or not response.cache_duration or response.cache_duration <= timedelta(0):
            return
        if any(self.sources[index].hosts_dir for index in key[0]):
            # The node's mirrors, which choose the host whose login it is, may change at any time.
            return
        by_registry = response.cache_key_type is CacheKeyType.REGISTRY
        base = request.image.partition("/")[0] if by_registry else request.image
        kept_key = (key[0], base, key[2])
        expires_at = started_at + response.cache_duration.total_seconds()
        self._kept.pop(kept_key, None)
        while len(self._kept) >= self._limit:
            self._kept.popitem(last=False)
        self._kept[kept_key] = _KeptResponse(response, expires_at)


def _account_key(request: Request) -> str:
    if request.service_account_token is None and not request.service_account_annotations:
        return ""
    token = request.service_account_token.reveal() if request.service_account_token else ""
    parts = [token, *(text for item in sorted(request.service_account_annotations.items()) for text in item)]
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()
