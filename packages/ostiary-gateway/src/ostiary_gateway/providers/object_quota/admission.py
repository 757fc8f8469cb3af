"""Admission by object quota: limits on the number of objects and on sums of their fields, per namespace, user or group.

    covered?  ->  what would it store?  ->  reserve, or deny after listing the upstream  ->  forward  ->  settle

The counts are shared by all workers and replicas, and each change is exact (`tallies`). They are compared with lists of
the upstream (`reconcile`), which alone show what has become free. No request is denied because of an old list.
"""

from __future__ import annotations

from typing import Self

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.yaml import ConfigSection
from ostiary.model import Attributes, UserInfo
from ostiary_gateway.catalog import Context
from ostiary_gateway.interfaces.admission import (
    Admission,
    CountingFigures,
    Hold,
    SubjectUsage,
    UpstreamAnswer,
    UpstreamApi,
    WriteRequest,
)
from ostiary_gateway.interfaces.shared_counts import SharedCounts
from ostiary_gateway.limits.counts import MemoryCounts
from ostiary_gateway.providers.object_quota.charging import (
    ATTEMPTS,
    Charging,
    DeleteHold,
    NoHold,
    OutdatedRefusal,
    QuotaExceeded,
    list_subject,
)
from ostiary_gateway.providers.object_quota.listing import Listing, is_dry_run
from ostiary_gateway.providers.object_quota.measure import NotCountable, format_amounts, item_names
from ostiary_gateway.providers.object_quota.owners import Owners
from ostiary_gateway.providers.object_quota.reconcile import Reconciliation
from ostiary_gateway.providers.object_quota.settings import ObjectLimit, ObjectQuotaSettings
from ostiary_gateway.providers.object_quota.subjects import (
    ObjectOwner,
    QuotaSubject,
    covers,
    deletes,
    needs_content,
    subjects,
)
from ostiary_gateway.providers.object_quota.tallies import Tallies
from ostiary_gateway.providers.object_quota.tally import Amounts
from ostiary_gateway.settings.declare import read_settings

# The limit of kube-apiserver.
LARGEST_BODY = 3 * 1024 * 1024
_ADMITTED = Admission(admitted=True)


class ObjectQuota:
    """The object quota of one provider. Implements `ostiary_gateway.interfaces.admission.CountsObjects`."""

    largest_body = LARGEST_BODY

    def __init__(
        self,
        settings: ObjectQuotaSettings,
        *,
        clock: Clock = SYSTEM_CLOCK,
        counts: SharedCounts | None = None,
        name: str = "",
    ) -> None:
        self._limits = settings.limits
        self._tallies = Tallies(MemoryCounts(clock=clock) if counts is None else counts, name)
        by_name = {limit.name: limit for limit in settings.limits}
        listing = Listing(UserInfo(settings.list_as) if settings.list_as else None)
        groups = frozenset(group for limit in settings.limits for group in limit.groups)
        self._owners = Owners(name, clock, groups)
        self._reconciliation = Reconciliation(
            by_name, self._tallies, listing, self._owners, interval=settings.interval.total_seconds(), clock=clock
        )

    @classmethod
    def from_config(cls, fields: ConfigSection, context: Context) -> Self:
        settings = read_settings(ObjectQuotaSettings, fields, context.directory)
        return cls(settings, clock=context.clock, counts=context.counts, name=context.name)

    # --- AdmissionProvider: always admits, because the decision is made in `reserve` ---

    def admit(self, attributes: Attributes, *, size: int | None) -> Admission:
        return _ADMITTED

    def settled(self, attributes: Attributes, *, status: int) -> None:
        pass

    # --- counting objects ---

    def covers(self, attributes: Attributes) -> bool:
        return any(covers(limit, attributes) for limit in self._limits)

    def needs_body(self, attributes: Attributes) -> bool:
        return not deletes(attributes.request) and needs_content(self._covering(attributes))

    async def reserve(self, request: WriteRequest, api: UpstreamApi) -> Hold | Admission | UpstreamAnswer:
        attributes = request.attributes
        limits = self._covering(attributes)
        if is_dry_run(request.target):
            return NoHold()
        if deletes(attributes.request):
            # The owner is unknown. Usually it is the requester; if not, the next list corrects it.
            owner = ObjectOwner(attributes.user.username, attributes.user.groups)
            info = attributes.request
            charged = [
                subject
                for limit in limits
                for subject in subjects(limit, upstream=info.upstream, namespace=info.object_namespace, owner=owner)
            ]
            return DeleteHold(charged, self._tallies, self._reconciliation)
        for attempt in range(ATTEMPTS):
            try:
                return await Charging(request, limits, api, self._tallies, self._reconciliation, self._owners).charge()
            except OutdatedRefusal as error:
                if attempt == ATTEMPTS - 1:
                    return Admission(False, str(error))
                await list_subject(self._reconciliation, error.subject, api, attempt)
            except (QuotaExceeded, NotCountable) as error:
                return Admission(False, str(error))
        raise AssertionError("the last attempt returns")

    async def reconcile(self, api: UpstreamApi) -> None:
        await self._reconciliation.run(api)

    async def usage(self, api: UpstreamApi) -> list[SubjectUsage]:
        rows = []
        for limit in self._limits:
            for upstream in api.upstreams:
                totals = await self._reconciliation.usage(limit, upstream, api)
                for subject, amounts in sorted(totals.items(), key=lambda each: each[0].key):
                    rows += _usage_rows(limit, subject, amounts)
        return rows

    def figures(self) -> CountingFigures:
        return self._reconciliation.figures()

    # --- internals ---

    def _covering(self, attributes: Attributes) -> list[ObjectLimit]:
        return [limit for limit in self._limits if covers(limit, attributes)]


def _usage_rows(limit: ObjectLimit, subject: QuotaSubject, amounts: Amounts) -> list[SubjectUsage]:
    bounds = format_amounts(limit, tuple(most or 0 for most in limit.limits))
    return [
        SubjectUsage(limit.name, subject.upstream, str(subject), name, amount, ceiling)
        for name, amount, ceiling, most in zip(
            item_names(limit), format_amounts(limit, amounts), bounds, limit.limits, strict=True
        )
        if most is not None
    ]
