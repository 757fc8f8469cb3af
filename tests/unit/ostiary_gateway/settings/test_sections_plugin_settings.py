"""Settings that another package declares are found by their entry point, and the provider is not imported for it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ostiary.errors import ConfigurationError
from ostiary_gateway.config.schema import gateway_schema
from ostiary_gateway.settings.sections import declared_settings

SETTINGS = """
from __future__ import annotations
from dataclasses import dataclass
from typing import Annotated
from ostiary_gateway.settings.kinds import Text

@dataclass(frozen=True)
class AcmeSettings:
    url: Annotated[str, Text("where it is")]

not_a_declaration = 7
"""


def install(folder: Path, points: str, settings: str = SETTINGS) -> None:
    (folder / "acme_of_test_settings.py").write_text(settings)
    (folder / "acme_of_test.py").write_text("raise SystemExit('the provider was imported')")
    metadata = folder / "acme_of_test-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-of-test\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(points)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "acme_of_test_settings", raising=False)
    return tmp_path


POINTS = """\
[ostiary.identity]
acme = acme_of_test:AcmeIdentity
silent = acme_of_test:Silent
[ostiary.settings]
identity.acme = acme_of_test_settings:AcmeSettings
"""


def test_a_foreign_provider_that_declares_its_settings_is_in_the_schema(folder: Path) -> None:
    install(folder, POINTS)
    declaration = declared_settings("identity", "acme")
    assert declaration is not None
    definitions = gateway_schema()["$defs"]
    assert isinstance(definitions, dict)
    acme = definitions["identity.acme"]
    assert isinstance(acme, dict)
    assert acme["required"] == ["name", "type", "url"]
    assert acme["additionalProperties"] is False


def test_one_that_declares_nothing_may_have_any_settings(folder: Path) -> None:
    install(folder, POINTS)
    assert declared_settings("identity", "silent") is None
    definitions = gateway_schema()["$defs"]
    assert isinstance(definitions, dict)
    assert "identity.silent" not in definitions


@pytest.mark.parametrize(
    "settings", ["raise RuntimeError('secret')", "AcmeSettings = 7", "class AcmeSettings: pass"], ids=str
)
def test_what_is_no_declaration_is_named_and_not_quoted(folder: Path, settings: str) -> None:
    install(folder, POINTS, settings)
    with pytest.raises(ConfigurationError) as caught:
        declared_settings("identity", "acme")
    assert caught.value.code == "plugin-broken"
    assert "secret" not in str(caught.value)
