"""Read the object in the body of a request to Kubernetes, if it is unambiguous.

The decision must be about what kube-apiserver will read from the same bytes. So everything that two parsers could read
differently is `Unreadable`: duplicate fields, encodings, formats without fields (JSON patch, protobuf), and all but the
plainest YAML: no anchors, tags or merges, and no scalars whose type depends on the YAML version, such as ``yes``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NoReturn

import yaml

from ostiary_gateway.interfaces.attributes import RequestContent

JSON, YAML = "application/json", "application/yaml"
# The content types of each verb. These patches have fields at the same paths as the object.
_FORMS = {
    "create": frozenset((JSON, YAML)),
    "update": frozenset((JSON, YAML)),
    "patch": frozenset(
        (
            "application/merge-patch+json",
            "application/strategic-merge-patch+json",
            "application/apply-patch+yaml",
        )
    ),
}
_KNOWN = {
    "application/json-patch+json": "it is a JSON patch",
    "application/vnd.kubernetes.protobuf": "it is protobuf",
}
# YAML is slow to parse, and nearly all clients send JSON.
LARGEST_YAML = 16 * 1024
# Libyaml's parser is many times as fast, if PyYAML was built with it.
_LOADER: type[yaml.CSafeLoader | yaml.SafeLoader] = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
_DEEPEST = 100
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")
_CERTAIN_TEXT = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
# A YAML 1.1 parser reads these as other types than text, in some spelling.
_NOT_CERTAIN = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))


class Unreadable(Exception):
    """The object cannot be read unambiguously. The message has the reason, and does not quote the object."""


class OddScalar:
    """A plain YAML scalar whose type differs between parsers. Harmless unless a rule needs its value."""


ODD = OddScalar()


def read_object(verb: str, content: RequestContent) -> dict[str, object]:
    """Return the object in the body. Raises `Unreadable`."""
    form = _form(verb, content)
    try:
        text = content.body.decode("utf-8")
    except UnicodeDecodeError:
        raise Unreadable("it is not UTF-8") from None
    document = _read(text, is_yaml=form.endswith("yaml"))
    if not isinstance(document, dict):
        raise Unreadable("it is not an object")
    return document


def _form(verb: str, content: RequestContent) -> str:
    if any(each.strip().lower() != "identity" for each in content.content_encodings):
        raise Unreadable("it is compressed")
    if len(content.content_types) > 1:
        raise Unreadable("it has two content types")
    # Without a content type kube-apiserver reads JSON.
    form, _, parameters = (content.content_types[0] if content.content_types else JSON).partition(";")
    form = form.strip().lower()
    if form not in _FORMS.get(verb, ()):
        raise Unreadable(_KNOWN.get(form, "its content type is another"))
    if parameters.replace(" ", "").lower() not in ("", "charset=utf-8"):
        raise Unreadable("its content type has parameters")
    return form


def _read(text: str, *, is_yaml: bool) -> object:
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except RecursionError:
        raise Unreadable("it is nested too deeply") from None
    except ValueError:
        if not is_yaml:
            raise Unreadable("it is not JSON") from None
    return _read_yaml(text)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise Unreadable("a field stands twice in it")
    if "<<" in fields:
        raise Unreadable("it has a field that a reader of YAML could take for a merge")
    return fields


def _refuse_constant(_: str) -> NoReturn:
    raise Unreadable("it has a number that JSON does not have")


# --- YAML ---


def _read_yaml(text: str) -> object:
    if len(text) > LARGEST_YAML:
        raise Unreadable("it is too large for YAML")
    if text.lstrip().startswith("%"):
        raise Unreadable("it has directives")
    try:
        events = [event for event in yaml.parse(text, Loader=_LOADER) if not _is_frame(event)]
    except (yaml.YAMLError, ValueError, RecursionError):
        raise Unreadable("it is not YAML") from None
    rest = iter(events)
    document = _node(rest, 0)
    if next(rest, None) is not None:
        raise Unreadable("it is more than one document")
    return document


def _is_frame(event: yaml.Event) -> bool:
    return isinstance(
        event, (yaml.StreamStartEvent, yaml.StreamEndEvent, yaml.DocumentStartEvent, yaml.DocumentEndEvent)
    )


def _node(events: Iterator[yaml.Event], depth: int, event: yaml.Event | None = None) -> object:
    """Return the next value of *events*. *event* is its first event if the caller has already consumed it."""
    event = event or next(events, None)
    if depth > _DEEPEST:
        raise Unreadable("it is nested too deeply")
    if not isinstance(event, (yaml.ScalarEvent, yaml.CollectionStartEvent)) or event.anchor or event.tag:
        raise Unreadable("it has anchors or tags, or is empty")
    if isinstance(event, yaml.ScalarEvent):
        return _scalar(event)
    parts: list[object] = []
    is_list = isinstance(event, yaml.SequenceStartEvent)
    while not isinstance(event := next(events), yaml.CollectionEndEvent):
        is_key = not is_list and len(parts) % 2 == 0
        parts.append(_key(event) if is_key else _node(events, depth + 1, event))
    if is_list:
        return parts
    return _unique([(str(key), value) for key, value in zip(parts[::2], parts[1::2], strict=True)])


def _key(event: yaml.Event) -> str:
    if not isinstance(event, yaml.ScalarEvent) or event.anchor or event.tag or event.value == "<<":
        raise Unreadable("it has a key that is not a name")
    return event.value


def _scalar(event: yaml.ScalarEvent) -> object:
    text = event.value
    if event.style:
        # Quoted, or a block: a string for every parser.
        return text
    if text in ("", "~", "null"):
        return None
    if text in ("true", "false"):
        return text == "true"
    if _INTEGER.fullmatch(text):
        return int(text)
    return text if _CERTAIN_TEXT.fullmatch(text) and text.lower() not in _NOT_CERTAIN else ODD
