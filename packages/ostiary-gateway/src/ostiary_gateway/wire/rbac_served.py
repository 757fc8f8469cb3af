"""Roles and bindings as an API server serves them: pages of lists, and the events of a watch. Pure.

The server has validated them, so nothing is rejected here that it accepts: unknown fields are ignored, and aggregated
roles contain the rules that the cluster's controller has filled in. Objects that cannot be parsed nevertheless are
reported individually.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from sys import intern
from typing import Any, NamedTuple

import msgspec

from ostiary.core.policy_rules import PolicyRule
from ostiary_gateway.interfaces.authorization import Subject
from ostiary_gateway.wire.rbac import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, GROUP, ROLE, ROLE_BINDING, V1, Binding, Role

BASE_PATH = f"/apis/{V1}"
# Resources of the API by kind, in the order of client-go's informers.
PLURALS = {
    ROLE: "roles",
    ROLE_BINDING: "rolebindings",
    CLUSTER_ROLE: "clusterroles",
    CLUSTER_ROLE_BINDING: "clusterrolebindings",
}
ADDED, MODIFIED, DELETED, BOOKMARK, ERROR = "ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"

_NAMESPACED = frozenset((ROLE, ROLE_BINDING))
_Strings = tuple[str, ...] | None


class UnreadableAnswer(ValueError):
    """The response is not what was requested. The message does not quote it."""


@dataclass(frozen=True, slots=True)
class ServedPage:
    """A page of a list. `unreadable` are the names of objects that could not be parsed, empty if they have none."""

    items: tuple[Role | Binding, ...]
    resource_version: str
    continue_token: str = ""
    unreadable: tuple[str, ...] = ()


class ServedEvent(NamedTuple):
    """One change. `item` is None for a bookmark, an error, a deletion, and an object that could not be parsed.

    `code` is the status code of an error.
    """

    type: str
    namespace: str = ""
    name: str = ""
    resource_version: str = ""
    item: Role | Binding | None = None
    code: int = 0


class _Served(msgspec.Struct, rename="camel"):
    pass


class _Metadata(_Served):
    name: str = ""
    namespace: str | None = None
    resource_version: str = ""


class _ServedRule(_Served):
    verbs: _Strings = None
    api_groups: _Strings = None
    resources: _Strings = None
    resource_names: _Strings = None
    non_resource_urls: _Strings = msgspec.field(name="nonResourceURLs", default=None)


class _ServedSubject(_Served):
    kind: str = ""
    name: str = ""
    namespace: str | None = None


class _RoleRef(_Served):
    kind: str = ""
    name: str = ""


class _ServedRole(_Served):
    metadata: _Metadata
    kind: str = ""
    rules: tuple[_ServedRule, ...] | None = None


class _ServedBinding(_Served):
    metadata: _Metadata
    role_ref: _RoleRef
    kind: str = ""
    subjects: tuple[_ServedSubject, ...] | None = None


class _AnyObject(_Served):
    """The common fields of every object, for one whose rest cannot be parsed."""

    metadata: _Metadata
    kind: str = ""


class _ListMetadata(_Served):
    resource_version: str = ""
    continue_token: str | None = msgspec.field(name="continue", default=None)


class _RoleList(_Served):
    metadata: _ListMetadata
    kind: str = ""
    api_version: str = ""
    items: list[_ServedRole] | None = None


class _BindingList(_Served):
    metadata: _ListMetadata
    kind: str = ""
    api_version: str = ""
    items: list[_ServedBinding] | None = None


class _AnyList(_Served):
    metadata: _ListMetadata
    kind: str = ""
    api_version: str = ""
    items: list[msgspec.Raw] | None = None


class _Event(_Served):
    type: str
    object: msgspec.Raw


class _ServedStatus(_Served):
    kind: str = ""
    code: int = 0


# Created once: creating a decoder while another thread does the same crashes msgspec 0.22.
_ROLE = msgspec.json.Decoder(_ServedRole)
_BINDING = msgspec.json.Decoder(_ServedBinding)
_ROLES = msgspec.json.Decoder(_RoleList)
_BINDINGS = msgspec.json.Decoder(_BindingList)
_ANY_LIST = msgspec.json.Decoder(_AnyList)
_ANY_OBJECT = msgspec.json.Decoder(_AnyObject)
_EVENT = msgspec.json.Decoder(_Event)
_STATUS = msgspec.json.Decoder(_ServedStatus)
_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_UNKNOWN = ""
_ENTRY_CHARACTERS = 1024


def decode_page(kind: str, data: bytes) -> ServedPage:
    """Decode a page of the list of *kind*; raises `UnreadableAnswer` if it is none."""
    decoder: msgspec.json.Decoder[Any] = _ROLES if kind in (ROLE, CLUSTER_ROLE) else _BINDINGS
    try:
        page = decoder.decode(data)
        objects = iter(page.items or ())
    except _ERRORS:
        # One object or the whole page is invalid: decode the objects one by one.
        page = _decode(_ANY_LIST, data, "a list")
        objects = _readable(kind, page.items or ())
    if (page.kind, page.api_version) != (f"{kind}List", V1):
        raise UnreadableAnswer(f"it is no {kind}List of {GROUP}")
    if not page.metadata.resource_version:
        raise UnreadableAnswer("the list has no resourceVersion")
    make = _MAKERS[kind]
    items, unreadable = list[Role | Binding](), list[str]()
    for served in objects:
        item = None if isinstance(served, str) else make(kind, served)
        if item is None:
            unreadable.append(served if isinstance(served, str) else served.metadata.name)
        else:
            items.append(item)
    return ServedPage(
        tuple(items), page.metadata.resource_version, page.metadata.continue_token or "", tuple(unreadable)
    )


def decode_event(kind: str, line: bytes) -> ServedEvent:
    """Decode one line of a watch of *kind*; raises `UnreadableAnswer` if it is none."""
    event = _decode(_EVENT, line, "an event")
    if event.type == ERROR:
        status = _decode(_STATUS, event.object, "a Status")
        return ServedEvent(ERROR, code=status.code)
    if event.type not in (ADDED, MODIFIED, DELETED, BOOKMARK):
        raise UnreadableAnswer("its type is unknown")
    bare = _decode(_ANY_OBJECT, event.object, "an object")
    if bare.kind != kind:
        raise UnreadableAnswer("the object is of another kind")
    metadata = bare.metadata
    if event.type == BOOKMARK:
        return ServedEvent(BOOKMARK, resource_version=metadata.resource_version)
    if not _is_named(kind, metadata):
        raise UnreadableAnswer("the object has no name, or one that no object can have")
    item = None if event.type == DELETED else _read_object(kind, event.object)
    namespace = intern(metadata.namespace or "") if kind in _NAMESPACED else ""
    return ServedEvent(event.type, namespace, metadata.name, metadata.resource_version, item)


def decode_status_code(data: bytes) -> int:
    """Return the code of a Status; 0 if it is none."""
    try:
        return _STATUS.decode(data).code
    except _ERRORS:
        return 0


def entries_of(item: Role | Binding) -> int:
    """Return the size in policy entries: the subjects of a binding, or the values in a role's rules; at least one.

    Every kilobyte of names counts as another entry: the server accepts objects with a megabyte of names.
    """
    if isinstance(item, Binding):
        length = len(item.role_name) + sum([len(subject.name) for subject in item.subjects])
        return (len(item.subjects) or 1) + length // _ENTRY_CHARACTERS
    count = length = 0
    for rule in item.rules:
        for listed in (rule.verbs, rule.api_groups, rule.resources, rule.resource_names, rule.non_resource_urls):
            count += len(listed)
            length += sum(map(len, listed))
    return (count or 1) + length // _ENTRY_CHARACTERS


def _decode(decoder: msgspec.json.Decoder[Any], data: bytes | msgspec.Raw, what: str) -> Any:
    try:
        return decoder.decode(data)
    except _ERRORS:
        raise UnreadableAnswer(f"it is not {what}") from None


def _read_object(kind: str, data: msgspec.Raw) -> Role | Binding | None:
    try:
        served: Any = (_ROLE if kind in (ROLE, CLUSTER_ROLE) else _BINDING).decode(data)
    except _ERRORS:
        return None
    return _MAKERS[kind](kind, served)


def _readable(kind: str, items: list[msgspec.Raw] | tuple[()]) -> Iterator[Any]:
    """Yield each object that can be parsed, and the names of the others."""
    decoder: msgspec.json.Decoder[Any] = _ROLE if kind in (ROLE, CLUSTER_ROLE) else _BINDING
    for data in items:
        try:
            yield decoder.decode(data)
        except _ERRORS:
            try:
                yield _ANY_OBJECT.decode(data).metadata.name
            except _ERRORS:
                yield _UNKNOWN


def _is_named(kind: str, metadata: _Metadata) -> bool:
    name = metadata.name
    if not name or "/" in name or "%" in name or name in (".", ".."):
        return False
    return bool(metadata.namespace) or kind not in _NAMESPACED


def _role(kind: str, served: _ServedRole) -> Role | None:
    metadata = served.metadata
    if (served.kind and served.kind != kind) or not _is_named(kind, metadata):
        return None
    namespace = intern(metadata.namespace or "") if kind in _NAMESPACED else ""
    return Role(kind, metadata.name, namespace, tuple(map(_rule, served.rules or ())))


def _rule(served: _ServedRule) -> PolicyRule:
    return PolicyRule(
        served.verbs or (),
        served.api_groups or (),
        served.resources or (),
        served.resource_names or (),
        served.non_resource_urls or (),
    )


def _binding(kind: str, served: _ServedBinding) -> Binding | None:
    metadata = served.metadata
    if (served.kind and served.kind != kind) or not _is_named(kind, metadata):
        return None
    namespace = intern(metadata.namespace or "") if kind in _NAMESPACED else ""
    role = served.role_ref
    subjects = tuple(
        Subject(intern(subject.kind), subject.name, subject.namespace or "") for subject in served.subjects or ()
    )
    return Binding(kind, metadata.name, namespace, intern(role.kind), intern(role.name), subjects)


_Maker = Callable[[str, Any], "Role | Binding | None"]
_MAKERS: dict[str, _Maker] = {
    ROLE: _role,
    CLUSTER_ROLE: _role,
    ROLE_BINDING: _binding,
    CLUSTER_ROLE_BINDING: _binding,
}
