"""Providers found by name: what cannot be loaded says what to install."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ostiary.errors import ConfigurationError
from ostiary_gateway import catalog
from tests.unit.ostiary_gateway import acme


def test_a_provider_whose_library_is_missing_names_the_extras(subtests: pytest.Subtests) -> None:
    cases = [
        ("authorization", "cedar", "ostiary_gateway.providers.cedar", "[cedar]"),
        ("identity", "oidc", "ostiary_gateway.providers.oidc.identity", "[oidc]"),
        ("identity", "keycloak", "ostiary_gateway.providers.oidc.presets", "[oidc]"),
        ("identity", "google", "ostiary_gateway.providers.oidc.presets", "[oidc]"),
        ("identity", "sso_cookie", "ostiary_gateway.providers.sso_cookie", "[oidc]"),
        ("identity", "github", "ostiary_gateway.providers.github.identity", ""),
    ]
    for plugin_type, name, module, extras in cases:
        with (
            subtests.test(plugin_type=plugin_type, name=name, module=module, extras=extras),
            pytest.MonkeyPatch.context() as monkeypatch,
        ):
            # As if one of its imports failed.
            monkeypatch.setitem(sys.modules, module, None)
            with pytest.raises(ConfigurationError) as caught:
                catalog.load(plugin_type, name)
            package = f"'ostiary-gateway{extras}'" if extras else "ostiary-gateway"
            assert caught.value.hint == f"pip install {package}"


def test_endings_of_policy_files_lead_to_the_provider_that_declares_them() -> None:
    assert catalog.policy_endings() == {".cedar": "cedar"}


def test_a_foreign_provider_may_have_an_ending_of_its_own_and_none_of_two_claims_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = (
        "[ostiary.authorization]\nrego = acme:Rego\n"
        "[ostiary.policy_file]\nrego = acme:Rego\ncedar = acme:Rego\nlost = acme:Gone\n"
    )
    acme.install(tmp_path, monkeypatch, points)
    endings = catalog.policy_endings()
    assert endings[".rego"] == "rego"
    assert ".cedar" not in endings, "two providers claim it"
    assert ".lost" not in endings, "no provider has this target"


def test_a_key_of_the_configuration_leads_to_the_provider_that_declares_it() -> None:
    assert catalog.type_for_key("audit", "log") == "file"
    assert catalog.type_for_key("audit", "nothing") is None


def test_a_key_that_two_providers_claim_leads_to_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody takes over the audit log by being installed: the gateway does not start."""
    points = "[ostiary.audit]\nacme = acme:Acme\n[ostiary.audit_key]\nlog = acme:Acme\nlost = acme:Gone\n"
    acme.install(tmp_path, monkeypatch, points)
    assert catalog.type_for_key("audit", "log") is None
    assert catalog.type_for_key("audit", "lost") is None
    assert catalog.type_for_key("audit", "webhook") == "webhook"
