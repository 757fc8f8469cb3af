"""What an implementation of the Gateway API makes of a route with ``ExternalAuth``, for Envoy.

As the specification of the filter says: only 200 is success; Host, method, path and Authorization are sent, and of the
other headers those that are listed; of the headers of the answer, those that are listed are copied into the request.
Filters are applied in the order of the route.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

_FILTERS = "type.googleapis.com/envoy.extensions.filters"


def envoy_for_routes(text: str, port: int, ca: Path) -> str:
    routes = [document for document in yaml.safe_load_all(text) if document]
    assert {route["kind"] for route in routes} == {"HTTPRoute"}
    rules = [
        (route["metadata"]["name"], route["spec"]["hostnames"], rule)
        for route in routes
        for rule in route["spec"]["rules"]
    ]
    rules.sort(key=lambda named: _precedence(named[2]))
    # Each rule has its own filters. Envoy has one list of them, of which a route switches off those of other rules.
    filters = {number: _filters(number, rule) for number, (_, _, rule) in enumerate(rules)}
    hosts: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for number, (_, names, rule) in enumerate(rules):
        others = [each["name"] for other, listed in filters.items() if other != number for each in listed]
        hosts.setdefault(tuple(names), []).extend(_routes(rule, f"backend-{number}", others))
    manager = {
        "@type": f"{_FILTERS}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "route",
        "use_remote_address": True,
        "normalize_path": True,
        "merge_slashes": True,
        "path_with_escaped_slashes_action": "REJECT_REQUEST",
        "http_filters": [
            *(each for listed in filters.values() for each in listed),
            {"name": "router", "typed_config": {"@type": f"{_FILTERS}.http.router.v3.Router"}},
        ],
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "-".join(names),
                    "domains": [form for name in names for form in (name, f"{name}:*")],
                    "routes": listed,
                }
                for names, listed in hosts.items()
            ]
        },
    }
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    listener = {"name": "l", "address": _address("127.0.0.1", port), "filter_chains": [chain]}
    (auth,) = {_gateway(rule) for _, _, rule in rules if "filters" in rule}
    gateway = {"name": auth[0], "port": auth[1]}
    clusters = [_cluster("auth", gateway) | _tls(auth[0], ca)]
    for number, (_, _, rule) in enumerate(rules):
        (backend,) = rule["backendRefs"]
        tls = _tls(auth[0], ca) if backend == gateway else {}
        clusters.append(_cluster(f"backend-{number}", backend) | tls)
    return json.dumps({"static_resources": {"listeners": [listener], "clusters": clusters}})


def _precedence(rule: dict[str, Any]) -> tuple[bool, int]:
    """An exact path goes before a prefix, and a long prefix before a short one, whatever the order of the rules."""
    paths = [match["path"] for match in rule["matches"]]
    return min((path["type"] != "Exact", -len(path["value"])) for path in paths)


def _gateway(rule: dict[str, Any]) -> tuple[str, int]:
    (auth,) = [each["externalAuth"]["backendRef"] for each in rule["filters"] if each["type"] == "ExternalAuth"]
    return auth["name"], auth["port"]


def _filters(number: int, rule: dict[str, Any]) -> list[dict[str, Any]]:
    filters = [_filter(each) for each in rule.get("filters", ())]
    return [each | {"name": f"{number}-{index}"} for index, each in enumerate(filters)]


def _routes(rule: dict[str, Any], cluster: str, others: list[str]) -> list[dict[str, Any]]:
    off = {"@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "disabled": True}
    return [
        {
            "match": _match(match["path"]),
            "route": {"cluster": cluster},
            "typed_per_filter_config": dict.fromkeys(others, off),
        }
        for match in rule["matches"]
    ]


def _match(path: dict[str, str]) -> dict[str, str]:
    if path["type"] == "Exact":
        return {"path": path["value"]}
    # A prefix is whole segments.
    return {"prefix": "/"} if path["value"] == "/" else {"path_separated_prefix": path["value"]}


def _filter(configured: dict[str, Any]) -> dict[str, Any]:
    if configured["type"] == "RequestHeaderModifier":
        return _modifier(configured["requestHeaderModifier"])
    auth = configured["externalAuth"]
    assert (configured["type"], auth["protocol"]) == ("ExternalAuth", "HTTP")
    everything = {"patterns": [{"safe_regex": {"regex": "[^:].*"}}]}
    answered = [{"exact": name, "ignore_case": True} for name in auth["http"]["allowedResponseHeaders"]]
    return {
        "typed_config": {
            "@type": f"{_FILTERS}.http.ext_authz.v3.ExtAuthz",
            "status_on_error": {"code": "ServiceUnavailable"},
            "allowed_headers": {
                "patterns": [{"exact": name, "ignore_case": True} for name in auth["http"]["allowedHeaders"]]
            },
            "http_service": {
                "server_uri": {"uri": "https://auth", "cluster": "auth", "timeout": "15s"},
                "path_prefix": auth["http"]["path"],
                "authorization_response": {
                    "allowed_upstream_headers": {"patterns": answered},
                    "allowed_client_headers": everything,
                },
            },
        },
    }


def _modifier(configured: dict[str, Any]) -> dict[str, Any]:
    mutations = [
        {"append": {"header": {"key": each["name"], "value": each["value"]}, "append_action": OVERWRITE}}
        for each in configured.get("set", ())
    ]
    mutations += [{"remove": name} for name in configured.get("remove", ())]
    typed = {
        "@type": f"{_FILTERS}.http.header_mutation.v3.HeaderMutation",
        "mutations": {"request_mutations": mutations},
    }
    return {"typed_config": typed}


OVERWRITE = "OVERWRITE_IF_EXISTS_OR_ADD"


def _cluster(name: str, reference: dict[str, Any]) -> dict[str, Any]:
    endpoint = {"endpoint": {"address": _address(reference["name"], reference["port"])}}
    return {
        "name": name,
        "type": "LOGICAL_DNS",
        "dns_lookup_family": "ALL",
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [endpoint]}]},
    }


def _tls(name: str, ca: Path) -> dict[str, Any]:
    san = {"san_type": "DNS", "matcher": {"exact": name}}
    trust = {"trusted_ca": {"filename": str(ca)}, "match_typed_subject_alt_names": [san]}
    context = {
        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
        "sni": name,
        "common_tls_context": {"validation_context": trust},
    }
    return {"transport_socket": {"name": "envoy.transport_sockets.tls", "typed_config": context}}


def _address(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}
