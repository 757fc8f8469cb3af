"""Admission by quota: at most so many requests of a kind in a span of time, and no larger bodies than so many bytes.

    matching limits  ->  is there room in all of them?  ->  count  ->  settled: a refused request does not count

Called by the gateway after authorization. All workers of a machine count together. A span slides: at no moment have
more than `count` requests been admitted in the span before it, since a request is forgotten up to a sixtieth of the
span later than it had to be, and never earlier. Replicas on several machines tell each other what they counted every
half second; each worker of a further one may admit what reaches it in that time, once more.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Self

from ostiary.core.catalog import Context
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.config import Fields, Json
from ostiary.core.counting.counts import MemoryCounts
from ostiary.core.settings.declare import read_settings
from ostiary.core.settings.kinds import Duration, Integer, SettingKind, Text, Word
from ostiary.core.settings.sections import Sections
from ostiary.interfaces.admission import Admission
from ostiary.interfaces.shared_counts import ImmediateCounts
from ostiary.model import Attributes, RequestInfo
from ostiary.plugins.common.conditions import Condition
from ostiary.plugins.quota.windows import LimitWindows

BY = ("user", "namespace", "everyone")
KEY_LIMIT = 10_000
# The longest Retry-After: a client waits for as long as it says.
LONGEST_RETRY = 60.0
_QUANTITY = re.compile(r"([0-9]{1,18})(k|M|G|T|Ki|Mi|Gi|Ti)?")
_POWERS = {"k": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4}
_POWERS |= {"Ki": 1024, "Mi": 1024**2, "Gi": 1024**3, "Ti": 1024**4}
_ADMITTED = Admission(admitted=True)


@dataclass(frozen=True)
class ByteCount(SettingKind[int]):
    """A number of bytes, with or without a unit."""

    @property
    def label(self) -> str:
        return "bytes, as in `65536`, `64Ki` or `1Mi`"

    def read(self, fields: Fields, key: str, directory: Path) -> int | None:
        value = fields.plain(key)
        if value is None:
            return None
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
        match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            fields.problem("expected a number of bytes, as in 65536, 64Ki or 1Mi", key)
            return None
        return int(match[1]) * _POWERS.get(match[2] or "", 1)

    def schema(self) -> dict[str, Json]:
        return {"type": ["integer", "string"], "minimum": 0, "pattern": f"^{_QUANTITY.pattern}$"}

    def blank(self) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit. An empty condition is met by every request.

    A resource is written ``pods``, ``pods/exec`` or ``deployments.apps``; without a group it is meant in any group.
    *by* says who shares a count: each user has one, or each namespace, or there is one for everyone.
    """

    name: Annotated[str, Text("told to whoever is refused", empty="", unset="`limit-1`, `limit-2`, ...")] = ""
    count: Annotated[
        int | None, Integer("so many requests", least=0, mistake="it must not be negative", unset="no limit")
    ] = None
    per: Annotated[
        timedelta,
        Duration("within this time", least=timedelta(seconds=1), mistake="it must be at least one second"),
    ] = timedelta(hours=1)
    by: Annotated[
        str, Word("who shares the count", BY, mistake=f"expected one of {', '.join(BY)}", hint="", empty="")
    ] = "user"
    largest_body: Annotated[int | None, ByteCount("the largest body", name="maxBytes", unset="no limit")] = None
    users: Annotated[frozenset[str], Condition("for these users", unset="all")] = frozenset()
    groups: Annotated[frozenset[str], Condition("for these groups", unset="all")] = frozenset()
    namespaces: Annotated[frozenset[str], Condition("in these namespaces", unset="all")] = frozenset()
    verbs: Annotated[frozenset[str], Condition("for these verbs", unset="all")] = frozenset()
    resources: Annotated[frozenset[str], Condition("for these resources", unset="all")] = frozenset()

    def check(self, fields: Fields) -> None:
        if self.count is None and self.largest_body is None and fields.is_right("count", "maxBytes"):
            fields.problem("a limit needs count, maxBytes, or both")

    def matches(self, attributes: Attributes) -> bool:
        user, request = attributes.user, attributes.request
        if (self.users or self.groups) and not self._names_user(user.username, user.groups):
            return False
        if self.verbs and request.verb not in self.verbs:
            return False
        if self.namespaces and request.namespace not in self.namespaces:
            return False
        return not self.resources or any(name in self.resources for name in _names(request))

    def _names_user(self, username: str, groups: Sequence[str]) -> bool:
        return username in self.users or not self.groups.isdisjoint(groups)

    def key(self, attributes: Attributes) -> str:
        if self.by == "user":
            return attributes.user.username
        return attributes.request.namespace if self.by == "namespace" else ""


