"""Plan templates: reuse the plan of one object for other objects of the same kind whose names do not matter.

    GET /api/v1/namespaces/shop/pods/web-1              planned in full, and stored as a template without the name
    GET /api/v1/namespaces/shop/pods/web-2              the same plan with the other name in target and audit events
    GET /api/v1/namespaces/shop/pods?resourceVersion=7  the same plan as for another number

A template is stored only if no provider, token scope, step-up rule or audit policy distinguishes names.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from ostiary.core.bounded_cache import BoundedByOwner, seen_recently
from ostiary.model import RequestInfo
from ostiary_gateway.audit.auditor import PreparedForObjects
from ostiary_gateway.authentication.token_cache import KnownUser
from ostiary_gateway.http1.request_head import RequestHead
from ostiary_gateway.proxy.authorizer import RequestAuthorizer
from ostiary_gateway.proxy.context import RequestPlan
from ostiary_gateway.proxy.plan_cache import Planner, Plans
from ostiary_gateway.proxy.resolver import ResolvedRoute
from ostiary_gateway.proxy.upstreams import Upstream

ALIKE_BYTES = 4 * 1024 * 1024
ALIKE_BYTES_PER_USER = 512 * 1024
_FIXED_BYTES = 600

# The text before the name, the name, and the text after it, as `SplitsNames` returns them.
Parts = tuple[str, str, str]

# The names that `SplitsNames` allows, without characters that could split or change a path.
_NAME = re.compile(rb"[a-z0-9](?:[a-z0-9.\-]{0,251}[a-z0-9])?").fullmatch
# The complete value of a parameter.
_NUMBER = re.compile(rb"(?<==)[0-9]{1,18}(?![^&])")
# Placeholder for a number. Unambiguous, because in a target it would begin a fragment.
_ANY_NUMBER = b"#"


class AlikeTarget(NamedTuple):
    """What all targets of one shape have in common. `path` and `name` are empty if the name is what differs."""

    upstream: Upstream
    before: str
    after: str
    path: str
    name: str


class AlikeTargets:
    """Cache the shapes of targets, so that a target with a cached shape needs no parsing and no routing.

    A shape determines the route and the position of the name; it says nothing about permissions. It is cached only if
    every target of that shape has the same route, and the mapper promises to parse it in the same way (`SplitsNames`).
    *go_alike* returns whether all paths that are one segment longer have the same route. Bounded in bytes, per user and
    in total.
    """

    def __init__(self, go_alike: Callable[[str], bool]) -> None:
        self._go_alike = go_alike
        # None: targets of this shape must be parsed.
        self._kept: BoundedByOwner[tuple[bytes, bytes], AlikeTarget | None] = BoundedByOwner(
            ALIKE_BYTES, ALIKE_BYTES_PER_USER
        )

    def find(self, request: RequestHead) -> tuple[AlikeTarget, str] | None:
        """Return the entry for the target's shape and the name in the target; None if the target must be parsed."""
        shape, name = _shape(request.target)
        alike = self._kept.get((request.host, shape))
        return None if alike is None else (alike, name.decode("ascii") or alike.name)

    def keep(self, request: RequestHead, location: ResolvedRoute, parts: Parts, *, owner: str) -> None:
        """Cache the shape of a target. *parts* are the mapper's."""
        upstream = location.upstream
        # The client sent an absolute URL, which differs from the forwarded target.
        if upstream is None or location.target is not request.target:
            return
        shape, name = _shape(request.target)
        key = request.host, shape
        if not shape or key in self._kept:
            return
        alike = None
        if self._are_alike(upstream, location, parts, name):
            before, its_name, after = parts
            path = upstream.mapped_path(location.path)
            alike = AlikeTarget(upstream, before, after, *(("", "") if name else (path, its_name)))
        self._kept.keep(key, alike, owner=owner, size=_FIXED_BYTES + 4 * len(shape))

    def _are_alike(self, upstream: Upstream, location: ResolvedRoute, parts: Parts, name: bytes) -> bool:
        if name:
            # The mapper must have reported the last segment, the only part that differs, as the name.
            its_name = name.decode("ascii")
            is_last = parts[1:] == (its_name, "")
            return is_last and self._go_alike(location.path.removesuffix(its_name))
        split_name = upstream.split_name
        query = _NUMBER.sub(_another_number, location.query.encode("ascii")).decode("ascii")
        return split_name is not None and split_name(upstream.mapped_path(location.path), query) == parts

    def clear(self) -> None:
        self._kept.clear()

    def __len__(self) -> int:
        return len(self._kept)


def _shape(target: bytes) -> tuple[bytes, bytes]:
    """Return *target* without its variable part, and the name; empty if no part may vary.

    In a target with a query only the numbers of the query vary, and the name is empty.
    """
    path, mark, query = target.partition(b"?")
    if mark:
        shape = _NUMBER.sub(_ANY_NUMBER, query)
        return (b"", b"") if shape == query else (b"%b?%b" % (path, shape), b"")
    before, _, name = path.rpartition(b"/")
    return (before, name) if _NAME(name) else (b"", b"")


