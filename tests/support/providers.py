"""Credential providers for the tests: real scripts, whose answers can be changed and whose runs are counted."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from ostiary.registry.kubelet.model import ProviderConfig, ProvidersConfig, TokenAttributes

GROUP = "credentialprovider.kubelet.k8s.io"

SCRIPT = """#!/bin/sh
cd {folder}
request=$(cat)
printf '%s\\n' "$request" >> requests
image=${{request#*'"image":"'}}
image=${{image%%'"'*}}
registry=${{image%%/*}}
if [ -e before ]; then . ./before; fi
if [ -e "answer-$registry" ]; then cat "answer-$registry"; else cat answer; fi
exit $(cat exit)
"""
HELD = "echo started > started; read _ < release\n"

Auth = Mapping[str, tuple[str, str]]


def response(
    auth: Auth | None = None,
    *,
    key_type: str = "Registry",
    duration: str | None = None,
    version: str = "v1",
) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "kind": "CredentialProviderResponse",
        "apiVersion": f"{GROUP}/{version}",
        "cacheKeyType": key_type,
        "auth": {key: {"username": name, "password": word} for key, (name, word) in (auth or {}).items()},
    }
    return fields if duration is None else {**fields, "cacheDuration": duration}


class ProviderScript:
    """A provider in a folder of its own, which is also the directory of its executable."""

    def __init__(self, folder: Path, name: str = "provider") -> None:
        self.bin_dir = folder
        self.name = name
        self.folder = folder / f"{name}.d"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / name
        self.path.write_text(SCRIPT.format(folder=self.folder))
        self.path.chmod(0o755)
        self.print_exactly(b"")
        self.exit(0)

    def answer(self, auth: Auth | None = None, *, registry: str = "", **fields: Any) -> ProviderScript:
        """What it answers; for one *registry* alone, if given."""
        return self.print_exactly(json.dumps(response(auth, **fields)).encode(), registry=registry)

    def print_exactly(self, data: bytes, *, registry: str = "") -> ProviderScript:
        # Renamed into place: a provider that runs at this moment prints the old answer or the new one, whole.
        (self.folder / "new").write_bytes(data)
        os.replace(self.folder / "new", self.folder / (f"answer-{registry}" if registry else "answer"))
        return self

    def exit(self, code: int) -> ProviderScript:
        (self.folder / "exit").write_text(str(code))
        return self

    def before(self, shell: str) -> ProviderScript:
        """Shell lines to run before the answer is printed."""
        (self.folder / "before").write_text(shell)
        return self

    @contextmanager
    def held(self) -> Iterator[Hold]:
        """Inside, runs begin and do not end before they are let go."""
        for name in ("started", "release"):
            os.mkfifo(self.folder / name)
        self.before(HELD)
        hold = Hold(self.folder)
        try:
            yield hold
        finally:
            (self.folder / "before").unlink()
            hold.close()

    @property
    def requests(self) -> list[dict[str, Any]]:
        """What each run was asked."""
        file = self.folder / "requests"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    @property
    def runs(self) -> int:
        return len(self.requests)

    def config(self, *patterns: str, **fields: Any) -> ProviderConfig:
        fields.setdefault("default_cache_duration", timedelta(0))
        return ProviderConfig(self.name, patterns or ("*.registry.io",), **fields)


class Hold:
    def __init__(self, folder: Path) -> None:
        # For both ends, so that neither side waits for the other to open it.
        self._started = os.open(folder / "started", os.O_RDWR)
        self._release = os.open(folder / "release", os.O_RDWR)

    def wait_for_runs(self, count: int = 1) -> None:
        for _ in range(count):
            while os.read(self._started, 1) != b"\n":
                pass

    def let_go(self, count: int = 1) -> None:
        os.write(self._release, b"\n" * count)

    def close(self) -> None:
        os.close(self._started)
        os.close(self._release)


def providers_config(*providers: ProviderConfig, config_hash: str = "sha256:test") -> ProvidersConfig:
    return ProvidersConfig(providers, config_hash)


def token_attributes(*, cache_type: str = "ServiceAccount", require: bool = True, **keys: Any) -> TokenAttributes:
    return TokenAttributes("audience.example.com", cache_type, require, **keys)
