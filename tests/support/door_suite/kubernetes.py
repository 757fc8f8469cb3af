"""Requests to an upstream with the paths of Kubernetes: verbs, selectors, subresources, and what is hidden by verb."""

from __future__ import annotations

from functools import partial

from tests.support.door_cases import (
    ANY_HOST,
    HIDES_NOTHING,
    MIDDLEWARES,
    NO_SCOPES,
    NOBODY_ELSE,
    NORMALISES,
    OWN_READING,
    Case,
)

HOST = "cluster.example"
PODS = "/api/v1/namespaces/x/pods"
SECRETS = "/api/v1/namespaces/x/secrets"
MAPS = "/api/v1/namespaces/x/configmaps"
HIDDEN = "/api/v1/namespaces/hidden/pods"
_at = partial(Case, host=HOST)
_not_hidden = partial(_at, status=404, differs={"webhooks": HIDES_NOTHING})
_scoped = partial(_at, user="reader", differs={"webhooks": NO_SCOPES})
_as_another = partial(_at, differs=dict.fromkeys(MIDDLEWARES, NOBODY_ELSE))

READ = (
    *("", "/", "?", "?limit=500", "?watch=false", "?watch=0", "?watch=true", "?watch=1", "?watch", "?watch=TRUE&x=1"),
    *(
        "?resourceVersion=7&timeoutSeconds=9",
        "/p",
        "/p/",
        "/p?pretty=true",
        "/p/log",
        "/p/log?follow=true",
        "/p/status",
    ),
    *("/a.b-c", "/a%3Ab", "/p?watch=true", "?fieldSelector=spec.nodeName%3Dn", "?labelSelector=a%2Cb%21%3Dc"),
)
# A middleware does not see whether an empty query was there, and WSGI not what was encoded.
_LOST = {"?": dict.fromkeys(MIDDLEWARES, NORMALISES), "/a%3Ab": {"wsgi": NORMALISES}}
# Of secrets, only what these name may be read.
SELECTED = (
    *("fieldSelector=metadata.name%3Dpublic", "fieldSelector=metadata.name=public"),
    *("fieldSelector=metadata.name%3D%3Dpublic", "watch=true&fieldSelector=metadata.name%3Dpublic"),
    *("labelSelector=team%3Da", "labelSelector=team=a", "labelSelector=team==a", "labelSelector=team+in+%28a%29"),
    *(
        "labelSelector=team%20in%20(a)",
        "labelSelector=x,team=a",
        "%6CabelSelector=team=a",
        "watch=1&labelSelector=team=a",
    ),
    # Of a name that comes twice, the first counts.
    *("labelSelector=team=a&labelSelector=team=b", "labelSelector=team=a&fieldSelector="),
)
NOT_SELECTED = (
    *("", "fieldSelector=", "fieldSelector=metadata.name%3Dother", "fieldSelector=metadata.name!=public"),
    *("fieldSelector=metadata.name%3Dpublic,x=y", "fieldSelector=metadata.name", "FieldSelector=metadata.name=public"),
    *("labelSelector=team=b", "labelSelector=team!=a", "labelSelector=team", "labelSelector=team+in+(a,b)"),
    *(
        "labelSelector=team=b&labelSelector=team=a",
        "labelselector=team=a",
        "labelSelector=(",
        "labelSelector=team%253Da",
    ),
    *("%26labelSelector=team=a", "x=labelSelector=team=a"),
)
BROKEN_QUERIES = (
    "labelSelector%00=team=a",
    "labelSelector=team=a%",
    "labelSelector=team=a;x",
    "x;labelSelector=team=a",
)
DENIED = (
    *("/api/v1/pods", "/api/v1/namespaces/y/pods", "/api/v1/namespaces/x", "/api/v1/namespaces", "/api/v1/nodes/n"),
    *("/apis/apps/v1/namespaces/x/pods", "/apis/apps/v1/namespaces/x/deployments", f"{PODS}/p/proxy", f"{PODS}/p/x"),
    *(f"{PODS}/p/proxy/a/b", "/api/v1/namespaces/X/pods", "/api/v1/namespaces/x/PODS", f"{SECRETS}/public"),
    *("/denied", "/api/v1/watch/namespaces/y/pods"),
)
TERMINALS = (f"{PODS}/p/exec", f"{PODS}/p/exec?command=id&stdin=true")
PATHS = ("/version", "/api", "/apis", "/api/v1", "/apis/apps/v1", "/openapi/v2?timeout=9s", "/healthz", "/cluster-only")


