"""The authorization provider ``cedar``: decide by Cedar policies, and explain why. The package documents the schema."""

from __future__ import annotations

import json
import os
from collections.abc import Container, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Any, Self

import cedarpy

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.text import printable
from ostiary.core.yaml import ConfigSection
from ostiary.errors import ConfigurationError, ProviderError
from ostiary.model import Attributes, Decision, Place, Problem, RequestInfo, UserInfo, Verdict
from ostiary_gateway.authorization.implied_groups import AUTHENTICATED, UNAUTHENTICATED, implied_groups
from ostiary_gateway.catalog import Context
from ostiary_gateway.interfaces.authorization import Explanation, Subject
from ostiary_gateway.providers.cedar.settings import CedarSettings
from ostiary_gateway.providers.common.policy_files import PolicyFiles, PolicyText, invalid_policy
from ostiary_gateway.settings.declare import read_settings

USER, GROUP, ACTION, RESOURCE, PATH, NAMESPACE = "User", "Group", "Action", "Resource", "Path", "Namespace"
PERMIT, FORBID = "permit", "forbid"

# How many sets of policies are cached. Users with the same groups share one.
SLICES = 1024

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class CedarPolicy:
    """One statement. `who` is the entity that its principal must be or be in, as (type, id); None for any principal."""

    id: str
    effect: str
    who: tuple[str, str] | None
    body: Body = field(hash=False, repr=False)
    place: Place = field(default=Place(), compare=False, repr=False)


class Slice:
    """The policies that can apply to some users, compiled for the engine, which evaluates all of a set."""

    __slots__ = ("_all", "_forbids", "has_permit", "policies")

    def __init__(self, policies: tuple[CedarPolicy, ...]) -> None:
        self.policies = policies
        self.has_permit = any(policy.effect == PERMIT for policy in policies)
        self._all = policy_set(policies)
        self._forbids = policy_set(policy for policy in policies if policy.effect == FORBID)

    def decide(self, attributes: Attributes) -> tuple[Verdict, list[str]]:
        """Return the outcome, and the ids of the policies that determined it. Raises `ProviderError`."""
        if not self.policies:
            return Verdict.NO_OPINION, []
        verdict, ids, errors = evaluate(self._all, attributes)
        if errors and verdict is not Verdict.DENY:
            # The engine skips a policy that fails to evaluate. That is safe for a permit, but not for a forbid.
            _, _, errors = evaluate(self._forbids, attributes)
            if errors:
                raise ProviderError("a forbid policy cannot be evaluated", cause=printable("; ".join(errors)))
        return verdict, ids


class CedarPolicies:
    """A complete policy, indexed by principal. Immutable except for its cache of slices."""

    def __init__(self, policies: Iterable[CedarPolicy]) -> None:
        self.all = tuple(policies)
        self._of: dict[tuple[str, str] | None, list[CedarPolicy]] = {}
        for policy in self.all:
            self._of.setdefault(policy.who, []).append(policy)
        self.groups = frozenset(
            name for policy in self.all for kind, name in entities_in(policy.body) if kind == GROUP
        )  # fmt: skip
        self._slices: dict[tuple[tuple[str, str], ...], Slice] = {}

    def names_with_permit(self, kind: str) -> list[str]:
        """Return the users or groups that are the principal of a permit."""
        permitted = (who for who, policies in self._of.items() if any(policy.effect == PERMIT for policy in policies))
        return sorted(who[1] for who in permitted if who is not None and who[0] == kind)

    def slice_for(self, user: UserInfo) -> Slice:
        every = [(USER, user.username), *sorted((GROUP, group) for group in {*user.groups, *implied_groups(user)})]
        key = tuple(who for who in every if who in self._of)
        policies = self._slices.get(key)
        if policies is None:
            if len(self._slices) >= SLICES:
                del self._slices[next(iter(self._slices))]
            concerned: Iterator[tuple[str, str] | None] = iter((None, *key))
            policies = Slice(tuple(policy for who in concerned for policy in self._of.get(who, ())))
            self._slices[key] = policies
        return policies


def entities_in(value: object) -> Iterator[tuple[str, str]]:
    """Yield every entity that a policy names, wherever it does, as (type, id)."""
    if isinstance(value, dict):
        if isinstance(value.get("type"), str) and isinstance(value.get("id"), str):
            yield value["type"], value["id"]
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from entities_in(part)


