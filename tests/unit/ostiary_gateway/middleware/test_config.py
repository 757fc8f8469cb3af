"""The declarations of ``backend.yaml`` are documented, and say what a schema needs."""

from __future__ import annotations

from ostiary_gateway.middleware.config import BackendFile
from ostiary_gateway.settings.declare import settings_of


def test_every_section_is_declared_with_a_sentence() -> None:
    names = {setting.name: setting.kind.doc for setting in settings_of(BackendFile)}
    assert {"gateway", "jwt", "attributes", "authorization", "audit", "upstream", "openPaths"} <= names.keys()
    assert all(len(doc.split()) > 2 for doc in names.values())
