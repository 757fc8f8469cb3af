"""The request that ``can-i`` and ``who-can`` are about: a verb, and a resource or a path."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ostiary.cli.arguments import UsageError
from ostiary.model import RequestInfo
from ostiary.wire import resource_names as misspellings

if TYPE_CHECKING:
    from ostiary_gateway.config.gateway_config import GatewayConfig

_METHODS = {"create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE", "deletecollection": "DELETE"}


def add_question(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("verb", metavar="VERB", help=", ".join(misspellings.VERBS))
    parser.add_argument(
        "resource", metavar="RESOURCE", nargs="?", help="in the plural: pods, pods/log, deployments.apps/scale"
    )
    parser.add_argument("name", metavar="NAME", nargs="?", default="", help="the name of one object (default: any)")
    parser.add_argument(
        "-n", "--namespace", default="", metavar="NAME", help="the namespace (default: the whole cluster)"
    )
    parser.add_argument("--api-group", metavar="GROUP", help="the API group of the resource (default: the core group)")
    parser.add_argument("--path", metavar="PATH", help="instead of a resource: a path such as /metrics")
    parser.add_argument(
        "--upstream", metavar="NAME", help="the upstream (needed if there are several with their own policies)"
    )


def chosen_upstream(named: str | None, config: GatewayConfig) -> str:
    """Return the upstream. Raises `UsageError` if the result depends on it and none was named."""
    names = [upstream.name for upstream in config.upstreams]
    if named is not None:
        if named not in names:
            listed = ", ".join(names)
            raise UsageError(f'unknown upstream "{named}"', hint=f"known upstreams: {listed}" if names else None)
        return named
    if len(names) == 1:
        return names[0]
    if any(link.upstreams is not None for link in config.authorization.chain):
        raise UsageError(
            "the answer depends on the upstream",
            hint=f"choose one, as in: --upstream {names[0]} (or {', '.join(names[1:])})",
        )
    return ""


def misspelling_notes(request: RequestInfo, config: GatewayConfig, *, allowed: bool) -> list[str]:
    """Return notes on likely misspellings: for the policy, a misspelt resource is one that is not allowed."""
    if allowed or not speaks_kubernetes(request.upstream, config):
        return []
    return misspellings.misspelling_notes(request)


def speaks_kubernetes(upstream: str, config: GatewayConfig) -> bool:
    """Whether the request can only be for Kubernetes: other APIs define their own verbs and resources."""
    upstreams = [candidate for candidate in config.upstreams if upstream in ("", candidate.name)]
    return all(candidate.is_kubernetes for candidate in upstreams)


def question(arguments: argparse.Namespace) -> RequestInfo:
    """Return the requested action. Raises `UsageError`."""
    verb, resource, path = arguments.verb, arguments.resource, arguments.path
    if (resource is None) == (path is None):
        raise UsageError(
            "name either a RESOURCE or a --path", hint="as in: ostiary-gateway can-i get pods --namespace team"
        )
    if path is not None:
        if not path.startswith("/") or arguments.namespace or arguments.api_group:
            raise UsageError("a --path begins with a slash, and is in no namespace and no API group")
        return RequestInfo(verb.lower(), verb.upper(), path)
    kind, _, subresource = resource.partition("/")
    kind, dot, group = kind.partition(".")
    if dot and arguments.api_group not in (None, group):
        raise UsageError("the resource and --api-group name different API groups")
    if not kind:
        hint = f"a path of the API is asked for with --path {resource}" if resource.startswith("/") else None
        raise UsageError("the resource has no name", hint=hint or "as in: pods, pods/log, deployments.apps")
    return RequestInfo(
        verb=verb,
        method=_METHODS.get(verb, "GET"),
        path="",
        is_resource=True,
        api_group=group if dot else arguments.api_group or "",
        namespace=arguments.namespace,
        resource=kind,
        subresource=subresource,
        name=arguments.name,
    )