def policy_set(policies: Iterable[CedarPolicy]) -> cedarpy.PolicySet:
    bodies = {policy.id: policy.body for policy in policies}
    return cedarpy.PolicySet.from_json_str(
        json.dumps({"staticPolicies": bodies, "templates": {}, "templateLinks": []})
    )  # fmt: skip


def evaluate(policies: cedarpy.PolicySet, attributes: Attributes) -> tuple[Verdict, list[str], list[str]]:
    """Return the outcome, the ids, and the errors of policies that failed to evaluate. Raises `ProviderError`."""
    user, info = attributes.user, attributes.request
    principal = {"type": USER, "id": user.username}
    resource = {"type": RESOURCE, "id": ""} if info.is_resource else {"type": PATH, "id": info.path}
    request = {
        "principal": principal,
        "action": {"type": ACTION, "id": info.verb},
        "resource": resource,
        "context": {
            "modifier": info.modifier,
            "upstream": info.upstream,
            "capabilities": list(info.capabilities),
        },
    }
    groups = [{"type": GROUP, "id": group} for group in (*user.groups, *implied_groups(user))]
    namespaces = [{"type": NAMESPACE, "id": info.namespace}] if info.namespace else []
    entities = [
        {"uid": principal, "attrs": {"name": user.username, "uid": user.uid}, "parents": groups},
        {"uid": resource, "attrs": _attributes(info), "parents": namespaces},
    ]
    result = cedarpy.is_authorized(request, policies, entities)
    ids, errors = sorted(result.diagnostics.reasons), list(result.diagnostics.errors)
    if result.decision is cedarpy.Decision.Allow:
        return Verdict.ALLOW, ids, errors
    if result.decision is not cedarpy.Decision.Deny:
        raise ProviderError("the Cedar engine cannot read this request", cause=printable("; ".join(errors)))
    return (Verdict.DENY if ids else Verdict.NO_OPINION), ids, errors


def _attributes(asked: RequestInfo) -> dict[str, str]:
    return {
        "apiGroup": asked.api_group,
        "apiVersion": asked.api_version,
        "resource": asked.resource,
        "subresource": asked.subresource,
        "namespace": asked.namespace,
        "name": asked.name,
        "path": path_of(asked),
    }


def path_of(asked: RequestInfo) -> str:
    # Empty for resources, because a SubjectAccessReview of one has no path: the webhook and the proxy decide alike.
    return "" if asked.is_resource else asked.path


# Verbs that the schema always has. Policies may name any other verb.
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")


def parse(texts: Sequence[PolicyText]) -> CedarPolicies:
    """Parse the policy in these files. Raises `ConfigurationError` that lists every error with its position."""
    problems, policies = list[Problem](), dict[str, CedarPolicy]()
    read = [(place, text, _read(text, place, problems)) for place, text in _all_statements(texts)]
    schema = _schema(body for _, _, body in read if body is not None)
    for place, text, body in read:
        if body is None:
            continue
        errors = cedarpy.validate_policies(text, schema).errors
        problems += [Problem(printable(error.error), place) for error in errors]
        if any(kind == RESOURCE for kind, _ in entities_in(body)):
            problems.append(Problem("a Resource has no id that could be named", place, "compare its attributes"))
        policy = CedarPolicy(_id_of(body, place, policies), body["effect"], _who(body["principal"]), body, place)
        if policy.id in policies:
            problems.append(Problem(f'another policy has the id "{printable(policy.id)}" too', place))
        policies[policy.id] = policy
    if problems:
        raise invalid_policy(problems)
    return CedarPolicies(policies.values())


def _all_statements(texts: Sequence[PolicyText]) -> Iterator[tuple[Place, str]]:
    for text in texts:
        for line, statement in statements(text.text):
            yield Place(text.file, line=line), statement


def statements(text: str) -> Iterator[tuple[int, str]]:
    """Yield the statements of a Cedar text, each with its semicolon, and the line where it begins.

    Only strings and comments matter for finding the end; the engine decides whether a statement is valid.
    """
    begin = position = _skip_blank(text, 0)
    line = 1 + text.count("\n", 0, begin)
    while begin < len(text):
        char = text[position : position + 1]
        if char == '"':
            position = _after_string(text, position)
        elif text.startswith("//", position):
            position = _after_line(text, position)
        elif char not in ("", ";"):
            position += 1
        else:
            yield line, text[begin : position + 1]
            following = _skip_blank(text, position + 1)
            line += text.count("\n", begin, following)
            begin = position = following


def _skip_blank(text: str, position: int) -> int:
    while position < len(text):
        if text[position].isspace():
            position += 1
        elif text.startswith("//", position):
            position = _after_line(text, position)
        else:
            break
    return position


