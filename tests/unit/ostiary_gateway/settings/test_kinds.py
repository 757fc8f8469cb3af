"""Each kind reads what it writes, and the schema of a declaration takes its defaults."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]

from ostiary.core.entry_points import list_entries
from ostiary.core.yaml import ConfigReader, parse
from ostiary_gateway import catalog
from ostiary_gateway.config.gateway_file import GatewayFile
from ostiary_gateway.settings.declare import Setting, settings_of
from ostiary_gateway.settings.sections import Section, Sections, declared_settings, plain_text, setting_schema


def every_setting() -> Iterator[tuple[str, Setting]]:
    yield from settings_below("", GatewayFile)
    for plugin_type in catalog.TYPES:
        for entry in list_entries(plugin_type):
            if (declaration := declared_settings(plugin_type, entry.name)) is not None:
                yield from settings_below(f"{plugin_type}.{entry.name}.", declaration)


def settings_below(prefix: str, declaration: type) -> Iterator[tuple[str, Setting]]:
    for setting in settings_of(declaration):
        if isinstance(setting.kind, (Section, Sections)):
            yield from settings_below(f"{prefix}{setting.name}.", setting.kind.of)
        else:
            yield f"{prefix}{setting.name}", setting


def test_a_default_that_is_written_down_is_the_default() -> None:
    checked, wrong = 0, []
    for path, setting in every_setting():
        default = setting.written_default
        if default in (None, [], ""):
            continue
        reading = ConfigReader(parse(json.dumps({setting.name: default})))
        value = setting.kind.read(reading.root, setting.name, Path())
        invalid = list(jsonschema.Draft202012Validator(setting_schema(setting)).iter_errors(default))
        if value != setting.default or reading.problems or invalid:
            wrong.append((path, default, value, setting.default, reading.problems, invalid))
        checked += 1
    assert not wrong, "\n".join(map(str, wrong))
    assert checked > 200


def test_every_setting_is_described_in_one_line_and_says_what_holds_without_it() -> None:
    settings = dict(every_setting())
    assert len(settings) > 500
    docs = {path: setting.kind.doc for path, setting in settings.items()}
    no_line = [f"{path}: {doc!r}" for path, doc in docs.items() if not doc or "\n" in doc or doc.endswith(".")]
    assert not no_line, "\n".join(no_line)
    optional = {path: setting for path, setting in settings.items() if not setting.is_required}
    unexplained = [path for path, each in optional.items() if not each.kind.unset and each.written_default is None]
    assert not unexplained, "\n".join(unexplained)


def test_a_description_is_a_sentence_without_markdown() -> None:
    assert plain_text("the `name`, see [below](#there)") == "The name, see below."
