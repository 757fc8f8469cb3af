"""Settings of a provider under a key that stands for its type: found by the key, and read by the provider."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ostiary.core.yaml import ConfigReader, ConfigSection, parse
from ostiary_gateway.audit.file_sink import FileAuditSettings
from ostiary_gateway.settings.declare import NoSettings, read_settings, settings_of
from ostiary_gateway.settings.sections import ProviderFlag, ProviderSettings, table


@dataclass(frozen=True, slots=True)
class Declared:
    log: Annotated[ConfigSection | None, ProviderSettings("to a file", "audit", unset="none")] = None
    unknown: Annotated[ConfigSection | None, ProviderSettings("to nowhere", "audit", unset="none")] = None
    stdout: Annotated[bool, ProviderFlag("to standard output", "audit")] = False


def test_the_key_says_whose_settings_they_are() -> None:
    log, unknown, _ = [setting.kind for setting in settings_of(Declared)]
    assert isinstance(log, ProviderSettings)
    assert isinstance(unknown, ProviderSettings)
    assert (log.key, log.of) == ("log", FileAuditSettings)
    assert unknown.of is NoSettings


def test_the_reference_and_the_schema_show_what_the_provider_declares() -> None:
    assert "| `log.path` | file | required in `log` |" in table(Declared)
    (schema, *_) = [setting.kind.schema() for setting in settings_of(Declared)]
    assert schema["required"] == ["path"]


def test_they_are_left_to_the_provider_to_read() -> None:
    reading = ConfigReader(parse('{"log": {"path": "x", "nonsense": 1}, "stdout": true}'))
    settings = read_settings(Declared, reading.root, Path())
    assert settings.log is not None
    assert (settings.unknown, settings.stdout) == (None, True)
    assert settings.log.string("path") == "x"
    assert reading.problems == []
