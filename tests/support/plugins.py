"""Exec plugins for the tests: real scripts, whose answer can be changed and whose runs are counted."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

SCRIPT = """#!/bin/sh
cd {folder}
echo run >> runs
printf '%s' "$KUBERNETES_EXEC_INFO" >> infos
if [ -e before ]; then . ./before; fi
cat answer
exit $(cat exit)
"""


def exec_credential(
    *,
    token: str | None = None,
    certificate: str | None = None,
    key: str | None = None,
    key_address: str | None = None,
    expires_at: datetime | str | None = None,
    version: str = "v1",
) -> dict[str, Any]:
    status = {
        "token": token,
        "clientCertificateData": certificate,
        "clientKeyData": key,
        "clientKeyAddress": key_address,
        "expirationTimestamp": expires_at.isoformat() if isinstance(expires_at, datetime) else expires_at,
    }
    return {
        "apiVersion": f"client.authentication.k8s.io/{version}",
        "kind": "ExecCredential",
        "status": {name: value for name, value in status.items() if value is not None},
    }


class PluginScript:
    """A plugin in a folder of its own. `answer` says what the next run prints."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.path = folder / "plugin"
        self.path.write_text(SCRIPT.format(folder=folder))
        self.path.chmod(0o755)
        self.print_exactly(b"")
        self.exit(0)

    def answer(self, **fields: Any) -> PluginScript:
        return self.print_exactly(json.dumps(exec_credential(**fields)).encode())

    def print_exactly(self, data: bytes) -> PluginScript:
        # Renamed into place: a plugin that runs at this moment prints the old answer or the new one, whole.
        (self.folder / "answer.new").write_bytes(data)
        os.replace(self.folder / "answer.new", self.folder / "answer")
        return self

    def exit(self, code: int) -> PluginScript:
        (self.folder / "exit").write_text(str(code))
        return self

    def before(self, shell: str) -> PluginScript:
        """Shell lines to run before the answer is printed."""
        (self.folder / "before").write_text(shell)
        return self

    @property
    def runs(self) -> int:
        runs = self.folder / "runs"
        return len(runs.read_text().splitlines()) if runs.exists() else 0

    @property
    def infos(self) -> list[str]:
        """What each run was told in KUBERNETES_EXEC_INFO, newline included."""
        infos = self.folder / "infos"
        return infos.read_text().splitlines(keepends=True) if infos.exists() else []


def write_kubeconfig(
    path: Path,
    *,
    server: str,
    user: dict[str, Any],
    cluster: dict[str, Any] | None = None,
    namespace: str | None = None,
) -> Path:
    """A kubeconfig with one cluster, one user and one context that joins them."""
    context = {"cluster": "test", "user": "dev", **({"namespace": namespace} if namespace else {})}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": server, **(cluster or {})}}],
        "users": [{"name": "dev", "user": user}],
        "contexts": [{"name": "test", "context": context}],
    }
    # JSON is YAML in which no string can be taken for something else.
    path.write_text(json.dumps(config, indent=1))
    return path


def exec_user(command: str | Path, *, version: str = "v1", mode: str | None = "Never", **fields: Any) -> dict[str, Any]:
    """The ``user`` of a kubeconfig that runs *command*."""
    stanza: dict[str, Any] = {
        "apiVersion": f"client.authentication.k8s.io/{version}", "command": str(command), **fields
    }  # fmt: skip
    if mode is not None:
        stanza["interactiveMode"] = mode
    return {"exec": stanza}
