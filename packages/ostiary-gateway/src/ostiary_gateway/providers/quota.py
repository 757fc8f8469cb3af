"""Admission by quota: limits on the number of requests in a time window, and on the size of bodies.

    matching limits  ->  is there room in all of them?  ->  count  ->  settled: a failed request does not count

All workers of a machine share the counts. Windows slide: at no moment have more than `count` requests been admitted in
the window before it, because a request expires up to a sixtieth of the window late, and never early. Replicas on
several machines exchange their counts every half second; in that time, each worker on a further machine may admit the
requests that reach it in excess of the limit.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Self

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.yaml import ConfigSection, Json
from ostiary.model import Attributes, RequestInfo
from ostiary_gateway.catalog import Context
from ostiary_gateway.interfaces.admission import Admission
from ostiary_gateway.interfaces.shared_counts import Change, CountsFull, ImmediateCounts, State
from ostiary_gateway.limits.counts import MemoryCounts
from ostiary_gateway.providers.common.field_path import Condition
from ostiary_gateway.settings.declare import read_settings
from ostiary_gateway.settings.kinds import Duration, Integer, SettingKind, Text, Word
from ostiary_gateway.settings.sections import Sections

# Number of slices of a window, which expire one by one. The state of a window is the number of its first slice, and the
# count of requests in that one and each one that follows.
PARTS = 60


def _recent(state: State, oldest: int) -> tuple[int, list[float]]:
    """Return the first slice and the counts from the slice *oldest* on, without leading zeros."""
    first, counts = (int(state[0]), list(state[1:])) if state else (oldest, [])
    first, counts = max(first, oldest), counts[max(0, oldest - first) :]
    while counts and not counts[0]:
        first += 1
        counts.pop(0)
    return first, counts


class LimitWindows:
    """The windows of one limit, by key. When there are too many keys, new ones are denied and no old ones evicted.

    `settled` does not identify one of several equal requests. So a failure settles the oldest of them and a success the
    newest: in either case, what stays counted stays counted long enough.

    Implements `ostiary_gateway.interfaces.shared_counts.Reconciles`.
    """

    wide = True

    def __init__(self, count: int, seconds: float, counts: ImmediateCounts, name: str) -> None:
        self._count, self._seconds = count, seconds
        self._shared = counts
        self._prefix = f"quota/{name}/"
        self._part_seconds = self._seconds / PARTS
        # The slices of the requests that this worker has admitted and that have no response yet.
        self._unsettled: dict[str, deque[int]] = {}

    def add(self, key: str) -> tuple[float, int]:
        """Count one request and return zero; or return the seconds until there is room, and the current count."""
        if not self._count:
            return self._seconds, 0
        try:
            wait, in_use, part = self._shared.update_now(self._prefix + key, self._add, wide=True)
        except CountsFull:
            return self._part_seconds, 0
        if not wait:
            self._unsettled.setdefault(key, deque()).append(part)
            self._shared.report(self._prefix + key, self, part=part)
        return wait, in_use

    def take_back(self, key: str) -> None:
        """Undo the last count: another limit denied the request."""
        part = self._pop(key, newest=True)
        if part is not None:
            self._subtract(key, partial(self._remove, part))

    def settle(self, key: str, *, refused: bool) -> None:
        part = self._pop(key, newest=not refused)
        if part is not None and refused:
            # Any of them may be the one that failed, so remove the one that would expire first.
            self._subtract(key, partial(self._remove_oldest, part))

    def _subtract(self, key: str, change: Change[int | None]) -> None:
        part = self._shared.update_now(self._prefix + key, change, wide=True)
        if part is not None:
            self._shared.report(self._prefix + key, self, -1.0, part=part)

    def _pop(self, key: str, *, newest: bool) -> int | None:
        unsettled = self._unsettled.get(key)
        if not unsettled:
            return None
        part = unsettled.pop() if newest else unsettled.popleft()
        if not unsettled:
            del self._unsettled[key]
        return part

    def __len__(self) -> int:
        assert isinstance(self._shared, MemoryCounts), "the counts of other workers are unknown"
        return len(self._shared)

    # --- changes of a window ---

    def _add(self, state: State, now: float) -> tuple[State, float, tuple[float, int, int]]:
        part = int(now // self._part_seconds)
        first, counts = _recent(state, part - PARTS)
        total = int(sum(counts))
        if total >= self._count:
            leaves_at = (first + PARTS + 1) * self._part_seconds
            return *self._pack_window(first, counts, now), (max(leaves_at - now, 0.001), total, part)
        # After a clock correction the time may be before the first slice: then count the request in that one.
        part = max(part, first)
        first = first if counts else part
        counts += [0.0] * (part - first + 1 - len(counts))
        counts[part - first] += 1
        return *self._pack_window(first, counts, now), (0.0, total, part)

    def _remove(self, part: int, state: State, now: float) -> tuple[State, float, int | None]:
        """Remove a request from the slice *part*. Return *part*, or None if the slice has no requests."""
        first, counts = _recent(state, int(now // self._part_seconds) - PARTS)
        is_there = first <= part < first + len(counts) and counts[part - first] > 0
        if is_there:
            counts[part - first] -= 1
        return *self._pack_window(first, counts, now), part if is_there else None

    def _remove_oldest(self, part: int, state: State, now: float) -> tuple[State, float, int | None]:
        """Remove a request from the oldest slice. Return that slice, or None if there is none."""
        first, counts = _recent(state, int(now // self._part_seconds) - PARTS)
        # A request that has already expired must not reduce the count of the others.
        is_there = bool(counts) and part >= first
        if is_there:
            counts[0] -= 1
        return *self._pack_window(first, counts, now), first if is_there else None

    def _pack_window(self, first: int, counts: list[float], now: float) -> tuple[State, float]:
        while counts and not counts[-1]:
            counts.pop()
        if not counts:
            return (), 0.0
        until = (first + len(counts) + PARTS) * self._part_seconds
        return (float(first), *counts), until - now

    # --- several replicas ---

    def charge(self, shared: State, now: float, amounts: Mapping[int, float]) -> tuple[State, float]:
        """Count the requests that were admitted, even beyond the limit."""
        newest = int(now // self._part_seconds)
        first, counts = _recent(shared, newest - PARTS)
        window = {first + number: count for number, count in enumerate(counts)}
        for part, amount in amounts.items():
            if part >= newest - PARTS:
                # Another machine's clock may be ahead.
                place = min(part, newest)
                window[place] = max(0.0, window.get(place, 0.0) + amount)
        if not window:
            return (), 0.0
        first = min(window)
        return self._pack_window(first, [window.get(part, 0.0) for part in range(first, max(window) + 1)], now)

    def adopt(self, local: State, now: float, *, shared: State, unsettled: Mapping[int, float]) -> tuple[State, float]:
        """Return the window of all replicas plus what this worker has counted since."""
        return self.charge(shared, now, unsettled)


BY = ("user", "namespace", "everyone")
KEY_LIMIT = 10_000
# The maximum Retry-After: clients wait for as long as it says.
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

    def read(self, fields: ConfigSection, key: str, directory: Path) -> int | None:
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
    """One limit. An empty condition matches every request.

    A resource is written ``pods``, ``pods/exec`` or ``deployments.apps``; without a group it matches any group.
    *by* is what has a count: each user, each namespace, or everyone together.
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

    def check(self, fields: ConfigSection) -> None:
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
    """Return all notations for the resource of a request."""
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
    """Deny requests that exceed a limit: with 429 if there is room again within a minute, else with 403."""

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
    def from_config(cls, fields: ConfigSection, context: Context) -> Self:
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
                # A request that one limit denies is not charged to the others.
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
    """Count the request and return None, or return the denial if the limit is reached."""
    limit = counted.limit
    if limit.count is None:
        return None
    seconds, in_use = counted.windows.add(limit.key(attributes))
    if not seconds:
        return None
    usage = f"used: requests={in_use}, limited: requests={limit.count}"
    reason = f"exceeded quota: {limit.name}, requested: requests=1, {usage}"
    return Admission(False, reason, retry_after=seconds if limit.count and seconds <= LONGEST_RETRY else None)
