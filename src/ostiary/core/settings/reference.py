"""Tables of declared settings in Markdown, for the reference; written into it by ``scripts/reference``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from ostiary.core.config.document import Json
from ostiary.core.settings.declare import Setting, settings_of
from ostiary.core.settings.sections import OptionalSection, ProviderSettings, Section, Sections

HEAD = "| field | type | default | |\n| --- | --- | --- | --- |"
RESTART = "A change needs a restart."


def table(declaration: type, *, with_sections: bool = True) -> str:
    """The settings of *declaration*, a row each; those of a section have its name before theirs."""
    settings = settings_of(declaration)
    if not with_sections:
        settings = tuple(setting for setting in settings if not isinstance(setting.kind, (Section, Sections)))
    return "\n".join((HEAD, *_rows(settings, "")))


def _rows(settings: Iterable[Setting], prefix: str, required: str = "required") -> Iterator[str]:
    """Those that must be written come first."""
    for setting in sorted(settings, key=lambda setting: not setting.is_required):
        path, kind = f"{prefix}{setting.name}", setting.kind
        if isinstance(kind, (OptionalSection, ProviderSettings)) and not setting.is_required:
            yield from _rows(settings_of(kind.of), f"{path}.", f"required in `{path}`")
        elif isinstance(kind, Section):
            yield from _rows(settings_of(kind.of), f"{path}.", required)
        else:
            yield f"| `{path}` | {kind.label} | {_default(setting, required)} | {_meaning(setting)} |"
        if isinstance(kind, Sections):
            yield from _rows(settings_of(kind.of), f"{path}[].")


def _default(setting: Setting, required: str) -> str:
    if setting.is_required:
        return required
    default = setting.written_default
    if default is None:
        return setting.kind.unset
    return f"`{_as_yaml(default)}`" if default != [] else "none"


def _as_yaml(default: Json) -> str:
    return default if isinstance(default, str) else json.dumps(default).replace('"', "")


def _meaning(setting: Setting) -> str:
    return setting.kind.doc if setting.kind.reload else f"{setting.kind.doc}. {RESTART}"