def _reading() -> list[Case]:
    cases = [_at(f"pods{more}", PODS + more, differs=_LOST.get(more, {})) for more in READ]
    cases += [_at("watch in the path", "/api/v1/watch/namespaces/x/pods")]
    cases += [_at("HEAD pods", PODS, "HEAD"), _at("HEAD of a pod", f"{PODS}/p", "HEAD")]
    cases += [_at(f"secrets ?{query}", f"{SECRETS}?{query}") for query in SELECTED]
    cases += [_at(f"other secrets ?{query}", f"{SECRETS}?{query}", status=403) for query in NOT_SELECTED]
    # No query at all; Traefik makes another one of a semicolon.
    read_elsewhere = {"webhooks": OWN_READING, "traefik": NORMALISES}
    cases += [
        _at(f"broken ?{query}", f"{SECRETS}?{query}", status=400, differs=read_elsewhere) for query in BROKEN_QUERIES
    ]
    cases += [_at(f"cluster {path}", path) for path in PATHS]
    return cases


def _changing() -> list[Case]:
    body = b'{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"m"}}'
    one = ("PUT", "PATCH", "DELETE")
    cases = [_at("create", MAPS, "POST", body=body)]
    cases += [_at(f"{method} one", f"{MAPS}/m", method, body=b"" if method == "DELETE" else body) for method in one]
    cases += [_at(f"{method} a pod", f"{PODS}/p", method, status=403) for method in one]
    cases += [
        _at("create a pod", PODS, "POST", status=403),
        _at("delete all", MAPS, "DELETE", status=403),
        _at("delete all secrets of a label", f"{SECRETS}?labelSelector=team=a", "DELETE", status=403),
        _at("delete all secrets of a name", f"{SECRETS}?fieldSelector=metadata.name=public", "DELETE"),
        _at("a terminal by POST", f"{PODS}/p/exec", "POST", status=403),
        _at("read what may be written", f"{MAPS}/m", status=403),
        _at("HEAD what may be written", f"{MAPS}/m", "HEAD", status=403),
        _at("a verb without a resource", "/api/v1/watch", status=400),
    ]
    return cases


def _refusing() -> list[Case]:
    cases = [_at(f"cluster denied {path}", path, status=403) for path in DENIED]
    # A terminal that is opened by GET takes what POST takes.
    cases += [_at(f"GET {path}", path, status=403, differs={"webhooks": OWN_READING}) for path in TERMINALS]
    cases += [_at("of another upstream", "/shop-only", status=403, differs={"webhooks": ANY_HOST})]
    hidden = (HIDDEN, f"{HIDDEN}/p", f"{HIDDEN}/p/log", "/api/v1/namespaces/hidden")
    cases += [_not_hidden(f"hidden GET {path}", path) for path in hidden]
    cases += [_not_hidden("hidden in the cluster HEAD", f"{HIDDEN}/p", "HEAD")]
    # Only what can be missing is hidden.
    cases += [_at("hidden in the cluster watch", f"{HIDDEN}?watch=true", status=403)]
    cases += [
        _at(f"hidden in the cluster {method}", f"{HIDDEN}/p", method, status=403)
        for method in ("PUT", "PATCH", "DELETE", "POST")
    ]
    cases += [_at(f"pods {who}", PODS, user=user, status=401) for who, user in (("nobody", None), ("later", "revoked"))]
    return cases


def _in_less_or_other_names() -> list[Case]:
    as_bob = (("Impersonate-User", "bob"),)
    return [
        _scoped("scope: list", PODS),
        _scoped("scope: get", f"{PODS}/p"),
        _scoped("scope: watch", f"{PODS}?watch=true", status=403),
        _scoped("scope: log", f"{PODS}/p/log", status=403),
        _scoped("scope: secrets of a label", f"{SECRETS}?labelSelector=team=a", status=403),
        _scoped("scope: a path", "/version", status=403),
        _scoped("scope: hidden", f"{HIDDEN}/p", status=404),
        _scoped("scope: hidden log", f"{HIDDEN}/p/log", status=403),
        _as_another("pods as another", PODS, headers=as_bob, told="bob"),
        _at(
            "hidden as another",
            HIDDEN,
            headers=as_bob,
            status=404,
            differs={"webhooks": HIDES_NOTHING, **dict.fromkeys(MIDDLEWARES, NOBODY_ELSE)},
        ),
        _as_another("denied as another", "/api/v1/pods", headers=as_bob, status=403),
        _as_another("the rights of another", PODS, user="bob", headers=(("Impersonate-User", "alice"),), status=403),
    ]


CASES = [*_reading(), *_changing(), *_refusing(), *_in_less_or_other_names()]
