"""JSON Schema of declared settings (`core.settings.declare`), for editors; printed by ``ostiary serve --schema``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import ClassVar, Protocol, cast, runtime_checkable

from ostiary.core.config.document import Json
from ostiary.core.settings.declare import Setting, settings_of


@runtime_checkable
class ConstrainsFields(Protocol):
    """A declaration with something to add that JSON Schema can say of several fields: both or none, say."""

    SCHEMA: ClassVar[Mapping[str, object]]


def object_schema(*declarations: type) -> dict[str, Json]:
    """A mapping with the fields of all *declarations* and no others."""
    settings = [setting for declaration in declarations for setting in settings_of(declaration)]
    schema: dict[str, Json] = {
        "type": "object",
        "properties": {setting.name: setting_schema(setting) for setting in settings},
        "additionalProperties": False,
    }
    if required := required_names(settings):
        schema["required"] = list(required)
    for declaration in declarations:
        if isinstance(declaration, ConstrainsFields):
            schema.update(cast("Mapping[str, Json]", declaration.SCHEMA))
    return schema


def setting_schema(setting: Setting) -> dict[str, Json]:
    schema: dict[str, Json] = {"description": plain_text(setting.kind.doc), **setting.kind.schema()}
    default = setting.written_default
    if default is not None and default not in ([], ""):
        schema["default"] = default
    return schema


def required_names(settings: Iterable[Setting]) -> list[str]:
    """Those that must stand in the file: required settings, and sections that have one."""
    return [setting.name for setting in settings if setting.kind.must_be_written(is_required=setting.is_required)]


def plain_text(doc: str) -> str:
    """A line of the reference without its Markdown, as a sentence."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", doc).replace("`", "").replace("*", "")
    return f"{text[:1].upper()}{text[1:]}." if text else ""