def _another_number(number: re.Match[bytes]) -> bytes:
    return b"8" if number[0] == b"9" else b"9"


OBJECT_PLAN_BYTES = 16 * 1024 * 1024
OBJECT_PLAN_BYTES_PER_USER = 2 * 1024 * 1024
# Number of recent targets per template. A target that repeats gets a plan of its own.
MOST_TARGETS = 64
_TARGET_BYTES = 100

_Key = tuple[KnownUser, Upstream, bytes, str, str]


class ObjectPlans:
    """The plan templates of one engine; empty if *shortcuts* is false.

    Templates are used for request lines without a plan, after the target was checked and routed. The mapper must know
    which part of the line is the name (`SplitsNames`), every provider that the decision depends on must declare names
    irrelevant (`NameIndependent`), and so must token scope, step-up rules and audit policy. The decision of the
    template applies with its time and generation. When it expires, the policy is queried with the same attributes
    again; if the result differs, the next request is planned in full. Bounded in bytes, per user and in total.
    """

    def __init__(
        self, planner: Planner, plans: Plans, judge: RequestAuthorizer, alike: AlikeTargets, *, shortcuts: bool = True
    ) -> None:
        self._planner, self._plans, self._judge, self._alike = planner, plans, judge, alike
        self._shortcuts = shortcuts
        self._kept: BoundedByOwner[_Key, _PlanWithGaps] = BoundedByOwner(OBJECT_PLAN_BYTES, OBJECT_PLAN_BYTES_PER_USER)

    def find(self, user: KnownUser, request: RequestHead, location: ResolvedRoute, now: float) -> RequestPlan | None:
        """Return the plan for a request of *user* from a template that is valid at *now*, or None."""
        filled = self._fill(user, request, location, now)
        if filled is None:
            return None
        plan = filled.whole_plan()
        if filled.seen_recently():
            self._plans.keep(user, request, plan)
        return plan

    def fill(self, user: KnownUser, request: RequestHead, location: ResolvedRoute, now: float) -> FilledGaps | None:
        """Like `find`, but stores no plan. Returns None for a recently seen target so that the caller stores one."""
        filled = self._fill(user, request, location, now)
        return None if filled is None or filled.seen_recently() else filled

    def fill_alike(self, user: KnownUser, request: RequestHead, now: float) -> FilledGaps | None:
        """Like `fill`, for a target with a cached shape, without resolving its route."""
        match = self._alike.find(request)
        if match is None:
            return None
        alike, name = match
        key = (user, alike.upstream, request.method, alike.before, alike.after)
        filled = self._filled(key, request.target, alike.path or alike.before + name, name, now)
        return None if filled is None or filled.seen_recently() else filled

    def _fill(self, user: KnownUser, request: RequestHead, location: ResolvedRoute, now: float) -> FilledGaps | None:
        upstream = location.upstream
        if upstream is None or upstream.split_name is None or request.upgrade:
            return None
        path = upstream.mapped_path(location.path)
        parts = upstream.split_name(path, location.query)
        if parts is None:
            return None
        before, name, after = parts
        key = (user, upstream, request.method, before, after)
        filled = self._filled(key, location.target, path, name, now)
        if filled is not None:
            self._alike.keep(request, location, parts, owner=user.info.username)
        return filled

    def _filled(self, key: _Key, target: bytes, path: str, name: str, now: float) -> FilledGaps | None:
        with_gaps = self._kept.get(key)
        if with_gaps is None:
            return None
        plan = with_gaps.plan
        if not self._planner.is_valid(plan, now) and not self._renew(plan, key[0], now):
            self._kept.forget(key)
            return None
        if bool(name) is not bool(plan.info.name):
            # The mapper does not distinguish one object from a list, which violates its contract.
            return None
        return FilledGaps(with_gaps, target, path, name)

    def _renew(self, plan: RequestPlan, user: KnownUser, now: float) -> bool:
        """Query the policy again for an expired template. Return whether decision and name independence are unchanged.

        Planning in full takes ten times as long, and plans that were made together expire together.
        """
        return self._planner.is_current(plan, user.info, now) and not self._names_matter(plan)

    def _names_matter(self, plan: RequestPlan) -> bool:
        """Whether the fresh decision of *plan*, or anything derived from it, could differ for another name."""
        return self._planner.names_matter or self._judge.name_matters(plan.user, plan.required, plan.delegation)

    def keep(self, user: KnownUser, request: RequestHead, location: ResolvedRoute, plan: RequestPlan) -> None:
        """Store *plan*, which was just made for *request*, as a template if names do not matter."""
        upstream = location.upstream
        if not self._shortcuts or upstream is None or upstream.split_name is None or request.upgrade:
            return
        path = upstream.mapped_path(location.path)
        parts = upstream.split_name(path, location.query)
        if parts is None or not self._is_for_all_names(plan, upstream, path, parts):
            return
        with_gaps = _PlanWithGaps.of(plan, request.method, location.target, parts[1])
        if with_gaps is not None:
            before, _, after = parts
            key = (user, upstream, request.method, before, after)
            size = plan.size + MOST_TARGETS * _TARGET_BYTES
            self._kept.keep(key, with_gaps, owner=user.info.username, size=size)

    def _is_for_all_names(self, plan: RequestPlan, upstream: Upstream, path: str, parts: Parts) -> bool:
        info = plan.info
        # The mapper must have parsed the same name and path that it has split.
        if (info.name, info.path) != (parts[1], path) or plan.required != (info,):
            return False
        if (
            not plan.at_once
            or plan.upstream is not upstream
            or plan.redirected
            or plan.public
            or plan.actor is not None
        ):
            return False
        if upstream.settings.public or upstream.settings.redirect is not None:
            # The paths that these settings cover may be those of a single object.
            return False
        return not self._names_matter(plan)

    def clear(self) -> None:
        self._kept.clear()
        self._alike.clear()

    def __len__(self) -> int:
        return len(self._kept)


