"""Pages whose YAML is a part of a configuration, and has no commands beside it: ``serve --check`` accepts it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

PAGES = Path(__file__).parents[2] / "docs" / "how-to"
UPSTREAM = {"name": "prod", "server": "http://127.0.0.1:8001", "attributes": {"type": "kubernetes"}}
# What the pages take for granted.
REST: dict[str, Any] = {
    "apiVersion": "ostiary.dev/v1",
    "kind": "Gateway",
    "listen": {"address": "127.0.0.1:8443"},
    "externalURL": "https://gateway.example",
    "store": {"type": "memory"},
    "identity": [{"name": "staff", "type": "oidc", "issuer": "https://sso.example.com", "clientID": "gateway"}],
    "authorization": {"chain": [{"name": "all", "type": "allow_all", "upstreams": "all"}]},
    "upstreams": [UPSTREAM],
}


@pytest.mark.parametrize("name", ["all-my-clusters.md", "require-a-second-factor.md"])
def test_the_settings_of_the_page_are_accepted(name: str, tmp_path: Path) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (PAGES / name).read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        settings = yaml.safe_load(block)
        for file in re.findall(r"(?:tokenFile|certificateAuthority|ca): ([\w.-]+)", block):
            (tmp_path / file).write_text("secret")
            (tmp_path / file).chmod(0o600)
        (tmp_path / "gateway.yaml").write_text(yaml.safe_dump({**REST, **settings}))
        command = [sys.executable, "-m", "ostiary_gateway", "serve", "--check", "--config", "gateway.yaml"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
