"""Scopes and requests made at random from a small world, in which much of it meets."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from ostiary.core.scopes import Scope, parse_scope
from ostiary.model import Attributes, RequestInfo, UserInfo

OWNER = UserInfo("alice", groups=("staff",))
VERBS = ("get", "list", "create", "*")
RESOURCES = (
    "pods",
    "pods/log",
    "secrets",
    "deployments.apps",
    "deployments.apps/scale",
    "*",
    "*/log",
    "*.apps",
    "pods.*",
)
PATHS = ("/healthz", "/metrics", "/api", "/apis/*", "/*")
NAMESPACES = ("shop", "web")
NAMES = ("a", "b")
UPSTREAMS = ("east", "west")


def random_scope(chance: Random) -> Scope:
    return parse_scope("; ".join(_random_rule(chance) for _ in range(chance.randint(1, 3))))


def _random_rule(chance: Random) -> str:
    def some(values: tuple[str, ...]) -> str:
        return ",".join(chance.choices(values, k=chance.randint(1, 2)))

    upstream = f" --upstream {some(UPSTREAMS)}" if chance.random() < 0.3 else ""
    if chance.random() < 0.1:
        return f"discovery{upstream}"
    if chance.random() < 0.2:
        return f"{some(VERBS)} {some(PATHS)}{upstream}"
    where = "-A" if chance.random() < 0.3 else f"-n {some(NAMESPACES)}"
    name = f" --name {some(NAMES)}" if chance.random() < 0.3 else ""
    return f"{some(VERBS)} {some(RESOURCES)} {where}{name}{upstream}"


def random_request(chance: Random) -> RequestInfo:
    upstream = chance.choice((*UPSTREAMS, ""))
    verb = chance.choice(("get", "list", "create", "delete"))
    if chance.random() < 0.2:
        path = chance.choice(("/healthz", "/metrics", "/apis/apps", "/api", "/x"))
        return RequestInfo(verb, "GET", path, upstream=upstream, of_kubernetes=chance.random() < 0.5)
    group, resource, subresource = chance.choice(
        (
            *(("", "pods", ""), ("", "pods", "log"), ("", "secrets", "")),
            *(("apps", "deployments", ""), ("apps", "deployments", "scale"), ("metrics.k8s.io", "pods", "")),
        )
    )
    return RequestInfo(
        *(verb, "GET", "", True),
        api_group=group,
        namespace=chance.choice((*NAMESPACES, "")),
        resource=resource,
        subresource=subresource,
        name=chance.choice((*NAMES, "")),
        upstream=upstream,
    )


def asked(verb: str, resource: str, namespace: str = "", name: str = "", upstream: str = "main") -> Attributes:
    """A question of the owner's about a resource (``deployments.apps/scale``), or about a path."""
    if resource.startswith("/"):
        return Attributes(OWNER, RequestInfo(verb, verb.upper(), resource, upstream=upstream, of_kubernetes=True))
    kind, _, subresource = resource.partition("/")
    plural, _, group = kind.partition(".")
    info = RequestInfo(verb, "GET", "", True, resource=plural, subresource=subresource, api_group=group)
    return Attributes(OWNER, replace(info, namespace=namespace, name=name, upstream=upstream))
