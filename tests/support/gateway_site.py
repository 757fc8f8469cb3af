"""A folder with a ``gateway.yaml`` for the commands that read one: policy in manifests, tokens in SQLite, an audit log.

Nothing is started here. `Site` in `tests.support.gateway` is for gateways that serve.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.support.gateway import role

__all__ = ["GatewayFolder", "role"]


class GatewayFolder:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "gateway.yaml"
        self.audit_log = folder / "audit.log"
        (folder / "token").write_text("a-token-of-the-gateway")
        self.policy()
        self.write()

    def policy(self, *manifests: Sequence[Any], name: str = "policy") -> Path:
        path = self.folder / name
        path.mkdir(exist_ok=True)
        documents = [document for manifest in manifests for document in manifest]
        (path / "policy.yaml").write_text(yaml.safe_dump_all(documents))
        return path

    def write(self, *, name: str = "gateway.yaml", **sections: Any) -> Path:
        cluster = {"name": "cluster", "server": "https://127.0.0.1:1", "attributes": {"type": "kubernetes"}}
        whole = {
            "apiVersion": "ostiary.dev/v1",
            "kind": "Gateway",
            "store": {"type": "sqlite", "path": "tokens.db"},
            "identity": [{"name": "me", "type": "single_user"}],
            "authorization": {"chain": [{"name": "cluster", "type": "rbac", "paths": ["policy"]}]},
            "upstreams": [{**cluster, "identity": "impersonation", "tokenFile": "token"}],
            "audit": {"log": {"path": "audit.log"}},
            **sections,
        }
        path = self.folder / name
        path.write_text(yaml.safe_dump(whole))
        return path
