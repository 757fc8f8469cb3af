"""Charge a request that creates or changes an object to every limit that covers it, or to none.

what would be stored (a dry run)  ->  which subjects it counts for  ->  reserve, or deny after listing the upstream
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from ostiary.errors import ProviderError
from ostiary_gateway.interfaces.admission import (
    Hold,
    UpstreamAnswer,
    UpstreamApi,
    WriteOutcome,
    WriteRequest,
    WriteResult,
)
from ostiary_gateway.interfaces.store_capabilities import ObjectStore
from ostiary_gateway.providers.object_quota.listing import Document, read_document, would_store
from ostiary_gateway.providers.object_quota.measure import NotCountable, measure, measure_scale, nothing, refusal
from ostiary_gateway.providers.object_quota.owners import Intent, Owners, uid_of
from ostiary_gateway.providers.object_quota.reconcile import Reconciliation
from ostiary_gateway.providers.object_quota.settings import ObjectLimit
from ostiary_gateway.providers.object_quota.subjects import (
    ObjectOwner,
    QuotaSubject,
    needs_content,
    resource_name,
    subjects,
)
from ostiary_gateway.providers.object_quota.tallies import Full, Reserved, Tallies, Unlisted
from ostiary_gateway.providers.object_quota.tally import Amounts, minus
from ostiary_gateway.wire.quantity import THOUSANDTHS

CREATED = 201


class NoHold:
    """The hold of a request that stores nothing."""

    wants_body = False

    async def settle(self, result: WriteResult) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Charge:
    """What one subject is charged. `before` is the object's amount before the request, None if it did not exist.

    `expected` is its amount afterwards. `span` is None if nothing had to be reserved; then only an unexpected creation
    is charged.
    """

    limit: ObjectLimit
    subject: QuotaSubject
    reserved: Amounts
    before: Amounts | None
    expected: Amounts
    span: int | None


class Ownership:
    """Record the owner of an object, before and after it is created.

    `intent` is None if the object exists and will be changed. If the request creates it after all, because it was
    deleted in between, *intend* records the intent.
    """

    def __init__(
        self,
        owners: Owners,
        store: ObjectStore | None,
        upstream: str,
        intent: Intent | None,
        intend: Callable[[], Awaitable[Intent]],
    ) -> None:
        self._owners, self._store, self._upstream = owners, store, upstream
        self.intent, self._intend = intent, intend

    async def settle(self, result: WriteResult, document: Document | None) -> None:
        """Record the owner, or drop the intent. If the object's uid is unknown the intent stays for the next list."""
        intent = self.intent
        if result.outcome is WriteOutcome.NOT_DONE or (
            result.outcome is WriteOutcome.DONE and result.status != CREATED
        ):
            if intent is not None:
                await self._owners.drop(self._store, intent)
            return
        if intent is None:
            intent = await self._intend()
        if result.outcome is WriteOutcome.DONE and document is not None and uid_of(document):
            await self._owners.keep(self._store, self._upstream, intent, uid_of(document))


