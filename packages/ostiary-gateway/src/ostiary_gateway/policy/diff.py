"""Who gains and who loses what between two policies.

    grants of both  ->  for each subject what its rules mention, piece by piece  ->  ask both  ->  Changes

Called by ``ostiary-gateway policy diff``. Only what a rule mentions is compared, and each piece of it as it is written:
a star is asked for as a star, which only a star allows. So the result is exact for what the files say, without knowing
all resources and users that exist. What a user has through a group is reported for the group.
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
    """`effect` for `subject`: these verbs on these resources (all with the same of the rest), or on these paths.

    `upstream` is set where the rules are of a policy that is for some upstreams only.
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
    """Every change, by subject; raises `ProviderError` if one of the policies cannot be asked."""
    pieces = [piece async for piece in _pieces(old, new)]
    upstreams = dict.fromkeys(piece.request.upstream for piece in pieces)
    return tuple(
        replace(change, upstream=upstream)
        for upstream in upstreams
        for change in _together([piece for piece in pieces if piece.request.upstream == upstream])
    )


def user_of(subject: Subject) -> UserInfo:
    """A user of whom nothing is known but that they are *subject*."""
    if subject.kind == "Group":
        implied = () if subject.name in (AUTHENTICATED, UNAUTHENTICATED) else (AUTHENTICATED,)
        return UserInfo("", groups=(subject.name, *implied))
    if subject.kind == "ServiceAccount":
        groups = (*service_account_groups(subject.namespace), AUTHENTICATED)
        return UserInfo(f"system:serviceaccount:{subject.namespace}:{subject.name}", groups=groups)
    return UserInfo(subject.name)


# --- piece by piece ---


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
    """What the rules of each subject are about, in the order of the policy. How the subject got them is left out."""
    requests: dict[Subject, dict[RequestInfo, None]] = {}
    for grant in grants:
        subject = Subject(grant.subject.kind, grant.subject.name, grant.subject.namespace)
        requests.setdefault(subject, {}).update(dict.fromkeys(requests_of(grant)))
    return requests


def requests_of(grant: Grant) -> Iterator[RequestInfo]:
    """Each piece of a grant as a request. A request with a star in it is one that no client could send."""
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


# --- in few lines ---


def _together(pieces: list[_Piece]) -> Iterator[Change]:
    """First the verbs of each resource, then the resources that have the same verbs."""
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
