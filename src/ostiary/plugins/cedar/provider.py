"""The cedar provider: decides by the policies in force, and explains why. The package's docstring has the schema."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Sequence
from typing import Self

from ostiary.core.catalog import Context
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.config import Fields
from ostiary.core.settings.declare import read_settings
from ostiary.core.text import printable
from ostiary.core.users.implied_groups import AUTHENTICATED, UNAUTHENTICATED, implied_groups
from ostiary.errors import ConfigurationError
from ostiary.interfaces.authorization import Explanation, Subject
from ostiary.model import Attributes, Decision, Place, UserInfo, Verdict
from ostiary.plugins.cedar.engine import (
    ACTION,
    GROUP,
    NAMESPACE,
    PATH,
    PERMIT,
    RESOURCE,
    USER,
    CedarPolicies,
    CedarPolicy,
    evaluate,
    path_of,
    policy_set,
)
from ostiary.plugins.cedar.reading import parse
from ostiary.plugins.cedar.settings import CedarSettings
from ostiary.plugins.common.policy_files import PolicyFiles

# How many policies an explanation looks at.
NEAR_MISSES = 200

_ALL = {"op": "All"}
_NOBODY = UserInfo("")


class CedarAuthorization:
    """Decides by the Cedar policies at *paths*; a directory stands for its ``*.cedar`` files.

    Raises `ConfigurationError` if the policy has mistakes. Changed files come into force within about a second; one
    with a mistake does not, and the policy before it stays.
    """

    def __init__(
        self, paths: Iterable[str | os.PathLike[str]], *, hide: bool = False, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.hides_denied = hide
        self._files = PolicyFiles(paths, ending=".cedar", parse=parse, clock=clock)

    @classmethod
    def from_config(cls, fields: Fields, context: Context) -> Self:
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
        # Everybody is in one of the two by being known or not, so no identity system needs to be asked.
        return self._files.current.groups - {AUTHENTICATED, UNAUTHENTICATED}

    @property
    def revision(self) -> int:
        return self._files.revision

    def cache_key(self, attributes: Attributes) -> Hashable:
        """What a policy can speak of, and nothing else."""
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

    # --- telling ---

    def explain(self, attributes: Attributes) -> Explanation:
        decision = self.decide(attributes)
        policies = self._files.current
        _, ids = policies.slice_for(attributes.user).decide(attributes)
        if ids:
            return Explanation(decision, closest=_join_ids(ids))
        closest, failed = _near_miss(policies, attributes)
        return Explanation(decision, closest, failed, _remedy(attributes))

    def named_subjects(self) -> tuple[tuple[Subject, Place], ...]:
        """The users and groups that principals must be; what conditions say of them is not looked at."""
        policies = self._files.current.all
        return tuple((Subject(*policy.who), policy.place) for policy in policies if policy.who is not None)

    def who_can(self, attributes: Attributes) -> tuple[Subject, ...]:
        """Evaluates the request for each user and group that a permit names, and for a user that none names.

        A user is tried without groups, so a forbid for one of their groups is not seen.
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


# --- words ---


def _near_miss(policies: CedarPolicies, attributes: Attributes) -> tuple[str, str]:
    """A permit that would apply but for one of its parts, as (id, what failed); those that concern the user first."""
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