class WriteHold:
    """The hold of a request that creates or changes one object: reservations, settled by the response."""

    def __init__(
        self,
        charges: Sequence[Charge],
        tallies: Tallies,
        reconciliation: Reconciliation,
        ownership: Ownership | None = None,
    ) -> None:
        self._charges = charges
        self._tallies = tallies
        self._reconciliation = reconciliation
        self._ownership = ownership
        creates = ownership is not None and ownership.intent is not None
        self.wants_body = creates or any(charge.limit.sums for charge in charges)

    async def settle(self, result: WriteResult) -> None:
        document = read_document(result.body) if result.body else None
        if self._ownership is not None:
            # Before the reservation is closed: a list that is adopted afterwards must find the owner.
            await self._ownership.settle(result, document)
            self._hurry_if_unknown(result, document)
        for charge in self._charges:
            if result.outcome is WriteOutcome.DONE:
                await self._settle_done(charge, result.status, document)
            elif charge.span is not None:
                if result.outcome is WriteOutcome.NOT_DONE:
                    await self._close(charge, nothing(charge.limit))
                else:
                    await self._tallies.doubt(charge.subject, charge.span, charge.reserved)
                    self._reconciliation.hurry(charge.subject)

    def _hurry_if_unknown(self, result: WriteResult, document: Document | None) -> None:
        if result.outcome is WriteOutcome.DONE and result.status == CREATED and document is None:
            for charge in self._charges:
                self._reconciliation.hurry(charge.subject)

    async def give_back(self) -> None:
        """Release everything: the request is not sent."""
        await self.settle(WriteResult(WriteOutcome.NOT_DONE))

    async def _settle_done(self, charge: Charge, status: int, document: object) -> None:
        after = _stored_amounts(charge, document)
        before = charge.before
        if before is not None and status == CREATED:
            # The object was deleted before the request arrived.
            before = None
        elif before is None and status != CREATED and charge.span is not None:
            # Another request created it in between, and it is counted there.
            before = charge.expected
        stored = after if before is None else minus(after, before)
        if charge.span is None:
            if any(stored):
                await self._tallies.store(charge.subject, stored)
            return
        less = before is not None and before != after
        await self._close(charge, stored, less=less)
        if less:
            self._reconciliation.hurry(charge.subject)

    async def _close(self, charge: Charge, stored: Amounts, *, less: bool = False) -> None:
        assert charge.span is not None, "something was reserved"
        await self._tallies.close(charge.subject, charge.span, charge.reserved, stored=stored, less=less)


class DeleteHold:
    """The hold of a request that deletes. The next list shows how much became free.

    The response does not show it: an object with finalizers or a grace period still exists.
    """

    wants_body = False

    def __init__(self, charged: Sequence[QuotaSubject], tallies: Tallies, reconciliation: Reconciliation) -> None:
        self._charged = charged
        self._tallies = tallies
        self._reconciliation = reconciliation

    async def settle(self, result: WriteResult) -> None:
        if result.outcome is WriteOutcome.NOT_DONE:
            return
        for subject in self._charged:
            await self._tallies.expect_less(subject)
            self._reconciliation.hurry(subject)


def _stored_amounts(charge: Charge, document: object) -> Amounts:
    """Return the amounts that the upstream stored; those of the dry run if the response cannot be read."""
    if not charge.limit.sums or not isinstance(document, dict):
        return charge.expected
    try:
        if document.get("kind") == "Scale" and charge.before is not None:
            return measure_scale(charge.limit, document, charge.before)
        return measure(charge.limit, document)
    except NotCountable:
        return charge.expected


# A denial may rely on a list that began at most this many seconds ago.
FRESH_SECONDS = 1.0
ATTEMPTS = 4
ATTEMPT_SECONDS = 0.05


class QuotaExceeded(Exception):
    """The limit is reached. The message is for the client."""


class OutdatedRefusal(QuotaExceeded):
    """Like `QuotaExceeded`, but based on an old list: *subject* must be listed first to confirm it."""

    def __init__(self, reason: str, subject: QuotaSubject) -> None:
        super().__init__(reason)
        self.subject = subject


