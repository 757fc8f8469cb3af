"""The real kubectl, run with one kubeconfig."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.kubectl import find_kubectl
from tests.support.tiers import missing

SECONDS = 30


class Kubectl:
    """kubectl with one kubeconfig; *environment* is added to ours."""

    def __init__(self, kubeconfig: Path, **environment: str) -> None:
        if find_kubectl() is None:
            missing("kubectl")
        self.kubeconfig = kubeconfig
        self.environment = environment

    def __call__(self, *args: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        return subprocess.run(
            self._command(args),
            input=stdin if stdin is not None else "",
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    def output(self, *args: str, stdin: str | None = None) -> str:
        """What it prints; a failure fails the test, with what it said."""
        done = self(*args, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @contextmanager
    def running(self, *args: str) -> Iterator[subprocess.Popen[str]]:
        """Start it, and end it when the block does."""
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            self._command(args), env=self._environment(), stdin=pipe, stdout=pipe, stderr=pipe, text=True, bufsize=1
        )
        with process:
            try:
                yield process
            finally:
                process.terminate()

    def _command(self, args: tuple[str, ...]) -> list[str]:
        cache = self.kubeconfig.parent / "kubectl-cache"
        return [str(find_kubectl()), "--kubeconfig", str(self.kubeconfig), "--cache-dir", str(cache), *args]

    def _environment(self) -> dict[str, str]:
        return {**os.environ, **self.environment}
