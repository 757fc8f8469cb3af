"""Two gateways' folders: the one to move from, with sessions in it, and the one to move to."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.gateway import GatewayFolder


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GatewayFolder:
    monkeypatch.chdir(tmp_path)
    site = GatewayFolder(tmp_path)
    site.write_config("new.yaml", store={"type": "sqlite", "path": "new.db"})
    return site