class Charging:
    """Charges one request."""

    def __init__(
        self,
        request: WriteRequest,
        limits: Sequence[ObjectLimit],
        api: UpstreamApi,
        tallies: Tallies,
        reconciliation: Reconciliation,
        owners: Owners,
    ) -> None:
        self._request = request
        self._attributes = request.attributes
        self._info = request.attributes.request
        self._limits = limits
        self._api = api
        self._tallies = tallies
        self._reconciliation = reconciliation
        self._owners = owners
        self._charges: list[Charge] = []
        self._ownership: Ownership | None = None

    async def charge(self) -> Hold | UpstreamAnswer:
        """Return the hold, or the upstream's response if it would store nothing.

        Raises `QuotaExceeded`, `NotCountable` or `ProviderError`, and then nothing is held.
        """
        try:
            answer = await (self._charge_creation() if self._info.verb == "create" else self._charge_change())
        except BaseException:
            await self._hold().give_back()
            raise
        if answer is not None:
            await self._hold().give_back()
            return answer
        return self._hold()

    def _hold(self) -> WriteHold:
        return WriteHold(self._charges, self._tallies, self._reconciliation, self._ownership)

    # --- a creation ---

    async def _charge_creation(self) -> UpstreamAnswer | None:
        document: Document | None = None
        if needs_content(self._limits):
            answer = await would_store(self._api, self._request)
            document = _stored_document(answer)
            if document is None:
                return answer
        for limit in self._limits:
            amounts = _amounts_of(limit, document)
            for subject in self._subjects(limit, self._requester):
                span = await self._reserve(limit, subject, amounts)
                self._charges.append(Charge(limit, subject, amounts, None, amounts, span))
        await self._note_owner(document)
        return None

    @property
    def _requester(self) -> ObjectOwner:
        user = self._attributes.user
        return ObjectOwner(user.username, user.groups)

    async def _note_owner(self, document: Document | None) -> None:
        """Record the owner of the new object if a limit depends on it."""
        if not any(limit.counts_by_owner for limit in self._limits):
            return
        assert document is not None, "limits by owner have asked what would be stored"
        self._ownership = self._ownership_of(await self._intend(document))

    async def _intend(self, document: Document) -> Intent:
        store, info = self._api.objects, self._info
        place = info.object_namespace
        return await self._owners.intend(store, info.upstream, self._requester, resource_name(info), place, document)

    def _ownership_of(self, intent: Intent | None) -> Ownership:
        metadata_only: Document = {"metadata": {"name": self._info.name}}
        upstream = self._info.upstream
        return Ownership(self._owners, self._api.objects, upstream, intent, lambda: self._intend(metadata_only))

    # --- an update or a patch, which may create the object, and may change what it counts ---

    async def _charge_change(self) -> UpstreamAnswer | None:
        with_sums = [limit for limit in self._limits if limit.sums]
        by_owner = any(limit.counts_by_owner for limit in self._limits)
        old = await self._read() if by_owner or not with_sums else None
        owner = await self._owner_of(old) if by_owner else None
        opened: list[tuple[ObjectLimit, QuotaSubject, int]] = []
        for limit in with_sums:
            for subject in self._subjects(limit, owner):
                # The open reservation prevents lists from being adopted, which might show the object before the change.
                span = await self._reserve(limit, subject, nothing(limit))
                opened.append((limit, subject, span))
                self._charges.append(Charge(limit, subject, nothing(limit), None, nothing(limit), span))
        if with_sums:
            old = await self._read()
        new: Document | None = None
        if with_sums or (old is None and needs_content(self._limits)):
            answer = await would_store(self._api, self._request)
            new = _stored_document(answer)
            if new is None:
                return answer
        for place, (limit, subject, span) in enumerate(opened):
            self._charges[place] = await self._charge_sums(limit, subject, span, old, new)
        for limit in self._limits:
            if not limit.sums:
                await self._charge_count(limit, owner, exists=old is not None)
        if old is None and not self._info.subresource:
            await self._note_owner(new)
        elif by_owner and not self._info.subresource:
            # The object may be deleted before the request arrives, which then creates it.
            self._ownership = self._ownership_of(None)
        return None

    async def _read(self) -> Document | None:
        return await self._reconciliation.listing.object(self._api, self._info.upstream, self._info)

    async def _owner_of(self, old: Document | None) -> ObjectOwner | None:
        """Return the owner of the object; the requester if it does not exist yet."""
        if old is None:
            return self._requester
        return await self._owners.find(self._api.objects, self._info.upstream, old)

    async def _charge_sums(
        self, limit: ObjectLimit, subject: QuotaSubject, span: int, old: Document | None, new: Document | None
    ) -> Charge:
        before = None if old is None else measure(limit, old)
        expected = _measured_change(limit, new, before)
        change = expected if before is None else minus(expected, before)
        if any(change):
            await self._add(limit, subject, span, change)
        return Charge(limit, subject, change, before, expected, span)

    async def _charge_count(self, limit: ObjectLimit, owner: ObjectOwner | None, *, exists: bool) -> None:
        one_object = (THOUSANDTHS,)
        for subject in self._subjects(limit, owner):
            if exists:
                self._charges.append(Charge(limit, subject, nothing(limit), one_object, one_object, None))
            else:
                span = await self._reserve(limit, subject, one_object)
                self._charges.append(Charge(limit, subject, one_object, None, one_object, span))

    # --- reserving ---

    def _subjects(self, limit: ObjectLimit, owner: ObjectOwner | None) -> list[QuotaSubject]:
        info = self._info
        charged = subjects(limit, upstream=info.upstream, namespace=info.object_namespace, owner=owner)
        for subject in charged:
            self._reconciliation.watch(subject)
        return charged

    async def _reserve(self, limit: ObjectLimit, subject: QuotaSubject, wanted: Amounts) -> int:
        """Return the span of the reservation. Raises `QuotaExceeded` or `ProviderError`."""
        is_listed = False
        for attempt in range(ATTEMPTS + 1):
            result = await self._tallies.reserve(subject, wanted, limit.limits)
            if not isinstance(result, Unlisted):
                self._reconciliation.note_total(limit, subject, result.total)
            if isinstance(result, Reserved):
                return result.span
            if isinstance(result, Full) and (is_listed or _is_certain(result) or attempt == ATTEMPTS):
                raise QuotaExceeded(refusal(limit, wanted, result.total))
            is_listed = await list_subject(self._reconciliation, subject, self._api, attempt)
        raise ProviderError("the quota cannot be counted", cause="the upstream changes faster than it can be listed")

    async def _add(self, limit: ObjectLimit, subject: QuotaSubject, span: int, wanted: Amounts) -> None:
        """Reserve more for an open request. While it is open, no list is adopted."""
        result = await self._tallies.add(subject, span, wanted, limit.limits)
        if isinstance(result, Full):
            reason = refusal(limit, wanted, result.total)
            raise QuotaExceeded(reason) if _is_certain(result) else OutdatedRefusal(reason, subject)
        if isinstance(result, Unlisted):
            raise ProviderError("the quota cannot be counted", cause="the request took too long")


