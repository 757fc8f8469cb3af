"""Compare the counted amounts with the upstream, and correct them.

    due: a subject that is new, outdated, or has not been listed for the interval
      ->  look at its tally  ->  list the upstream  ->  adopt the list, unless the tally changed meanwhile

Runs before a request is denied, and in the background. Workers and replicas may do it concurrently: one of several
lists is adopted, and the others find the tally changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping

from ostiary.core.bounded_cache import Bounded
from ostiary.core.clock import Clock
from ostiary.errors import ProviderError
from ostiary_gateway.interfaces.admission import CountingFigures, UpstreamApi
from ostiary_gateway.providers.object_quota.listing import Document, Listing
from ostiary_gateway.providers.object_quota.measure import NotCountable, format_amounts, item_names, measure, nothing
from ostiary_gateway.providers.object_quota.owners import Owners, uid_of
from ostiary_gateway.providers.object_quota.settings import ObjectLimit
from ostiary_gateway.providers.object_quota.subjects import ObjectOwner, QuotaSubject, subjects
from ostiary_gateway.providers.object_quota.tallies import Sight, Tallies
from ostiary_gateway.providers.object_quota.tally import SPAN_SECONDS, Amounts, plus
from ostiary_gateway.wire.quantity import THOUSANDTHS

# How many subjects a worker reconciles: the most recently used ones.
MOST_SUBJECTS = 10_000
# How often the background task looks for due subjects.
PAUSE_SECONDS = 1.0

log = logging.getLogger("ostiary.gateway")


class Reconciliation:
    """The reconciliation of one provider in one worker."""

    def __init__(
        self,
        limits: Mapping[str, ObjectLimit],
        tallies: Tallies,
        listing: Listing,
        owners: Owners,
        *,
        interval: float,
        clock: Clock,
    ) -> None:
        self._limits = limits
        self._tallies = tallies
        self.listing = listing
        self._owners = owners
        self._interval = interval
        self._monotonic = clock.monotonic
        # When each subject is checked next.
        self._due_at: Bounded[QuotaSubject, float] = Bounded(MOST_SUBJECTS)
        self._under_way: dict[QuotaSubject, asyncio.Task[bool]] = {}
        # When the recorded owners are next compared with the existing objects.
        self._forget_at = clock.monotonic() + interval
        # Number of lists that differed from the count although nothing had been deleted through this gateway.
        self.corrections = 0
        # How full each subject was at its last count in this worker.
        self._fullness: Bounded[QuotaSubject, float] = Bounded(MOST_SUBJECTS)

    def watch(self, subject: QuotaSubject) -> None:
        """Reconcile *subject* regularly from now on."""
        if subject not in self._due_at:
            self._due_at.keep(subject, self._monotonic() + self._interval)

    def hurry(self, subject: QuotaSubject) -> None:
        """Make *subject* due now: its tally is outdated."""
        self._due_at.keep(subject, self._monotonic())

    async def run(self, api: UpstreamApi) -> None:
        """Reconcile until cancelled."""
        while True:
            await self.list_due(api)
            if self._monotonic() >= self._forget_at:
                for upstream in api.upstreams:
                    await self.forget_owners(upstream, api)
                self._forget_at = self._monotonic() + self._interval
            await asyncio.sleep(PAUSE_SECONDS)

    async def list_due(self, api: UpstreamApi) -> None:
        """List the due subjects. A subject that cannot be listed is retried, and does not affect the others."""
        now = self._monotonic()
        for subject in [subject for subject, at in self._due_at.items() if at <= now]:
            try:
                self._due_at.keep(subject, now + await self._list_if_due(subject, api))
            except ProviderError as error:
                self._due_at.keep(subject, now + PAUSE_SECONDS)
                fields = {"limit": subject.limit, "subject": str(subject), "cause": error.cause or error.summary}
                log.warning("a quota could not be compared with the upstream; retrying", extra=fields)

    async def _list_if_due(self, subject: QuotaSubject, api: UpstreamApi) -> float:
        """List *subject* unless another worker did. Return the seconds until the next check."""
        sight = await self._tallies.look(subject)
        tally = sight.tally
        if tally is None:
            # The next request of the subject lists it first.
            return self._interval
        age = sight.at - tally.listed_at
        if not tally.outdated and not tally.has_doubt and age < self._interval:
            # Another worker has listed it.
            return self._interval - age
        if not await self.list_now(subject, api):
            return PAUSE_SECONDS
        return min(self._interval, SPAN_SECONDS) if tally.has_doubt else self._interval

    async def list_now(self, subject: QuotaSubject, api: UpstreamApi) -> bool:
        """List the upstream and adopt the result. Return False if the tally changed meanwhile.

        Concurrent callers share one list: if the tally had changed since the list began, it would not be adopted.
        Raises `ProviderError`.
        """
        task = self._under_way.get(subject)
        if task is None:
            task = self._under_way[subject] = asyncio.create_task(self._list(subject, api))
            task.add_done_callback(lambda done: self._under_way.pop(subject, None))
        # Cancelling one caller must not cancel the list for the others.
        return await asyncio.shield(task)

    async def _list(self, subject: QuotaSubject, api: UpstreamApi) -> bool:
        limit = self._limits[subject.limit]
        before = await self._tallies.look(subject)
        listed = await self._count_listed(limit, subject, api)
        after = await self._tallies.adopt(subject, before, listed)
        if after is None:
            return False
        self.note_total(limit, subject, listed)
        self._report_difference(limit, subject, before, listed)
        return True

    def note_total(self, limit: ObjectLimit, subject: QuotaSubject, total: Amounts) -> None:
        """Record the current total for the metrics."""
        self._fullness.keep(subject, _fullness(limit, total))

    def figures(self) -> CountingFigures:
        fullest = dict.fromkeys(self._limits, 0.0)
        for subject, fullness in self._fullness.items():
            fullest[subject.limit] = max(fullest[subject.limit], fullness)
        return CountingFigures(fullest, self.corrections)

    async def _count_listed(self, limit: ObjectLimit, subject: QuotaSubject, api: UpstreamApi) -> Amounts:
        total = nothing(limit)
        async for counted, amounts in self._objects(limit, subject.upstream, subject.namespace, api):
            if subject in counted:
                total = plus(total, amounts)
        return total

    async def usage(self, limit: ObjectLimit, upstream: str, api: UpstreamApi) -> dict[QuotaSubject, Amounts]:
        """Return the current amounts of each subject. Raises `ProviderError`."""
        totals: dict[QuotaSubject, Amounts] = {}
        async for counted, amounts in self._objects(limit, upstream, "", api):
            for subject in counted:
                totals[subject] = plus(totals.get(subject, nothing(limit)), amounts)
        return totals

    async def _objects(
        self, limit: ObjectLimit, upstream: str, namespace: str, api: UpstreamApi
    ) -> AsyncIterator[tuple[list[QuotaSubject], Amounts]]:
        """Yield, for each object, the subjects that it counts for and its amounts."""
        ledger = await self._owners.ledger(api.objects, upstream) if limit.counts_by_owner else None
        for resource in limit.resources:
            content = bool(limit.sums)
            async for document in self.listing.objects(api, upstream, resource, namespace, content=content):
                owner: ObjectOwner | None = None
                if ledger is not None:
                    owner = await self._owners.owner_of(api.objects, upstream, ledger, resource, document)
                place = _metadata(document, "namespace")
                if limit.namespaces and place not in limit.namespaces:
                    continue
                counted = subjects(limit, upstream=upstream, namespace=place, owner=owner)
                if counted:
                    yield counted, _measure_stored(limit, document)

    async def forget_owners(self, upstream: str, api: UpstreamApi) -> None:
        """Remove the owners of objects that no longer exist. Raises `ProviderError`."""
        limits = [limit for limit in self._limits.values() if limit.counts_by_owner]
        if not limits:
            return
        ledger = await self._owners.ledger(api.objects, upstream)
        present: set[str] = set()
        for resource in dict.fromkeys(each for limit in limits for each in limit.resources):
            async for document in self.listing.objects(api, upstream, resource, "", content=False):
                present.add(uid_of(document))
                await self._owners.owner_of(api.objects, upstream, ledger, resource, document)
        await self._owners.forget(api.objects, upstream, ledger, present)

    def _report_difference(self, limit: ObjectLimit, subject: QuotaSubject, before: Sight, listed: Amounts) -> None:
        tally = before.tally
        if tally is None or tally.used == listed:
            return
        names, texts = item_names(limit), (format_amounts(limit, tally.used), format_amounts(limit, listed))
        counted, actual = (
            ", ".join(f"{name}={text}" for name, text in zip(names, each, strict=True)) for each in texts
        )
        fields = {"limit": limit.name, "subject": str(subject), "counted": counted, "listed": actual}
        if tally.outdated:
            log.debug("a quota was compared with the upstream", extra=fields)
            return
        self.corrections += 1
        log.info("a quota differed from the upstream, and was corrected", extra=fields)


def _fullness(limit: ObjectLimit, amounts: Amounts) -> float:
    """How full a limit is; 1 is full. With a limit of zero, any amount exceeds it."""
    parts = [
        amount / most if most else float(amount > 0)
        for amount, most in zip(amounts, limit.limits, strict=True)
        if most is not None
    ]
    return max(parts, default=0.0)


def _measure_stored(limit: ObjectLimit, document: Document) -> Amounts:
    try:
        return measure(limit, document)
    except NotCountable as error:
        # The object already exists, so denying is too late. It must not block all requests in its namespace.
        fields = {"limit": limit.name, "object": _metadata(document, "name"), "cause": str(error)}
        log.warning("an object is counted without its fields", extra=fields)
        return (THOUSANDTHS, *nothing(limit)[1:])


def _metadata(document: Document, name: str) -> str:
    metadata = document.get("metadata")
    value = metadata.get(name) if isinstance(metadata, dict) else None
    return value if isinstance(value, str) else ""
