"""Content negotiation as in kube-apiserver: the encoding of a body, and the accepted encoding of a response. Pure.

An ``Accept`` header that cannot be satisfied is a 406, an unsupported encoding of a body a 415. Both rules are the API
server's own: a subtype wildcard (``application/*``) is not accepted, and names are case-sensitive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple
from urllib.parse import parse_qs

JSON, YAML, PROTOBUF = "application/json", "application/yaml", "application/vnd.kubernetes.protobuf"
MEDIA_TYPES = (JSON, YAML, PROTOBUF)
# What an object can be converted to with the parameter ``as``.
PARTIAL_METADATA = "PartialObjectMetadata"
_META_GROUP, _META_VERSIONS = "meta.k8s.io", frozenset(("v1", "v1beta1"))
_TRUE = frozenset(("1", "t", "T", "TRUE", "true", "True"))
# Clients whose output is read by humans.
_FOR_PEOPLE = ("curl", "Wget", "Mozilla/5.0")


class Representation(NamedTuple):
    """How to write a response. `metadata_version`: only the metadata, in this version of ``meta.k8s.io``."""

    media_type: str = JSON
    pretty: bool = False
    metadata_version: str = ""


class _Clause(NamedTuple):
    type: str
    subtype: str
    quality: float
    parameters: Mapping[str, str]


def wanted_representation(accept: str, *, query: str = "", user_agent: str = "") -> Representation | None:
    """Return the representation that ``Accept`` requests; None if none of it is available."""
    pretty = _is_pretty(query, user_agent)
    if not accept.strip():
        return Representation(JSON, pretty)
    if not any(_is_produced(part) for part in accept.split(",")):
        return None
    for clause in _by_preference(accept):
        for media_type in MEDIA_TYPES:
            if _covers(clause, media_type):
                representation = _representation(clause, media_type, pretty=pretty)
                if representation is not None:
                    return representation
    return None


def body_media_type(content_type: str) -> str | None:
    """Return the encoding of a body; None if the API server does not support it. The default is JSON."""
    if not content_type.strip():
        return JSON
    media_type = content_type.partition(";")[0].strip().lower()
    return media_type if media_type in MEDIA_TYPES else None


def _is_pretty(query: str, user_agent: str) -> bool:
    if "pretty" in query:
        value = next(iter(parse_qs(query, keep_blank_values=True).get("pretty", ())), "")
        if value:
            return value in _TRUE
    return user_agent.startswith(_FOR_PEOPLE)


def _is_produced(part: str) -> bool:
    """Whether one of the types is an exact name, or everything. kube-apiserver checks this first."""
    name = part.partition(";")[0].strip()
    return name == "*/*" or name in MEDIA_TYPES


def _by_preference(accept: str) -> list[_Clause]:
    def order(clause: _Clause) -> tuple[float, bool, bool]:
        return -clause.quality, clause.type == "*", clause.subtype == "*"

    return sorted(_clauses(accept.split(",")), key=order)


def _clauses(parts: Iterable[str]) -> Iterator[_Clause]:
    for part in parts:
        name, *parameters = part.split(";")
        type_, slash, subtype = name.strip().partition("/")
        if not slash and type_ == "*":
            subtype = "*"
        elif not slash:
            continue
        pairs = (parameter.partition("=") for parameter in parameters if "=" in parameter)
        values = {key.strip(): value.strip() for key, _, value in pairs}
        yield _Clause(type_.strip(), subtype.strip(), _quality(values.pop("q", "1")), values)


def _quality(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 1.0


def _covers(clause: _Clause, media_type: str) -> bool:
    type_, _, subtype = media_type.partition("/")
    return (clause.type in (type_, "*") and clause.subtype == "*") or (clause.type, clause.subtype) == (type_, subtype)


def _representation(clause: _Clause, media_type: str, *, pretty: bool) -> Representation | None:
    parameters = clause.parameters
    if parameters.get("stream", "watch") != "watch":
        return None
    version = ""
    if parameters.get("as"):
        # A review has no columns, so it cannot be a Table.
        version = parameters.get("v", "")
        partial = parameters["as"] == PARTIAL_METADATA and parameters.get("g") == _META_GROUP
        if not partial or version not in _META_VERSIONS:
            return None
    return Representation(media_type, pretty or parameters.get("pretty") == "1", version)
