"""Compare two policies: which subjects gain and lose which rights.

    grants of both  ->  the pieces of each subject's rules  ->  authorize with both  ->  Changes

Only what a rule mentions is compared, each piece as it is written: a star is authorized as a star, which only a star
allows. So the result is exact for what the files say, without knowing all resources and users that exist. Rights
through a group are reported for the group.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from itertools import product

from ostiary.model import Attributes, RequestInfo, UserInfo
from ostiary_gateway.authorization.implied_groups import AUTHENTICATED, UNAUTHENTICATED, service_account_groups
from ostiary_gateway.interfaces.authorization import Grant, ResourceRule, Subject
from ostiary_gateway.policy.source import OpenedPolicy


class Effect(Enum):
    GAIN = "gain"
    LOSS = "loss"


@dataclass(frozen=True, slots=True)
class Change:
    """A gain or loss of `subject`: these verbs on these resources (which share all other fields), or on these paths.

    `upstream` is set if the rules are for some upstreams only.
    """

    effect: Effect
    subject: Subject
    verbs: tuple[str, ...]
    resources: tuple[str, ...] = ()
    api_group: str = ""
    namespace: str = ""
    name: str = ""
    paths: tuple[str, ...] = ()
    upstream: str = ""


async def differences(old: OpenedPolicy, new: OpenedPolicy) -> tuple[Change, ...]:
    """Return every change, by subject. Raises `ProviderError` if one of the policies cannot be evaluated."""
    pieces = [piece async for piece in _pieces(old, new)]
    upstreams = dict.fromkeys(piece.request.upstream for piece in pieces)
    return tuple(
        replace(change, upstream=upstream)
        for upstream in upstreams
        for change in _together([piece for piece in pieces if piece.request.upstream == upstream])
    )


def user_of(subject: Subject) -> UserInfo:
    """Return a user with no attributes but those of *subject*."""
    if subject.kind == "Group":
        implied = () if subject.name in (AUTHENTICATED, UNAUTHENTICATED) else (AUTHENTICATED,)
        return UserInfo("", groups=(subject.name, *implied))
    if subject.kind == "ServiceAccount":
        groups = (*service_account_groups(subject.namespace), AUTHENTICATED)
        return UserInfo(f"system:serviceaccount:{subject.namespace}:{subject.name}", groups=groups)
    return UserInfo(subject.name)


# --- pieces ---


@dataclass(frozen=True, slots=True)
class _Piece:
    effect: Effect
    subject: Subject
    request: RequestInfo


async def _pieces(old: OpenedPolicy, new: OpenedPolicy) -> AsyncIterator[_Piece]:
    for subject, requests in _requests_by_subject((*old.grants, *new.grants)).items():
        user = user_of(subject)
        for request in requests:
            attributes = Attributes(user, request)
            before = (await old.authorizer.authorize(attributes)).allowed
            after = (await new.authorizer.authorize(attributes)).allowed
            if before != after:
                yield _Piece(Effect.GAIN if after else Effect.LOSS, subject, request)


def _requests_by_subject(grants: Iterable[Grant]) -> dict[Subject, dict[RequestInfo, None]]:
    """Return the requests in the rules of each subject, in policy order, however the subject got the rules."""
    requests: dict[Subject, dict[RequestInfo, None]] = {}
    for grant in grants:
        subject = Subject(grant.subject.kind, grant.subject.name, grant.subject.namespace)
        requests.setdefault(subject, {}).update(dict.fromkeys(requests_of(grant)))
    return requests


def requests_of(grant: Grant) -> Iterator[RequestInfo]:
    """Yield each piece of a grant as a request. No client could send one with a star."""
    rule = grant.rule
    if not isinstance(rule, ResourceRule):
        for verb, path in product(rule.verbs, rule.paths):
            yield RequestInfo(verb, verb.upper(), path, upstream=grant.upstream)
        return
    for verb, group, resource, name in product(
        rule.verbs, rule.api_groups, rule.resources, rule.resource_names or ("",)
    ):
        kind, _, subresource = resource.partition("/")
        yield RequestInfo(
            verb=verb,
            method="",
            path="",
            is_resource=True,
            api_group=group,
            namespace=grant.namespace,
            resource=kind,
            subresource=subresource,
            name=name,
            upstream=grant.upstream,
        )


# --- merging ---


def _together(pieces: list[_Piece]) -> Iterator[Change]:
    """Merge the verbs of each resource, then the resources that have the same verbs."""
    verbs: dict[tuple[Effect, Subject, str, str, str, str, str], list[str]] = {}
    for piece in pieces:
        request = piece.request
        resource = f"{request.resource}/{request.subresource}" if request.subresource else request.resource
        key = (piece.effect, piece.subject, request.namespace, request.api_group, request.name, resource, request.path)
        verbs.setdefault(key, []).append(request.verb)
    lines: dict[tuple[Effect, Subject, str, str, str, bool, tuple[str, ...]], list[str]] = {}
    for (effect, subject, namespace, group, name, resource, path), verb_list in verbs.items():
        whole = (effect, subject, namespace, group, name, bool(resource), tuple(sorted(verb_list)))
        lines.setdefault(whole, []).append(resource or path)
    for (effect, subject, namespace, group, name, is_resource, sorted_verbs), objects in lines.items():
        names = tuple(sorted(objects))
        if is_resource:
            yield Change(effect, subject, sorted_verbs, names, group, namespace, name)
        else:
            yield Change(effect, subject, sorted_verbs, paths=names)