async def list_subject(reconciliation: Reconciliation, subject: QuotaSubject, api: UpstreamApi, attempt: int) -> bool:
    """List the upstream. Return False, after a pause, if other requests of *subject* are in flight."""
    if await reconciliation.list_now(subject, api):
        return True
    await asyncio.sleep(ATTEMPT_SECONDS * (attempt + 1))
    return False


def _is_certain(full: Full) -> bool:
    return not full.outdated and full.age < FRESH_SECONDS


def _stored_document(answer: UpstreamAnswer) -> Document | None:
    """Return the object that a dry run would store; None if the upstream rejected it.

    Raises `ProviderError` if the response cannot be read.
    """
    if not 200 <= answer.status < 300:
        return None
    document = read_document(answer.body)
    if document is None:
        raise ProviderError("the quota cannot be counted", cause="the answer to a dry run is not JSON")
    return document


def _amounts_of(limit: ObjectLimit, document: Document | None) -> Amounts:
    return (THOUSANDTHS,) if document is None or not limit.sums else measure(limit, document)


def _measured_change(limit: ObjectLimit, document: Document | None, before: Amounts | None) -> Amounts:
    assert document is not None, "limits with sums have asked what would be stored"
    if before is not None and document.get("kind") == "Scale":
        return measure_scale(limit, document, before)
    return measure(limit, document)
