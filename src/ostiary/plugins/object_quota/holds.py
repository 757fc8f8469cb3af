"""What is held for one request from its reservation to its answer, and how the answer settles it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from ostiary.interfaces.admission import WriteOutcome, WriteResult
from ostiary.interfaces.store_abilities.stored_objects import ObjectStore
from ostiary.plugins.object_quota.listing import Document, read_document
from ostiary.plugins.object_quota.measure import NotCountable, measure, measure_scale, nothing
from ostiary.plugins.object_quota.owners import Intent, Owners, uid_of
from ostiary.plugins.object_quota.reconcile import Reconciliation
from ostiary.plugins.object_quota.settings import ObjectLimit
from ostiary.plugins.object_quota.subjects import QuotaSubject
from ostiary.plugins.object_quota.tallies import Tallies
from ostiary.plugins.object_quota.tally import Amounts, minus

CREATED = 201


class NoHold:
    """For a request that stores nothing."""

    wants_body = False

    async def settle(self, result: WriteResult) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Charge:
    """What one subject is charged. `before` is what the object counted before the request, None if there was none.

    `expected` is what it will count. `span` is None if nothing had to be reserved: then only a creation that was not
    expected is charged.
    """

    limit: ObjectLimit
    subject: QuotaSubject
    reserved: Amounts
    before: Amounts | None
    expected: Amounts
    span: int | None


class Ownership:
    """What is remembered of who makes an object, until it is made.

    `intent` is None where the object is there and will be changed: it is written down with *intend* if the request has
    created the object, because it was gone by then.
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
        """An intent whose object is not known stays, for the next list to find it."""
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
    """For a request that stores or changes one object."""

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
            # Before it is no longer open: a list that is adopted after that must find the owner.
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
        """The request is not sent."""
        await self.settle(WriteResult(WriteOutcome.NOT_DONE))

    async def _settle_done(self, charge: Charge, status: int, document: object) -> None:
        after = _stored_amounts(charge, document)
        before = charge.before
        if before is not None and status == CREATED:
            # It was gone by the time the request came.
            before = None
        elif before is None and status != CREATED and charge.span is not None:
            # Somebody else has created it in between, and it is counted as theirs.
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
    """For a request that deletes. What is free because of it is what the next list no longer has.

    The answer does not tell: an object with finalizers or a grace period is still there.
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
    """What the upstream says it has stored; what it said it would store, if its answer cannot be read."""
    if not charge.limit.sums or not isinstance(document, dict):
        return charge.expected
    try:
        if document.get("kind") == "Scale" and charge.before is not None:
            return measure_scale(charge.limit, document, charge.before)
        return measure(charge.limit, document)
    except NotCountable:
        return charge.expected