def _after_line(text: str, position: int) -> int:
    end = text.find("\n", position)
    return len(text) if end < 0 else end + 1


def _after_string(text: str, position: int) -> int:
    position += 1
    while position < len(text) and text[position] != '"':
        position += 2 if text[position] == "\\" else 1
    return position + 1


def _read(text: str, place: Place, problems: list[Problem]) -> Body | None:
    try:
        policy_json: Body = json.loads(cedarpy.policies_to_json_str(text))
    except ValueError as error:
        problems.append(Problem(f"it is not a Cedar policy: {printable(str(error))}", place))
        return None
    if policy_json["templates"]:
        problems.append(Problem("templates are not supported", place, "write the policy out for each user or group"))
        return None
    if len(policy_json["staticPolicies"]) != 1:
        problems.append(Problem("it is not one Cedar policy", place))
        return None
    (body,) = policy_json["staticPolicies"].values()
    return body  # type: ignore[no-any-return]


def _id_of(body: Body, place: Place, taken: Container[str]) -> str:
    """Return the ``@id`` of the policy, or its position; further policies in the same line get a number."""
    if own := body.get("annotations", {}).get("id"):
        return str(own)
    numbered = (f"{place} ({number})" for number in count(2))
    return next(name for name in chain((str(place),), numbered) if name not in taken)


def _who(principal: Body) -> tuple[str, str] | None:
    entity = principal.get("entity") or principal.get("in", {}).get("entity")
    return None if entity is None else (entity["type"], entity["id"])


def _schema(bodies: Iterable[Body]) -> cedarpy.Schema:
    """Build the schema that the package documents. It includes every verb that policies name."""
    verbs = {name for body in bodies for kind, name in entities_in(body) if kind == ACTION}
    attributes = ("apiGroup", "apiVersion", "resource", "subresource", "namespace", "name", "path")
    resource = {"memberOfTypes": [NAMESPACE], "shape": _record(*attributes)}
    entities = {
        USER: {"memberOfTypes": [GROUP], "shape": _record("name", "uid")},
        GROUP: {},
        NAMESPACE: {},
        RESOURCE: resource,
        PATH: resource,
    }
    context = _record("modifier", "upstream")
    context["attributes"]["capabilities"] = {"type": "Set", "element": {"type": "String"}}
    applies = {"principalTypes": [USER], "resourceTypes": [RESOURCE, PATH], "context": context}
    actions = {verb: {"appliesTo": applies} for verb in sorted({*VERBS, *verbs})}
    return cedarpy.Schema.from_json_str(json.dumps({"": {"entityTypes": entities, "actions": actions}}))


def _record(*names: str) -> Body:
    return {"type": "Record", "attributes": {name: {"type": "String"} for name in names}}


# Maximum number of policies that an explanation examines.
NEAR_MISSES = 200

_ALL = {"op": "All"}
_NOBODY = UserInfo("")


