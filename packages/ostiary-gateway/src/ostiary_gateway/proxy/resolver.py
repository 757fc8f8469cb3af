"""Resolve a request: find its route, and let the attributes mapper determine its attributes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ostiary_gateway.config.values import is_listed
from ostiary_gateway.http1.request_head import RequestHead
from ostiary_gateway.interfaces.attributes import RequestLine
from ostiary_gateway.proxy.context import ApiGroups, BuiltinApi, Handler, RequestAttributes
from ostiary_gateway.proxy.reviews import is_self_review
from ostiary_gateway.proxy.routes import Routes
from ostiary_gateway.proxy.target import AmbiguousRequest, has_odd_name, is_usually_encoded, split_target
from ostiary_gateway.proxy.upstreams import Upstream
from ostiary_gateway.wire.action_token import PARAMETER, names_parameter


class NoRoute(Exception):
    """No upstream serves this host and path."""


class ResolvedRoute(NamedTuple):
    """The route of a request: a built-in API or an upstream. Its target was checked."""

    path: str
    query: str
    # Path and query, also if the client sent an absolute URL.
    target: bytes
    own: BuiltinApi | None
    upstream: Upstream | None


class RequestResolver:
    """Resolves requests that have no cached plan."""

    def __init__(
        self,
        routes: Routes,
        own_apis: Sequence[BuiltinApi],
        self_reviews: Handler | None,
        api_groups: ApiGroups | None = None,
    ) -> None:
        self._routes = routes
        self._own_apis = own_apis
        self._self_reviews = self_reviews
        self._api_groups = api_groups
        self._prefixes = [
            *(own.prefix for own in own_apis),
            *(upstream.settings.prefix for upstream in routes.upstreams),
        ]
        # Revision of the routing table.
        self.routing = 0

    def of(self, request: RequestHead) -> RequestAttributes:
        """Return the request's attributes; raises `ValueError` if they are ambiguous."""
        return self.at(self.locate(request), request)

    def locate(self, request: RequestHead) -> ResolvedRoute:
        """Return the request's route; raises `ValueError` if its target is ambiguous, or `NoRoute`."""
        target = request.target
        path, query = split_target(target, host=request.host, options=request.method == b"OPTIONS", any_name=True)
        if not target.startswith(b"/"):
            # An absolute URL of the gateway: its path is authorized and forwarded.
            target = (f"{path}?{query}" if query else path).encode("ascii")
        for own in self._own_apis:
            # The cheap test first: hardly any path begins with the prefix of a built-in API.
            if path.startswith(own.prefix) and (path == own.prefix or path.startswith(own.prefix + "/")):
                return ResolvedRoute(path, query, target, own, None)
        upstream = self._routes.find(request.host.decode("latin-1"), path)
        if upstream is None:
            raise NoRoute
        if upstream.settings.redirect is not None and names_parameter(query):
            raise AmbiguousRequest(f"the query has the parameter {PARAMETER}, which is for the gateway alone to set")
        return ResolvedRoute(path, query, target, None, upstream)

    def go_alike(self, above: str) -> bool:
        """Return whether all paths with one segment more than *above*, which ends with a slash, have the same route."""
        return not any(prefix.startswith(above) for prefix in self._prefixes)

    def at(self, location: ResolvedRoute, request: RequestHead) -> RequestAttributes:
        """Return the request's attributes on this route; raises `ValueError` if they are ambiguous."""
        path, query, target, own, upstream = location
        method = request.method.decode("ascii")
        upgrade = request.upgrade.decode("ascii")
        if own is not None:
            _check_name(path)
            info = own.mapper.request_info(RequestLine(method, path, query, upgrade))
            return RequestAttributes(info, (info,), target, handler=own.handler, routing=self.routing)
        assert upstream is not None, "it was found"
        mapped = upstream.mapped_path(path)
        info = upstream.mapper.request_info(RequestLine(method, mapped, query, upgrade))
        if not upstream.is_kubernetes or not info.is_resource or "proxy" in (info.verb, info.subresource):
            _check_name(path)
        info = replace(info, upstream=upstream.name)
        if upstream.is_kubernetes and self._self_reviews is not None and is_self_review(info):
            # About the user's own permissions, served from our own policy: nothing has to be allowed.
            return RequestAttributes(info, (), target, handler=self._self_reviews, routing=self.routing)
        if upstream.is_kubernetes and self._api_groups and (route := self._api_groups.find(upstream, method, mapped)):
            # Authorized as if the upstream served it: for the policy it is one cluster, regardless of API plugins.
            _check_name(path)
            if route.upstream is None:
                return RequestAttributes(info, (info,), target, handler=route.handler, routing=self.routing)
            upstream = route.upstream
        public = bool(upstream.settings.public) and is_listed(path, upstream.settings.public)
        also = upstream.also_required(info)
        required = () if public else (info,) if also is None else (info, also)
        long_running = upstream.mapper.long_running(info)
        # After a protocol switch the duration is unknown, so it is a stream whatever the path is.
        stream = long_running or bool(request.upgrade)
        return RequestAttributes(
            info,
            required,
            target,
            upstream,
            long_running=long_running,
            stream=stream,
            public=public,
            routing=self.routing,
            redirected=not (stream or public) and _is_redirected(upstream, method, path),
        )


def _is_redirected(upstream: Upstream, method: str, path: str) -> bool:
    redirects = upstream.redirects
    # The backend may get the decoded path. Encoded again, it must be the text that the action token is about.
    return redirects is not None and redirects.cover(method, path) and is_usually_encoded(path)


def _check_name(path: str) -> None:
    """Reject odd names: kube-apiserver parses them unambiguously, workloads that it proxies to may not."""
    if has_odd_name(path):
        raise AmbiguousRequest("the path has a semicolon or a backslash")
