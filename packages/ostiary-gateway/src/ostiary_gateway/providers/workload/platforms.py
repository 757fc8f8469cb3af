"""The platforms: their issuers, the claims in their tokens, and how to read them.

    verified claims  ->  Platform.read  ->  Workload: claims as texts, and the names that the platform itself gives

Kubernetes is in `workload.kubernetes`, SPIFFE in `workload.identity`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from ostiary_gateway.providers.common.jwt_settings import ALGORITHMS
from ostiary_gateway.providers.workload.patterns import ClaimTexts
from ostiary_gateway.providers.workload.rules import WorkloadNames

T = TypeVar("T")
Extra = tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload as described by its platform. `names` are used if there are no rules."""

    claims: ClaimTexts
    names: WorkloadNames | None = None
    extra: Extra = ()


class TokenClaims(Mapping[str, tuple[str, ...]]):
    """The claims that are strings, numbers, booleans or lists of strings, as texts; others match nothing.

    Each is converted on access: a token has twenty claims, and rules use two. *more* has precedence.
    """

    __slots__ = ("_claims", "_more")

    def __init__(self, claims: Mapping[str, object], more: Mapping[str, object] | None = None) -> None:
        self._claims, self._more = claims, more or {}

    def __getitem__(self, name: str) -> tuple[str, ...]:
        values = _texts(self._more[name] if name in self._more else self._claims.get(name))
        if not values:
            raise KeyError(name)
        return values

    def get(self, name: str, default: tuple[str, ...] | T = ()) -> tuple[str, ...] | T:
        return _texts(self._more[name] if name in self._more else self._claims.get(name)) or default

    def __iter__(self) -> Iterator[str]:
        return (name for name in {**self._claims, **self._more} if self.get(name))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,) if value else ()
    if isinstance(value, bool):
        return ("true" if value else "false",)
    if isinstance(value, int):
        return (str(value),)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(item for item in value if item)
    return ()


def read_claims(claims: Mapping[str, object]) -> Workload:
    return Workload(TokenClaims(claims))


@dataclass(frozen=True, slots=True)
class Platform:
    """A platform. `claims` are those of its tokens, if known: a rule for any other claim would never match.

    `issuer` is set if there is only one. `needs_rules` means that the platform gives no names itself. `extra` has the
    extra keys that its users may have. `read` raises `LoginRefused` if the claims are not those of the platform.
    """

    name: str
    issuer: str = ""
    claims: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset(("jwt",))
    algorithms: frozenset[str] = frozenset(ALGORITHMS)
    needs_rules: bool = True
    extra: tuple[str, ...] = ()
    read: Callable[[Mapping[str, object]], Workload] = field(default=read_claims)


_EVERY_TOKEN = ("iss", "sub", "aud", "exp", "iat", "nbf", "jti")
GITHUB = Platform(
    "github",
    issuer="https://token.actions.githubusercontent.com",
    claims=frozenset(
        (
            *_EVERY_TOKEN,
            *("actor", "actor_id", "base_ref", "check_run_id", "enterprise", "enterprise_id", "environment"),
            *("environment_node_id", "event_name", "head_ref", "issuer_scope", "job_workflow_ref", "job_workflow_sha"),
            *("ref", "ref_protected", "ref_type", "repository", "repository_id", "repository_owner"),
            *("repository_owner_id", "repository_visibility", "run_attempt", "run_id", "run_number"),
            *("runner_environment", "sha", "workflow", "workflow_ref", "workflow_sha"),
        )
    ),
)
GITLAB = Platform(
    "gitlab",
    issuer="https://gitlab.com",
    claims=frozenset(
        (
            *_EVERY_TOKEN,
            *("namespace_id", "namespace_path", "project_id", "project_path", "project_visibility", "user_id"),
            *("user_login", "user_email", "user_access_level", "user_identities", "groups_direct", "pipeline_id"),
            *("pipeline_source", "job_id", "job_source", "job_project_id", "job_project_path", "job_namespace_id"),
            *("job_namespace_path", "ref", "ref_type", "ref_path", "ref_protected", "environment"),
            *("environment_protected", "deployment_tier", "environment_action", "runner_id", "runner_environment"),
            *("sha", "ci_config_ref_uri", "ci_config_sha", "job_policy_ref_uri", "job_policy_ref_sha"),
        )
    ),
)
# Also access tokens (RFC 9068): from an issuer for machines a workload gets no other kind.
OIDC = Platform("oidc", types=frozenset(("jwt", "at+jwt")))
