"""The configurations in the pages about GitHub and Google are ones that the providers take."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from ostiary.core.yaml import ConfigReader, parse
from ostiary_gateway.catalog import Configurable, Context
from ostiary_gateway.providers.github.groups import GitHubGroups
from ostiary_gateway.providers.github.identity import GitHubIdentity
from ostiary_gateway.providers.google_groups import GoogleGroups
from tests.support.google import Google

PAGES = Path(__file__).parents[4] / "docs/how-to"
CLASSES: dict[tuple[str, str], type[Configurable]] = {
    ("identity", "github"): GitHubIdentity,
    ("groups", "github"): GitHubGroups,
    ("groups", "google"): GoogleGroups,
}
# The gateway reads these itself.
OF_THE_GATEWAY = {"name", "type", "provider", "prefix", "identities"}


def entries(page: str) -> list[tuple[str, dict[str, Any]]]:
    blocks = re.findall(r"^```yaml\n(.*?)^```", (PAGES / page).read_text(), re.MULTILINE | re.DOTALL)
    documents = [document for block in blocks for document in yaml.safe_load_all(block)]
    return [
        (part, entry)
        for document in documents
        for part in ("identity", "groups")
        for entry in document.get(part, ())
        if "type" in entry and (part, entry["type"]) in CLASSES
    ]


@pytest.mark.parametrize(
    ("page", "expected"), [("sign-in-with-github.md", 3), ("google-groups.md", 2)], ids=["github", "google"]
)
def test_what_a_page_shows_is_read_without_a_complaint(
    page: str, expected: int, tmp_path: Path, ca: trustme.CA
) -> None:
    for name in ("github-client-secret", "github-token", "google-client-secret"):
        (tmp_path / name).write_text("secret")
    with Google(ca).running() as google:
        google.write_key(tmp_path / "service-account.json")
    found = entries(page)
    assert len(found) == expected
    for part, entry in found:
        settings = {key: value for key, value in entry.items() if key not in OF_THE_GATEWAY}
        reading = ConfigReader(parse(yaml.safe_dump(settings)))
        CLASSES[part, entry["type"]].from_config(reading.root, Context(entry["name"], tmp_path))
        assert reading.problems == []
        assert reading.unknown_fields() == ()


@pytest.mark.parametrize("provider", list(CLASSES.values()))
def test_every_setting_stands_on_a_page(provider: type[Configurable], tmp_path: Path) -> None:
    reading = ConfigReader(parse("{}"))
    provider.from_config(reading.root, Context("x", tmp_path))
    pages = "".join((PAGES / page).read_text() for page in ("sign-in-with-github.md", "google-groups.md"))
    assert reading.root._asked
    for setting in reading.root._asked:
        assert f"`{setting}`" in pages, setting