class CedarAuthorization:
    """Authorize by the Cedar policies at *paths*; a directory stands for its ``*.cedar`` files.

    Raises `ConfigurationError` if the policy has errors. Changed files come into force within about a second, unless
    they have errors: then the previous policy stays in force.
    """

    def __init__(
        self, paths: Iterable[str | os.PathLike[str]], *, hide: bool = False, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.hides_denied = hide
        self._files = PolicyFiles(paths, ending=".cedar", parse=parse, clock=clock)

    @classmethod
    def from_config(cls, fields: ConfigSection, context: Context) -> Self:
        settings = read_settings(CedarSettings, fields, context.directory)
        try:
            return cls(settings.paths, hide=settings.hide, clock=context.clock)
        except ConfigurationError as error:
            for problem in error.problems:
                fields.problem(str(problem), "paths", problem.hint)
            return cls(())

    # --- deciding ---

    def decide(self, attributes: Attributes) -> Decision:
        concerned = self._files.current.slice_for(attributes.user)
        verdict, ids = concerned.decide(attributes)
        if verdict is Verdict.ALLOW:
            return Decision(verdict, f"Cedar: allowed by {_join_ids(ids)}")
        if verdict is Verdict.DENY:
            return Decision(verdict, f"Cedar: forbidden by {_join_ids(ids)}")
        is_hidden = bool(attributes.request.namespace) and (self.hides_denied or not concerned.has_permit)
        return Decision(verdict, "Cedar: no policy applies", is_hidden)

    async def authorize(self, attributes: Attributes) -> Decision:
        return self.decide(attributes)

    async def relevant_groups(self) -> frozenset[str]:
        # Every user is in one of these groups, so no directory needs to be queried for them.
        return self._files.current.groups - {AUTHENTICATED, UNAUTHENTICATED}

    @property
    def revision(self) -> int:
        return self._files.revision

    def cache_key(self, attributes: Attributes) -> Hashable:
        """Everything that a policy can refer to, and nothing else."""
        user, request = attributes.user, attributes.request
        groups = self._files.current.groups.intersection((*user.groups, *implied_groups(user)))
        what = (
            request.api_group,
            request.api_version,
            request.resource,
            request.subresource,
            request.namespace,
            request.name,
        )
        who = (user.username, user.uid, groups)
        where = (request.modifier, request.capabilities, request.upstream, path_of(request))
        return (*who, request.is_resource, request.verb, *where, *what)

    # --- explaining ---

    def explain(self, attributes: Attributes) -> Explanation:
        decision = self.decide(attributes)
        policies = self._files.current
        _, ids = policies.slice_for(attributes.user).decide(attributes)
        if ids:
            return Explanation(decision, closest=_join_ids(ids))
        closest, failed = _near_miss(policies, attributes)
        return Explanation(decision, closest, failed, _remedy(attributes))

    def named_subjects(self) -> tuple[tuple[Subject, Place], ...]:
        """Return the users and groups in principals. Conditions are not examined."""
        policies = self._files.current.all
        return tuple((Subject(*policy.who), policy.place) for policy in policies if policy.who is not None)

    def who_can(self, attributes: Attributes) -> tuple[Subject, ...]:
        """Evaluate the request for each user and group that a permit names, and for a user that none names.

        Users are evaluated without groups, so a forbid for one of their groups is not seen.
        """
        policies = self._files.current
        tried = [(Subject(USER, name), UserInfo(name)) for name in policies.names_with_permit(USER)]
        tried += [(Subject(GROUP, name), UserInfo("", groups=(name,))) for name in policies.names_with_permit(GROUP)]
        tried += [(Subject(GROUP, name), _NOBODY) for name in (AUTHENTICATED, UNAUTHENTICATED)]
        subjects = list[Subject]()
        for subject, user in tried:
            verdict, ids = policies.slice_for(user).decide(Attributes(user, attributes.request))
            if verdict is Verdict.ALLOW and subject.name not in (
                other.name for other in subjects if other.kind == subject.kind
            ):
                subjects.append(Subject(subject.kind, subject.name, via=_join_ids(ids)))
        return tuple(subjects)


# --- explanations ---


def _near_miss(policies: CedarPolicies, attributes: Attributes) -> tuple[str, str]:
    """Return a permit that would apply but for one of its parts, as (id, reason). Those for the user come first."""
    mine = policies.slice_for(attributes.user).policies
    permits = [policy for policy in (*mine, *policies.all) if policy.effect == PERMIT][:NEAR_MISSES]
    relaxed: tuple[tuple[str, object, str], ...] = (
        ("conditions", [], "its when or unless does not hold"),
        ("action", _ALL, "its action is another"),
        ("resource", _ALL, "its resource is another"),
        ("principal", _ALL, "its principal is another"),
    )
    for part, anything, failed in relaxed:
        for policy in permits:
            wider = CedarPolicy(policy.id, PERMIT, None, {**policy.body, part: anything})
            if evaluate(policy_set([wider]), attributes)[0] is Verdict.ALLOW:
                return policy.id, failed
    return "", "no permit comes close" if permits else "there is no permit"


def _remedy(attributes: Attributes) -> str:
    user, request = attributes.user, attributes.request
    who = f"principal == {USER}::{_quote(user.username)}, action == {ACTION}::{_quote(request.verb)}"
    if not request.is_resource:
        return f"permit({who}, resource == {PATH}::{_quote(request.path)});"
    where = f"resource in {NAMESPACE}::{_quote(request.namespace)}" if request.namespace else f"resource is {RESOURCE}"
    pairs = (("apiGroup", request.api_group), ("resource", request.resource), ("subresource", request.subresource))
    conditions = " && ".join(f"resource.{name} == {_quote(value)}" for name, value in pairs)
    return f"permit({who}, {where}) when {{ {conditions} }};"


def _quote(text: str) -> str:
    plain = (char if char.isprintable() and char not in '"\\' else f"\\u{{{ord(char):x}}}" for char in text)
    return f'"{"".join(plain)}"'


def _join_ids(ids: Sequence[str]) -> str:
    return ", ".join(printable(policy_id) for policy_id in ids)
