"""Tables of declared settings in Markdown, for the reference; written into it by ``scripts/reference``."""

from __future__ import annotations

import json
from collections.abc import Iterator

from ostiary.core.config.declare import Setting, settings_of
from ostiary.core.config.document import Json
from ostiary.core.config.sections import Section, Sections

HEAD = "| field | type | default | |\n| --- | --- | --- | --- |"
RESTART = "A change needs a restart."


def table(*declarations: type) -> str:
    """The settings of *declarations*, a row each; those of a section follow with its name before theirs."""
    rows = [row for declaration in declarations for row in _rows(declaration, "")]
    return "\n".join((HEAD, *rows))


def _rows(declaration: type, prefix: str) -> Iterator[str]:
    for setting in settings_of(declaration):
        path = f"{prefix}{setting.name}"
        if isinstance(setting.kind, Section):
            yield from _rows(setting.kind.of, f"{path}.")
        else:
            yield f"| `{path}` | {setting.kind.label} | {_default(setting)} | {_meaning(setting)} |"
        if isinstance(setting.kind, Sections):
            yield from _rows(setting.kind.of, f"{path}[].")


def _default(setting: Setting) -> str:
    if setting.is_required:
        return "required"
    default = setting.written_default
    return setting.kind.unset if default is None else f"`{_written(default)}`" if default != [] else "none"


def _written(default: Json) -> str:
    return default if isinstance(default, str) else json.dumps(default).replace('"', "")


def _meaning(setting: Setting) -> str:
    return setting.kind.doc if setting.kind.reload else f"{setting.kind.doc}. {RESTART}"
