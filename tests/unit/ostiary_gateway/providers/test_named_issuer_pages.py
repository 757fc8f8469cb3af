"""The pages about issuers that are known by name: what they show works, and every setting stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ostiary.core.yaml import ConfigReader, parse
from ostiary_gateway import catalog
from ostiary_gateway.catalog import Context
from ostiary_gateway.providers.oidc.presets import NamedIssuerIdentity

PAGES = Path(__file__).parents[4] / "docs/how-to"
TYPES = ("auth0", "gitlab", "google", "keycloak", "microsoft", "okta")


def page_of(name: str) -> str:
    return (PAGES / f"sign-in-with-{name}.md").read_text()


def shown_entry(name: str) -> dict[str, Any]:
    block = re.search(r"^```yaml\n# gateway.yaml\n(.*?)^```", page_of(name), re.MULTILINE | re.DOTALL)
    assert block is not None
    (entry,) = yaml.safe_load(block[1])["identity"]
    assert entry["type"] == name
    return {key: value for key, value in entry.items() if key not in ("name", "type")}


def test_an_issuer_that_is_known_by_name_is_an_identity_provider(
    subtests: pytest.Subtests, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """S1: identity as a service. A few settings are enough, and the page shows them."""
    for name in TYPES:
        with subtests.test(name=name):
            tmp_path = tmp_path_factory.mktemp("case")
            provider_class: Any = catalog.load("identity", name)
            assert issubclass(provider_class, NamedIssuerIdentity)
            settings = shown_entry(name)
            (tmp_path / settings["clientSecretFile"]).write_text("secret")
            reading = ConfigReader(parse(yaml.safe_dump(settings)))
            provider = provider_class.from_config(reading.root, Context("staff", tmp_path))
            assert reading.problems == []
            assert reading.unknown_fields() == ()
            assert provider._issuer.url.startswith("https://")


def test_every_setting_stands_on_its_page(subtests: pytest.Subtests, tmp_path_factory: pytest.TempPathFactory) -> None:
    for name in TYPES:
        with subtests.test(name=name):
            tmp_path = tmp_path_factory.mktemp("case")
            reading = ConfigReader(parse("{}"))
            catalog.load("identity", name).from_config(reading.root, Context("staff", tmp_path))
            assert [setting for setting in reading.root._asked if f"`{setting}`" not in page_of(name)] == []


def test_the_page_about_all_issuers_leads_to_them() -> None:
    page = (PAGES / "sign-in-with-oidc.md").read_text()
    assert [name for name in TYPES if f"(sign-in-with-{name}.md)" not in page] == []
