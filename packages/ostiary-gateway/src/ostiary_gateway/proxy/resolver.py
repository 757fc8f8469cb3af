"""What a request asks for, and where it would go.

Called by the engine for a request that it has no plan for yet. Finds who serves the request, and has the mapper say
what is asked.
"""

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
    """Nobody serves this host and path."""


class ResolvedRoute(NamedTuple):
    """Where a request would go: to one of our own APIs, or to an upstream. Its target has been checked."""

    path: str
    query: str
    # The path and the query, also where the client wrote a whole URL.
    target: bytes
    own: BuiltinApi | None
    upstream: Upstream | None


class RequestResolver:
    """Says what requests ask for."""

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
        # Another number after each change of who serves what.
        self.routing = 0

    def of(self, request: RequestHead) -> RequestAttributes:
        """What the request asks for; raises `ValueError` if that can be read in two ways."""
        return self.at(self.locate(request), request)

    def locate(self, request: RequestHead) -> ResolvedRoute:
        """Where the request would go; raises `ValueError` if its target can be read in two ways, or `NoRoute`."""
        target = request.target
        path, query = split_target(target, host=request.host, options=request.method == b"OPTIONS", any_name=True)
        if not target.startswith(b"/"):
            # A whole URL, which names us: what is decided on and forwarded is its path.
            target = (f"{path}?{query}" if query else path).encode("ascii")
        for own in self._own_apis:
            # Nearly no path begins like one of ours, so that is looked at first.
            if path.startswith(own.prefix) and (path == own.prefix or path.startswith(own.prefix + "/")):
                return ResolvedRoute(path, query, target, own, None)
        upstream = self._routes.find(request.host.decode("latin-1"), path)
        if upstream is None:
            raise NoRoute
        if upstream.settings.redirect is not None and names_parameter(query):
            raise AmbiguousRequest(f"the query has the parameter {PARAMETER}, which is for the gateway alone to set")
        return ResolvedRoute(path, query, target, None, upstream)

    def go_alike(self, above: str) -> bool:
        """Whether all paths that have one segment more than *above*, which ends with a slash, go to the same place."""
        return not any(prefix.startswith(above) for prefix in self._prefixes)

    def at(self, location: ResolvedRoute, request: RequestHead) -> RequestAttributes:
        """What the request asks for there; raises `ValueError` if that can be read in two ways."""
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
            # About oneself, and answered from our own policy: nothing has to be allowed.
            return RequestAttributes(info, (), target, handler=self._self_reviews, routing=self.routing)
        if upstream.is_kubernetes and self._api_groups and (route := self._api_groups.find(upstream, method, mapped)):
            # Decided as if the upstream served it: the policy sees one cluster, whoever serves a part of it.
            _check_name(path)
            if route.upstream is None:
                return RequestAttributes(info, (info,), target, handler=route.handler, routing=self.routing)
            upstream = route.upstream
        public = bool(upstream.settings.public) and is_listed(path, upstream.settings.public)
        also = upstream.also_required(info)
        required = () if public else (info,) if also is None else (info, also)
        long_running = upstream.mapper.long_running(info)
        # After a switch of protocols nobody knows how long it takes: it is a stream, whatever the path says.
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
    # A backend may get the path decoded. Encoded again, it must be the text that the proof is about.
    return redirects is not None and redirects.cover(method, path) and is_usually_encoded(path)


def _check_name(path: str) -> None:
    """Refuse odd names: only kube-apiserver is known to read them in one way, not the programs that it proxies to."""
    if has_odd_name(path):
        raise AmbiguousRequest("the path has a semicolon or a backslash")
