"""Requests to an API of its own paths, which templates make resources of; and paths that the gateway itself has."""

from __future__ import annotations

from tests.support.door_cases import ANSWERS_ITSELF, NO_SCOPES, OWN_REFUSAL, Case
from tests.support.door_suite.kubernetes import HOST as CLUSTER

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
# What may be done with each, whoever asks.
CARTS = {
    "/v1/x/carts": ("GET", "HEAD"),
    "/v1/x/carts/c1": ("GET", "HEAD"),
    "/v1/x/carts/c1/": ("GET", "HEAD"),
    "/v1/x/carts/c1?x=1": ("GET", "HEAD"),
    "/v1/x/carts/c1/restart": ("POST",),
    "/v1/x/carts/restart": ("POST", "GET", "HEAD"),
    "/v1/y/carts/c1": (),
    "/v1/x/orders": (),
}
# Below it are the gateway's own pages, its webhooks and its doors. At another door they are paths like any other.
OWN = ("/auth", "/auth/logout", "/webhooks/token-review", "/webhooks/x", "/doors/nginx/shop", "/doors/x/y")
# Where the printed configuration of nginx asks the gateway. Clients must not reach it.
ASKED_AT = "/_ostiary/shop"
REVIEW = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


def _carts() -> list[Case]:
    cases = [
        Case(f"{method} {target}", target, method, status=200 if method in allowed else 403)
        for target, allowed in CARTS.items()
        for method in METHODS
    ]
    narrowed = [("GET", "/v1/x/carts/c1", 200), ("GET", "/v1/x/carts", 403), ("POST", "/v1/x/carts/c1/restart", 403)]
    cases += [
        Case(f"narrowed {method} {target}", target, method, "clerk", status, differs={"webhooks": NO_SCOPES})
        for method, target, status in narrowed
    ]
    cases += [Case(f"{who} at carts", "/v1/x/carts/c1", user=user, status=401) for who, user in NOBODIES]
    return cases


NOBODIES = (("nobody", None), ("a stranger", "unknown"), ("who was", "revoked"))
HIDDEN = [Case(f"hidden carts {method}", "/v1/hidden/carts/c1", method, status=403) for method in METHODS[2:]]


def _own() -> list[Case]:
    itself = {"built-in": ANSWERS_ITSELF}
    cases = [Case(f"own {path}", path, differs=itself) for path in OWN]
    body = b'{"kind":"SelfSubjectAccessReview","apiVersion":"authorization.k8s.io/v1","spec":{}}'
    cases.append(Case(f"own {ASKED_AT}", ASKED_AT, differs={"nginx": OWN_REFUSAL}))
    cases.append(Case("a review of oneself", REVIEW, "POST", body=body, host=CLUSTER, status=403, differs=itself))
    return cases


CASES = [*_carts(), *HIDDEN, *_own()]
