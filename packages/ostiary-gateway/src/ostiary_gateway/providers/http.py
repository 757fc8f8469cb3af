"""The attribute mapper ``http``: requests to any other HTTP API.

    attributes:
      type: http
      modifiers:
        - {query: watch, modifier: Watch}
        - {suffix: /restart, method: POST, modifier: Restart}
      templates:
        - /v1/{namespace}/{resource}
        - /v1/{namespace}/{resource}/{name}

Without settings no path is a resource: the verb is the method in lower case, and policies name paths. A template turns
matching paths into resources, with the verbs of Kubernetes. A modifier of such a path is its verb: ``restart`` must be
allowed by itself, and is not a kind of ``create``. The first matching template counts, and the first modifier.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Self
from urllib.parse import unquote, unquote_plus

from ostiary.core.yaml import ConfigSection
from ostiary.model import RequestInfo
from ostiary_gateway.catalog import Context
from ostiary_gateway.interfaces.attributes import RequestLine
from ostiary_gateway.settings.declare import read_settings
from ostiary_gateway.settings.kinds import Text, Texts
from ostiary_gateway.settings.sections import Sections
from ostiary_gateway.wire.request_info import is_true

_VERBS = {"POST": "create", "GET": "get", "HEAD": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_OF_COLLECTION = {"get": "list", "delete": "deletecollection"}
_PARTS = ("group", "version", "namespace", "resource", "name", "subresource")
_PLACEHOLDER = re.compile(r"\{([a-z]+)\}")
_WATCH = "Watch"


@dataclass(frozen=True, slots=True)
class Modifier:
    """Applies to requests that meet all its conditions: a true query parameter, a suffix of the path, a method."""

    modifier: Annotated[
        str,
        Text("its name", empty="", missing="a modifier needs a name", missing_hint="as in: modifier: Restart"),
    ]
    query: Annotated[str, Text("a query parameter that is true", empty="", unset="any")] = ""
    suffix: Annotated[str, Text("what the path ends in", empty="", unset="any")] = ""
    method: Annotated[str, Text("the method", empty="", unset="any")] = ""

    def check(self, fields: ConfigSection) -> None:
        if not self.query and not self.suffix and fields.is_right("query", "suffix"):
            fields.problem("it would apply to every request", hint="name a query parameter or a suffix of the path")
        if self.suffix and not self.suffix.startswith("/"):
            fields.problem("a suffix is whole segments, and begins with a slash", "suffix")
        if self.method != self.method.upper():
            fields.problem("a method is written in capital letters", "method")


@dataclass(frozen=True, slots=True)
class HttpAttributesSettings:
    """The settings of the mapper ``http``."""

    templates: Annotated[
        tuple[str, ...], Texts("paths of resources, as in `/{namespace}/{resource}/{name}`", unique=True)
    ] = ()
    modifiers: Annotated[
        tuple[Modifier, ...], Sections("what makes a request a special one", Modifier, "One modifier.")
    ] = ()


class HttpAttributes:
    """Raises `ValueError` for an invalid template, and from `request_info` for an invalid request."""

    def __init__(self, *, modifiers: Sequence[Modifier] = (), templates: Sequence[str] = ()) -> None:
        self._modifiers = tuple(modifiers)
        self._templates = tuple(_compile(template) for template in templates)

    @classmethod
    def from_config(cls, fields: ConfigSection, context: Context) -> Self:
        settings = read_settings(HttpAttributesSettings, fields, context.directory)
        templates = [text for text in settings.templates if _check_template(fields, text)]
        return cls(modifiers=settings.modifiers, templates=templates)

    def request_info(self, line: RequestLine) -> RequestInfo:
        path = unquote(line.path, errors="strict")
        # Few APIs distinguish a path from the same path with a trailing slash, so neither do modifiers and templates.
        bare = path.rstrip("/")
        applied = self._modifier_for(line, bare)
        modifier = applied.modifier if applied is not None else ""
        object_path = bare.removesuffix(applied.suffix) if applied is not None else bare
        for template in self._templates:
            match = template.fullmatch(object_path)
            if match is not None:
                return _resource(line.method, path, modifier, match.groupdict(""))
        return RequestInfo(line.method.lower(), line.method, path, modifier=modifier)

    def long_running(self, info: RequestInfo) -> bool:
        return info.modifier == _WATCH

    def _modifier_for(self, line: RequestLine, path: str) -> Modifier | None:
        return next((modifier for modifier in self._modifiers if _applies(modifier, line, path)), None)


def _applies(modifier: Modifier, line: RequestLine, path: str) -> bool:
    if modifier.method and modifier.method != line.method:
        return False
    if modifier.suffix and not path.endswith(modifier.suffix):
        return False
    return not modifier.query or _asks(line.query, modifier.query)


def _asks(query: str, name: str) -> bool:
    pairs = (pair.partition("=") for pair in query.split("&") if pair)
    values = [unquote_plus(value) for key, _, value in pairs if unquote_plus(key) == name]
    if len(values) > 1:
        # Some APIs use the first of them, others the last.
        raise ValueError("duplicate query parameter that changes the request")
    return bool(values) and is_true(values[0])


def _resource(method: str, path: str, modifier: str, parts: dict[str, str]) -> RequestInfo:
    verb = _VERBS.get(method, method.lower())
    if not parts.get("name"):
        verb = _OF_COLLECTION.get(verb, verb)
    return RequestInfo(
        verb=modifier.lower() or verb,
        method=method,
        path=path,
        is_resource=True,
        modifier=modifier,
        api_group=parts.get("group", ""),
        api_version=parts.get("version", ""),
        namespace=parts.get("namespace", ""),
        resource=parts.get("resource", ""),
        subresource=parts.get("subresource", ""),
        name=parts.get("name", ""),
    )


# --- settings ---


def _compile(template: str) -> re.Pattern[str]:
    """Return the regular expression of a template. Raises `ValueError` with a message that may be shown."""
    if not template.startswith("/"):
        raise ValueError("a template is a path and begins with a slash")
    expression, group_names = "", set[str]()
    for segment in template.strip("/").split("/"):
        placeholder = _PLACEHOLDER.fullmatch(segment)
        if placeholder is None:
            if "{" in segment or "}" in segment:
                raise ValueError("a placeholder fills its whole segment")
            expression += "/" + re.escape(segment)
            continue
        name = placeholder[1]
        if name not in _PARTS or name in group_names:
            raise ValueError(f"the placeholders are {', '.join(_PARTS)}, each once")
        group_names.add(name)
        expression += f"/(?P<{name}>[^/]+)"
    if "resource" not in group_names:
        raise ValueError("a template must say where the {resource} stands")
    return re.compile(expression)


def _check_template(fields: ConfigSection, text: str) -> bool:
    try:
        _compile(text)
    except ValueError as error:
        fields.problem(str(error), "templates")
        return False
    return True
