"""Which proxy it is, from its answers. Pure. What is not recognised can be said with ``--proxy``."""

from __future__ import annotations

from ostiary.cli.doctor.traffic.observed import Answer

NGINX, TRAEFIK, CADDY, ENVOY, HAPROXY, BUILT_IN = PROXIES = ("nginx", "traefik", "caddy", "envoy", "haproxy", "ostiary")


def recognised_proxy(plain: Answer, nonsense: Answer) -> str:
    """*plain* is the answer to a request that reached the echo, and *nonsense* to one that is none. Empty: unknown."""
    servers = b" ".join(answer.header(b"server") + answer.header(b"via") for answer in (plain, nonsense)).lower()
    for name in (NGINX, CADDY, ENVOY):
        if name.encode() in servers:
            return name
    if b"openresty" in servers:
        return NGINX
    if b"Your browser sent an invalid request" in nonsense.body:
        return HAPROXY
    # Of the gateway itself: a proxy that asks it does not ask about what is no request.
    if nonsense.header(b"audit-id"):
        return BUILT_IN
    # Go's server says so by itself; of the two that are made with it, Caddy says its name.
    return TRAEFIK if nonsense.body.startswith(b"400 Bad Request") else ""
