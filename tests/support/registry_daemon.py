"""A real ``ostiary registry serve`` for the tests, and the programs that ask it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from tests.support.providers import GROUP, ProviderScript

SECONDS = 30.0
PROGRAMS = Path(sys.executable).parent
Done = subprocess.CompletedProcess[str]


@cache
def _compiled() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="compiled")


class DaemonSite:
    """A folder with a configuration, a provider, a socket and switches of its own."""

    def __init__(self, folder: Path, *patterns: str) -> None:
        self.folder = folder
        self.socket = folder / "run" / "registry.sock"
        self.switches = folder / "switched-off"
        self.provider = ProviderScript(folder / "bin")
        self.config = folder / "registry.yaml"
        self.write_config(*(patterns or ("*.registry.io",)))

    def write_config(self, *patterns: str, **fields: Any) -> None:
        stanza = {
            "name": self.provider.name,
            "apiVersion": f"{GROUP}/v1",
            "matchImages": list(patterns),
            "defaultCacheDuration": "1h",
            **fields,
        }
        kind = {"apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig"}
        new = self.folder / "new"
        new.write_text(json.dumps({**kind, "providers": [stanza]}))
        os.replace(new, self.config)

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PATH": f"{PROGRAMS}:{os.environ['PATH']}",
            "HOME": str(self.folder),
            # Compiled once, as an installed package is, whatever this environment says of that.
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPYCACHEPREFIX": _compiled().name,
            "OSTIARY_REGISTRY_CONFIG": str(self.config),
            "OSTIARY_REGISTRY_BIN_DIR": str(self.provider.bin_dir),
            "OSTIARY_REGISTRY_SOCKET": str(self.socket),
            "OSTIARY_REGISTRY_SWITCHES": str(self.switches),
        }

    def run(self, *command: str, stdin: str = "", **env: str) -> Done:
        return subprocess.run(
            command, input=stdin, env={**self.environment, **env}, capture_output=True, text=True, timeout=SECONDS
        )

    def start(self, *command: str, stdin: str = "") -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            command, env=self.environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True
        )
        assert process.stdin is not None
        process.stdin.write(stdin)
        process.stdin.close()
        process.stdin = None
        return process

    def get(self, server: str = "a.registry.io", **env: str) -> Done:
        return self.run("docker-credential-ostiary", "get", stdin=server, **env)

    def ostiary(self, *words: str, **env: str) -> Done:
        return self.run("ostiary", "registry", *words, **env)

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.ostiary("status", "-o", "json").stdout)
        return found

    def serving(self, *options: str) -> ServedDaemon:
        return ServedDaemon(self, options)


class ServedDaemon:
    """Runs in the ``with`` block; leaving it sends SIGTERM, and it must end well."""

    def __init__(self, site: DaemonSite, options: Sequence[str]) -> None:
        self.site, self._options = site, options
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._ended = False

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            ["ostiary", "registry", "serve", *self._options],
            env=self.site.environment,
            cwd=self.site.folder,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.line("listening on")
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(SECONDS)
        self._reader.join(SECONDS)
        assert code in (0, -signal.SIGKILL), self.lines

    def line(self, text: str) -> str:
        """The first line on stderr with *text* in it, waited for."""

        def look() -> str | None:
            return next((line for line in self.lines if text in line), "" if self._ended else None)

        with self._news:
            line = self._news.wait_for(look, SECONDS)
        assert line, f"the daemon did not say {text!r}: {self.lines}"
        return line

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(SECONDS)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._news:
                self.lines.append(line)
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()