class _PlanWithGaps:
    """A plan template: `plan`, and the parts that are filled in for another object."""

    __slots__ = ("_audit", "_line", "_rest", "_targets", "plan")

    def __init__(self, plan: RequestPlan, method: bytes, audit: PreparedForObjects | None) -> None:
        # A copy: the original is refreshed for its own name, possibly under a policy that distinguishes names.
        self.plan, self._audit = replace(plan), audit
        self._line = method + b" "
        # Everything after the request line.
        self._rest = b" HTTP/1.1\r\n" + plan.head.partition(b"\r\n")[2]
        self._targets: set[int] = set()

    @classmethod
    def of(cls, plan: RequestPlan, method: bytes, target: bytes, name: str) -> _PlanWithGaps | None:
        """Return a template, or None if the name cannot be replaced in its audit events."""
        if plan.audit is None:
            return cls(plan, method, None)
        audit = plan.audit.for_objects(target.decode("ascii"), name)
        return None if audit is None else cls(plan, method, audit)

    def head_for(self, target: bytes) -> bytes:
        assert self.plan.upstream is not None, "it was forwarded there"
        return b"".join((self._line, self.plan.upstream.forwarded_target(target), self._rest))

    def audit_middle(self, target: bytes, name: str) -> str:
        return "" if self._audit is None else self._audit.middle(target.decode("ascii"), name)

    def plan_for(self, target: bytes, path: str, name: str) -> RequestPlan:
        model, audit = self.plan, self._audit
        info = model.info if name == model.info.name else named(model.info, name, path)
        return RequestPlan(
            model.ruling,
            info,
            model.user,
            model.share,
            model.upstream,
            None,
            None if audit is None else audit.of(target.decode("ascii"), name),
            (info,),
            long_running=model.long_running,
            stream=False,
            reviews_token=False,
            delegation=model.delegation,
            head=self.head_for(target),
            at_once=True,
            passes_on=model.passes_on,
            routing=model.routing,
        )

    def seen_recently(self, target: bytes) -> bool:
        """Return whether *target* is one of the recent targets, and add it."""
        # On a collision, the keyed hash only makes one of the targets get its own plan a little earlier.
        return seen_recently(hash(target), self._targets, MOST_TARGETS)


class FilledGaps:
    """A plan template with the values for one request."""

    __slots__ = ("_gaps", "_name", "_path", "_target", "plan")

    def __init__(self, gaps: _PlanWithGaps, target: bytes, path: str, name: str) -> None:
        self._gaps, self._target, self._path, self._name = gaps, target, path, name
        # The plan of another object of the same kind.
        self.plan = gaps.plan

    def seen_recently(self) -> bool:
        """Return whether the target is one of the recent targets, and add it."""
        return self._gaps.seen_recently(self._target)

    def head(self) -> bytes:
        """Like `RequestPlan.head`."""
        return self._gaps.head_for(self._target)

    def audit_middle(self) -> str:
        """The argument *middle* of `Prepared.complete` of the template's plan."""
        return self._gaps.audit_middle(self._target, self._name)

    def whole_plan(self) -> RequestPlan:
        return self._gaps.plan_for(self._target, self._path, self._name)


def named(info: RequestInfo, name: str, path: str) -> RequestInfo:
    """Return *info* for another object. `dataclasses.replace` takes several times as long."""
    return RequestInfo(
        info.verb,
        info.method,
        path,
        info.is_resource,
        info.modifier,
        info.api_group,
        info.api_version,
        info.namespace,
        info.resource,
        info.subresource,
        name,
        info.field_selector,
        info.label_selector,
        info.capabilities,
        info.upstream,
        info.of_kubernetes,
    )
