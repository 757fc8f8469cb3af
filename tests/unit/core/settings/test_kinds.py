"""Each kind reads what it writes, and the schema of a declaration takes its defaults."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]
import pytest

from ostiary.core import catalog
from ostiary.core.config import Reading, parse
from ostiary.core.settings.declare import Setting, settings_of
from ostiary.core.settings.plugin_settings import declared_settings
from ostiary.core.settings.schema import plain_text, setting_schema
from ostiary.core.settings.sections import Section, Sections
from ostiary.gateway.config.settings.gateway_file import GatewayFile


def every_setting() -> Iterator[tuple[str, Setting]]:
    yield from settings_below("", GatewayFile)
    for plugin_type in catalog.TYPES:
        for entry in catalog.list_entries(plugin_type):
            if (declaration := declared_settings(plugin_type, entry.name)) is not None:
                yield from settings_below(f"{plugin_type}.{entry.name}.", declaration)


def settings_below(prefix: str, declaration: type) -> Iterator[tuple[str, Setting]]:
    for setting in settings_of(declaration):
        if isinstance(setting.kind, (Section, Sections)):
            yield from settings_below(f"{prefix}{setting.name}.", setting.kind.of)
        else:
            yield f"{prefix}{setting.name}", setting


EVERY = list(every_setting())
WITH_DEFAULT = [(path, setting) for path, setting in EVERY if setting.written_default not in (None, [], "")]


@pytest.mark.parametrize(("path", "setting"), WITH_DEFAULT, ids=[path for path, _ in WITH_DEFAULT])
def test_a_default_that_is_written_down_is_the_default(path: str, setting: Setting) -> None:
    reading = Reading(parse(json.dumps({setting.name: setting.written_default})))
    assert setting.kind.read(reading.root, setting.name, Path()) == setting.default
    assert reading.problems == []
    jsonschema.Draft202012Validator(setting_schema(setting)).validate(setting.written_default)


@pytest.mark.parametrize(("path", "setting"), EVERY, ids=[path for path, _ in EVERY])
def test_every_setting_is_described_in_one_line_and_says_what_holds_without_it(path: str, setting: Setting) -> None:
    assert setting.kind.doc
    assert "\n" not in setting.kind.doc
    assert not setting.kind.doc.endswith(".")
    assert setting.is_required or setting.kind.unset or setting.written_default is not None


def test_a_description_is_a_sentence_without_markdown() -> None:
    assert plain_text("the `name`, see [below](#there)") == "The name, see below."
