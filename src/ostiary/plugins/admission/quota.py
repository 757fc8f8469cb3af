"""Admission by quota: so many requests of a kind in a span of time, and none with a larger body than this.

    matching limits  ->  is there room in all of them?  ->  count  ->  settled: a refused request does not count

Called by the gateway after authorization. The counts are in memory and each worker has its own, so with several
workers a limit is meant per worker. A span slides: at no moment have more than `count` requests been admitted in the
span before it, since a request is forgotten up to a sixtieth of the span later than it had to be, and never earlier.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Self

from ostiary.core.catalog import Context
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.config import Fields
from ostiary.interfaces.admission import Admission
from ostiary.model import Attributes, RequestInfo

BY = ("user", "namespace", "everyone")
PARTS = 60
KEY_LIMIT = 10_000
# A client that is told to try again waits as long as it is told. Nobody is left waiting for longer than this.
LONGEST_RETRY = 60.0
_QUANTITY = re.compile(r"([0-9]{1,18})(k|M|G|T|Ki|Mi|Gi|Ti)?")
_POWERS = {"k": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4}
_POWERS |= {"Ki": 1024, "Mi": 1024**2, "Gi": 1024**3, "Ti": 1024**4}
_ADMITTED = Admission(admitted=True)


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit. An empty condition is met by every request.

    A resource is written ``pods``, ``pods/exec`` or ``deployments.apps``; without a group it is meant in any group.
    *by* says who shares a count: each user has one, or each namespace, or there is one for everyone.
    """

    name: str
    count: int | None = None
    per: timedelta = timedelta(hours=1)
    by: str = "user"
    largest_body: int | None = None
    users: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    namespaces: frozenset[str] = frozenset()
    verbs: frozenset[str] = frozenset()
    resources: frozenset[str] = frozenset()

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


def _names(request: RequestInfo) -> tuple[str, ...]:
    """All the ways to write the resource of a request."""
    if not request.is_resource:
        return ()
    subresource = f"/{request.subresource}" if request.subresource else ""
    own = request.resource + subresource
    return (own, f"{request.resource}.{request.api_group}{subresource}", "*")


class _Window:
    """How many requests there were in each sixtieth of the span, the oldest first, and which are not settled yet.

    Which of several equal requests is being settled is not told. So a refusal is taken for the oldest of them and a
    success for the newest: whatever the truth is, what stays counted stays for long enough.
    """

    __slots__ = ("parts", "total", "unsettled")

    def __init__(self) -> None:
        self.parts: deque[list[int]] = deque()
        self.unsettled: deque[int] = deque()
        self.total = 0

    def forget_before(self, part: int) -> None:
        while self.parts and self.parts[0][0] < part:
            self.total -= self.parts.popleft()[1]

    def add(self, part: int) -> None:
        if self.parts and self.parts[-1][0] == part:
            self.parts[-1][1] += 1
        else:
            self.parts.append([part, 1])
        self.total += 1
        self.unsettled.append(part)

    def succeeded(self) -> None:
        if self.unsettled:
            self.unsettled.pop()

    def refused(self) -> None:
        """One of them does not count after all, unless it has been forgotten anyway."""
        if not self.unsettled:
            return
        part = self.unsettled.popleft()
        if self.parts and part >= self.parts[0][0]:
            self.total -= 1
            self.parts[0][1] -= 1
            if not self.parts[0][1]:
                self.parts.popleft()