@dataclass(frozen=True, slots=True)
class QuotaSettings:
    """The settings of the admission provider ``quota``."""

    limits: Annotated[
        tuple[Limit, ...],
        Sections(
            "the limits; each one that matches a request counts",
            Limit,
            "One limit.",
            least=1,
            missing="there must be a limit",
        ),
    ]


def _names(request: RequestInfo) -> tuple[str, ...]:
    """All the ways to write the resource of a request."""
    if not request.is_resource:
        return ()
    subresource = f"/{request.subresource}" if request.subresource else ""
    own = request.resource + subresource
    return (own, f"{request.resource}.{request.api_group}{subresource}", "*")


@dataclass(frozen=True, slots=True)
class _CountedLimit:
    limit: Limit
    windows: LimitWindows


class RequestQuota:
    """Refuses what exceeds a limit: with 429 if there is room again within a minute, else with 403."""

    def __init__(
        self,
        limits: Sequence[Limit],
        *,
        clock: Clock = SYSTEM_CLOCK,
        key_limit: int = KEY_LIMIT,
        counts: ImmediateCounts | None = None,
        name: str = "",
    ) -> None:
        shared = MemoryCounts(clock=clock, wide_limit=key_limit) if counts is None else counts
        self._limits = tuple(
            _CountedLimit(
                limit, LimitWindows(limit.count or 0, limit.per.total_seconds(), shared, f"{name}/{limit.name}")
            )
            for limit in limits
        )

    @classmethod
    def from_config(cls, fields: Fields, context: Context) -> Self:
        settings = read_settings(QuotaSettings, fields, context.directory)
        limits = [
            replace(limit, name=limit.name or f"limit-{number}")
            for number, limit in enumerate(settings.limits, start=1)
        ]
        if len({limit.name for limit in limits}) < len(limits):
            fields.problem("two limits have the same name", "limits")
        return cls(limits, clock=context.clock, counts=context.counts, name=context.name)

    def admit(self, attributes: Attributes, *, size: int | None) -> Admission:
        matching = [each for each in self._limits if each.limit.matches(attributes)]
        counted: list[_CountedLimit] = []
        for each in matching:
            refusal = _too_large(each.limit, size) or _refusal_if_full(each, attributes)
            if refusal is not None:
                # A request that one limit refuses is not charged to the others.
                for other in counted:
                    other.windows.take_back(other.limit.key(attributes))
                return refusal
            if each.limit.count is not None:
                counted.append(each)
        return _ADMITTED

    def settled(self, attributes: Attributes, *, status: int) -> None:
        for each in self._limits:
            if each.limit.count is not None and each.limit.matches(attributes):
                each.windows.settle(each.limit.key(attributes), refused=status >= 400)


def _too_large(limit: Limit, size: int | None) -> Admission | None:
    largest = limit.largest_body
    if largest is None or (size is not None and size <= largest):
        return None
    if size is None:
        return Admission(False, f"exceeded quota: {limit.name}, the length of the body must be announced")
    return Admission(False, f"exceeded quota: {limit.name}, requested: bytes={size}, limited: bytes={largest}")


def _refusal_if_full(counted: _CountedLimit, attributes: Attributes) -> Admission | None:
    """None if there was room, and it is counted."""
    limit = counted.limit
    if limit.count is None:
        return None
    seconds, in_use = counted.windows.add(limit.key(attributes))
    if not seconds:
        return None
    usage = f"used: requests={in_use}, limited: requests={limit.count}"
    reason = f"exceeded quota: {limit.name}, requested: requests=1, {usage}"
    return Admission(False, reason, retry_after=seconds if limit.count and seconds <= LONGEST_RETRY else None)
