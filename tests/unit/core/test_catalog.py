"""Providers found by name: what cannot be loaded says what to install."""

from __future__ import annotations

import sys

import pytest

from ostiary.core import catalog
from ostiary.errors import ConfigurationError


@pytest.mark.parametrize(
    ("plugin_type", "name", "module", "extras"),
    [
        ("authorization", "cedar", "ostiary.plugins.cedar", "gateway,cedar"),
        ("authorization", "abac", "ostiary.plugins.abac.authorization", "gateway"),
        ("identity", "oidc", "ostiary.plugins.oidc.identity", "gateway,oidc"),
        ("identity", "github", "ostiary.plugins.github.identity", "gateway"),
    ],
)
def test_a_provider_whose_library_is_missing_names_the_extras(
    monkeypatch: pytest.MonkeyPatch, plugin_type: str, name: str, module: str, extras: str
) -> None:
    # As if one of its imports failed.
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigurationError) as caught:
        catalog.load(plugin_type, name)
    assert caught.value.hint == f"pip install 'ostiary[{extras}]'"