class _Counts:
    """The windows of one limit, by key. When there are too many keys, new ones are refused, not old ones forgotten."""

    def __init__(self, limit: Limit, clock: Clock, key_limit: int) -> None:
        self.limit = limit
        self._clock, self._key_limit = clock, key_limit
        self._part_seconds = limit.per.total_seconds() / PARTS
        self._windows: dict[str, _Window] = {}
        self._swept = -1

    def seconds_until_room(self, key: str) -> float:
        """Zero if there is room for one more."""
        if not self.limit.count:
            return self.limit.per.total_seconds()
        window = self._windows.get(key)
        if window is None:
            return self._part_seconds if self._is_full() else 0.0
        window.forget_before(self._oldest())
        if window.total < self.limit.count:
            return 0.0
        leaves_at = (window.parts[0][0] + PARTS + 1) * self._part_seconds
        return max(leaves_at - self._clock.monotonic(), 0.001)

    def used(self, key: str) -> int:
        window = self._windows.get(key)
        return window.total if window else 0

    def add(self, key: str) -> None:
        self._windows.setdefault(key, _Window()).add(self._now())

    def settle(self, key: str, *, refused: bool) -> None:
        window = self._windows.get(key)
        if window is None:
            return
        window.forget_before(self._oldest())
        if refused:
            window.refused()
        else:
            window.succeeded()
        if not window.parts and not window.unsettled:
            del self._windows[key]

    def __len__(self) -> int:
        return len(self._windows)

    def _is_full(self) -> bool:
        if len(self._windows) < self._key_limit:
            return False
        if self._swept == self._now():
            # Nothing can have been forgotten since, and looking at all of them takes time.
            return True
        self._swept = self._now()
        for key, window in list(self._windows.items()):
            window.forget_before(self._oldest())
            if not window.parts and not window.unsettled:
                del self._windows[key]
        return len(self._windows) >= self._key_limit

    def _now(self) -> int:
        return int(self._clock.monotonic() // self._part_seconds)

    def _oldest(self) -> int:
        return self._now() - PARTS


class RequestQuota:
    """Refuses what exceeds a limit: with 429 if there is room again within a minute, else with 403."""

    def __init__(self, limits: Sequence[Limit], *, clock: Clock = SYSTEM_CLOCK, key_limit: int = KEY_LIMIT) -> None:
        self._limits = tuple(_Counts(limit, clock, key_limit) for limit in limits)

    @classmethod
    def from_config(cls, fields: Fields, context: Context) -> Self:
        limits = [_limit(section, index) for index, section in enumerate(fields.sections("limits"))]
        if not limits:
            fields.problem("there must be a limit", "limits")
        if len({limit.name for limit in limits}) < len(limits):
            fields.problem("two limits have the same name", "limits")
        return cls(limits, clock=context.clock)

    def admit(self, attributes: Attributes, *, size: int | None) -> Admission:
        matching = [counts for counts in self._limits if counts.limit.matches(attributes)]
        for counts in matching:
            refusal = _too_large(counts.limit, size) or _used_up(counts, attributes)
            if refusal is not None:
                return refusal
        # Counted only now: a request that one limit refuses is not charged to the others.
        for counts in matching:
            if counts.limit.count is not None:
                counts.add(counts.limit.key(attributes))
        return _ADMITTED

    def settled(self, attributes: Attributes, *, status: int) -> None:
        for counts in self._limits:
            if counts.limit.count is not None and counts.limit.matches(attributes):
                counts.settle(counts.limit.key(attributes), refused=status >= 400)


def _too_large(limit: Limit, size: int | None) -> Admission | None:
    largest = limit.largest_body
    if largest is None or (size is not None and size <= largest):
        return None
    if size is None:
        return Admission(False, f"exceeded quota: {limit.name}, the length of the body must be announced")
    return Admission(False, f"exceeded quota: {limit.name}, requested: bytes={size}, limited: bytes={largest}")


def _used_up(counts: _Counts, attributes: Attributes) -> Admission | None:
    limit = counts.limit
    if limit.count is None:
        return None
    key = limit.key(attributes)
    seconds = counts.seconds_until_room(key)
    if not seconds:
        return None
    used = f"used: requests={counts.used(key)}, limited: requests={limit.count}"
    reason = f"exceeded quota: {limit.name}, requested: requests=1, {used}"
    return Admission(False, reason, retry_after=seconds if limit.count and seconds <= LONGEST_RETRY else None)


# --- the configuration ---


def _limit(fields: Fields, index: int) -> Limit:
    count, per, by = fields.optional_integer("count"), fields.optional_duration("per"), fields.string("by") or "user"
    largest_body = _quantity(fields, "maxBytes")
    if count is None and largest_body is None:
        fields.problem("a limit needs count, maxBytes, or both")
    if count is not None and count < 0:
        fields.problem("it must not be negative", "count")
    if per is not None and per < timedelta(seconds=1):
        fields.problem("it must be a second at least", "per")
        per = None
    if by not in BY:
        fields.problem(f"expected one of {', '.join(BY)}", "by")
    return Limit(
        name=fields.string("name") or f"limit-{index + 1}",
        count=count,
        per=per or timedelta(hours=1),
        by=by,
        largest_body=largest_body,
        users=_condition(fields, "users"),
        groups=_condition(fields, "groups"),
        namespaces=_condition(fields, "namespaces"),
        verbs=_condition(fields, "verbs"),
        resources=_condition(fields, "resources"),
    )


def _condition(fields: Fields, key: str) -> frozenset[str]:
    values = fields.strings(key)
    # Left out it means everybody; written down and empty, somebody meant nobody, or forgot to fill it in.
    if key in fields and not values:
        fields.problem("an empty list would be met by every request", key, "leave it out if that is meant")
    return frozenset(values)


def _quantity(fields: Fields, key: str) -> int | None:
    value = fields.plain(key)
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    found = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        fields.problem("expected a number of bytes, as in 65536, 64Ki or 1Mi", key)
        return None
    return int(found[1]) * _POWERS.get(found[2] or "", 1)
