"""Tokens as platforms issue them to their workloads: GitHub Actions, GitLab CI, Kubernetes, SPIFFE.

The claims are those of the platforms' own documentation, with the values of one example.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ostiary.core.clock import Clock
from ostiary.core.yaml import ConfigReader, parse
from ostiary.model import Problem
from ostiary_gateway.catalog import Context
from ostiary_gateway.providers.workload.identity import WorkloadIdentity
from tests.support.issuer import ABSENT, Key, token

GATEWAY = "https://gateway.example.com"
LIFETIME = 300
GITHUB: Mapping[str, Any] = {
    "jti": "6bb0-github",
    "sub": "repo:acme/shop:ref:refs/heads/main",
    "repository": "acme/shop",
    "repository_id": "74",
    "repository_owner": "acme",
    "repository_owner_id": "65",
    "repository_visibility": "private",
    "ref": "refs/heads/main",
    "ref_type": "branch",
    "sha": "3dd65f0c",
    "workflow": "deploy",
    "workflow_ref": "acme/shop/.github/workflows/deploy.yaml@refs/heads/main",
    "job_workflow_ref": "acme/shop/.github/workflows/deploy.yaml@refs/heads/main",
    "event_name": "push",
    "actor": "octocat",
    "actor_id": "12",
    "run_id": "8001",
    "run_number": "10",
    "run_attempt": "2",
    "runner_environment": "github-hosted",
}
GITLAB: Mapping[str, Any] = {
    "jti": "235b-gitlab",
    "sub": "project_path:acme/platform/shop:ref_type:branch:ref:main",
    "namespace_id": "72",
    "namespace_path": "acme/platform",
    "project_id": "20",
    "project_path": "acme/platform/shop",
    "user_id": "1",
    "user_login": "sample-user",
    "user_email": "sample-user@example.com",
    "groups_direct": ["acme/platform", "acme/oncall"],
    "pipeline_id": "574",
    "pipeline_source": "push",
    "job_id": "302",
    "ref": "main",
    "ref_type": "branch",
    "ref_path": "refs/heads/main",
    "ref_protected": "true",
    "environment": "production",
    "environment_protected": "true",
    "runner_id": 1,
    "runner_environment": "self-hosted",
    "sha": "714a629c",
}
SERVICE_ACCOUNT: Mapping[str, Any] = {
    "jti": "0a9f-kubernetes",
    "sub": "system:serviceaccount:shop:deployer",
    "kubernetes.io": {
        "namespace": "shop",
        "node": {"name": "node-1", "uid": "646e7c5e"},
        "pod": {"name": "deployer-7d9f", "uid": "5e0bd49b"},
        "serviceaccount": {"name": "deployer", "uid": "14ee3fa4"},
        "warnafter": 1731614760,
    },
}
JWT_SVID: Mapping[str, Any] = {"sub": "spiffe://example.org/ns/shop/sa/deployer"}


def platform_token(
    clock: Clock,
    key: Key,
    claims: Mapping[str, Any],
    *,
    issuer: object = ABSENT,
    audience: object = GATEWAY,
    header: Mapping[str, Any] | None = None,
    **more: Any,
) -> str:
    """A token with *claims*, good for five minutes; *more* are changed, or left out with `ABSENT`."""
    now = int(clock.now().timestamp())
    times = {"iat": now, "nbf": now, "exp": now + LIFETIME}
    every = {"iss": issuer, "aud": audience, **times, **claims, **more}
    given = {name: value for name, value in every.items() if value is not ABSENT}
    return token(given, key, **(header or {}))


def read_workload(
    text: str, clock: Clock, directory: Path, external_url: str = GATEWAY
) -> tuple[WorkloadIdentity, list[Problem]]:
    """The provider whose settings are *text* (YAML), and what is wrong with them."""
    reading = ConfigReader(parse(text))
    context = Context("ci", directory, clock, external_url=external_url)
    provider = WorkloadIdentity.from_config(reading.root, context)
    unknown = [Problem("unknown field", place) for place in reading.unknown_fields()]
    return provider, [*reading.problems, *unknown]


def workload(text: str, clock: Clock, directory: Path, external_url: str = GATEWAY) -> WorkloadIdentity:
    provider, problems = read_workload(text, clock, directory, external_url)
    assert problems == []
    return provider
