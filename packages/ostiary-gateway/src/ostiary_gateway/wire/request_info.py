"""RequestInfo of a Kubernetes API request: verb, group, resource, namespace, name. Pure.

Identical to kube-apiserver's RequestInfo, which determines what the upstream does. The path has been validated
(`ostiary_gateway.proxy.target`): no segment is empty, and decoding adds no slash. The query is parsed like Go's
``net/url``: the first value of a repeated name counts, and a pair that cannot be decoded is ignored.
"""

from __future__ import annotations

import re
from urllib.parse import unquote, unquote_to_bytes

from ostiary.model import RequestInfo, Requirement
from ostiary_gateway.interfaces.attributes import RequestLine
from ostiary_gateway.wire.selectors import SelectorError, parse_field_selector, parse_label_selector, readable

WATCH, PROXY = "Watch", "Proxy"

_VERBS = {"POST": "create", "GET": "get", "HEAD": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
# Legacy paths contain the verb: /api/v1/watch/pods.
_PREFIX_VERBS = frozenset(("proxy", "watch"))
_NAMESPACE_SUBRESOURCES = frozenset(("status", "finalize"))
_LONG_RUNNING_VERBS = frozenset(("watch", "proxy"))
_LONG_RUNNING_SUBRESOURCES = frozenset(("attach", "exec", "proxy", "log", "portforward"))
_BROKEN_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_INTEGER = re.compile(r"[+-]?[0-9]{1,40}")
_INT64 = 2**63


def request_info(line: RequestLine) -> RequestInfo:
    """Return the attributes of *line*; raises `ValueError` if Kubernetes cannot determine them either."""
    path = unquote(line.path, errors="strict") if "%" in line.path else line.path
    parts = path.strip("/").split("/")
    if parts[0] == "api" and len(parts) >= 3:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) >= 4:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return RequestInfo(line.method.lower(), line.method, path, of_kubernetes=True)
    verb, rest, in_path = _verb(line.method, rest)
    namespace, rest = _namespace(rest)
    resource, name, subresource = (*rest[:3], "", "")[:3]
    if verb == "proxy":
        subresource = ""
    fields = labels = None
    if not name and not in_path and verb in ("get", "delete"):
        verb, name, fields, labels = _collection(verb, line.query)
    return RequestInfo(
        verb=verb,
        method=line.method,
        path=path,
        is_resource=True,
        modifier=_modifier(verb, subresource),
        api_group=group,
        api_version=version,
        namespace=namespace,
        resource=resource,
        subresource=subresource,
        name=name,
        field_selector=fields,
        label_selector=labels,
        of_kubernetes=True,
    )


def long_running(info: RequestInfo) -> bool:
    """Whether kube-apiserver applies no timeout to the response."""
    if info.is_resource:
        return info.verb in _LONG_RUNNING_VERBS or info.subresource in _LONG_RUNNING_SUBRESOURCES
    return info.path.startswith("/debug/pprof/")


def _verb(method: str, rest: list[str]) -> tuple[str, list[str], bool]:
    """Return the verb, the rest of the path, and whether the verb was in the path."""
    if rest[0] not in _PREFIX_VERBS:
        return _VERBS.get(method, ""), rest, False
    if len(rest) < 2:
        raise ValueError("the path names a verb and no resource")
    return rest[0], rest[1:], True


def _namespace(rest: list[str]) -> tuple[str, list[str]]:
    """Return the namespace, and the path from the resource on. In Kubernetes, a namespace is in itself."""
    if rest[0] != "namespaces" or len(rest) < 2:
        return "", rest
    inside = len(rest) > 2 and rest[2] not in _NAMESPACE_SUBRESOURCES
    return rest[1], rest[2:] if inside else rest


def _modifier(verb: str, subresource: str) -> str:
    if verb == "watch":
        return WATCH
    return PROXY if "proxy" in (verb, subresource) else ""


# The query, if the path names no object.

_Conditions = tuple[Requirement, ...] | None


def _collection(verb: str, query: str) -> tuple[str, str, _Conditions, _Conditions]:
    values = first_values(query) if query else {}
    fields = readable(parse_field_selector, values.get("fieldSelector", ""))
    labels = readable(parse_label_selector, values.get("labelSelector", ""))
    if verb == "delete":
        return "deletecollection", "", fields, labels
    name = _selected_name(fields) if fields and _decodable(values) else ""
    return "watch" if is_true(values.get("watch")) else "list", name, fields, labels


def first_values(query: str) -> dict[str, str]:
    """Return the first value of each name. Bytes that are not UTF-8 become lone surrogates, which match nothing."""
    values: dict[str, str] = {}
    for pair in query.split("&"):
        if pair and ";" not in pair and not _BROKEN_ESCAPE.search(pair):
            name, _, value = pair.partition("=")
            values.setdefault(_decode(name), _decode(value))
    return values


def is_true(value: str | None) -> bool:
    """Parse a boolean of a query like Kubernetes: anything is true but its absence, ``false`` and ``0``."""
    return value is not None and value.lower() not in ("false", "0")


def _decode(text: str) -> str:
    if "%" not in text and "+" not in text:
        return text
    return unquote_to_bytes(text.replace("+", " ")).decode("utf-8", "surrogateescape")


def _decodable(values: dict[str, str]) -> bool:
    """Whether Kubernetes can decode the list options; if not, it takes no name from their selector."""
    for name in ("limit", "timeoutSeconds"):
        value = values.get(name)
        if value is not None and not (_INTEGER.fullmatch(value) and -_INT64 <= int(value) < _INT64):
            return False
    try:
        parse_label_selector(values.get("labelSelector", ""))
    except SelectorError:
        return False
    return True


def _selected_name(fields: tuple[Requirement, ...]) -> str:
    """Return the only object that the selector can match, so that a rule for its name covers listing it alone."""
    for requirement in fields:
        if requirement.key == "metadata.name" and requirement.operator == "In":
            name = requirement.values[0]
            return "" if name in (".", "..") or "/" in name or "%" in name else name
    return ""
