"""Every Python block and every ``ostiary`` command of README and docs runs, against a real server and plugin.

Pages about a gateway of their own are left to `test_gateway_docs`, which follows them from top to bottom.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.apiserver import ApiServer
from tests.support.plugins import PluginScript, exec_user, write_kubeconfig
from tests.support.walkthrough import is_followed, sections

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> Iterator[tuple[str, str]]:
    for page in PAGES:
        alone = "".join(section for section in sections(page) if not is_followed(section))
        for number, (indent, found, text) in enumerate(BLOCK.findall(alone)):
            if found == language:
                lines = [line.removeprefix(indent) for line in text.splitlines()]
                yield f"{page.relative_to(ROOT)}[{number}]", "\n".join(lines)


def commands() -> Iterator[tuple[str, str]]:
    for name, text in blocks("console"):
        for line in text.splitlines():
            if line.startswith("$ ostiary "):
                yield f"{name} {line}", line.removeprefix("$ ")


@pytest.fixture
def reader(api: ApiServer, plugin: PluginScript, ca_data: str, tmp_path: Path) -> dict[str, str]:
    """The environment of somebody who follows the docs: a kubeconfig that works, and a plugin of their own."""
    api.rules.tokens = {"token-1"}
    kubeconfig = write_kubeconfig(
        tmp_path / "config",
        server=api.url,
        user=exec_user(plugin.path),
        cluster={"certificate-authority-data": ca_data},
    )
    (tmp_path / "my-login-plugin").symlink_to(plugin.path)
    plugin.answer(token="token-1", expires_at="2999-01-01T00:00:00Z")
    scripts = str(Path(sys.executable).parent)
    return {**os.environ, "KUBECONFIG": str(kubeconfig), "PATH": f"{scripts}:{os.environ['PATH']}"}


@pytest.mark.parametrize("code", [pytest.param(text, id=name) for name, text in blocks("python")])
def test_every_python_block_runs(code: str, reader: dict[str, str], api: ApiServer, tmp_path: Path) -> None:
    if '"watch"' in code:
        api.first_event = {"type": "ADDED", "object": {}}
    done = subprocess.run(
        [sys.executable, "-W", "error::SyntaxWarning", "-c", code],
        env=reader,
        cwd=ROOT if "examples/" in code else tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", [pytest.param(text, id=name) for name, text in commands()])
def test_every_ostiary_command_runs(command: str, reader: dict[str, str], plugin: PluginScript, tmp_path: Path) -> None:
    if " check " in command:
        # A plugin that answers in the version it is asked for, as the one that a reader would write.
        plugin.path.write_text(
            "#!/bin/sh\n"
            'version=$(printf %s "$KUBERNETES_EXEC_INFO" | sed \'s/.*"apiVersion":"\\([^"]*\\)".*/\\1/\')\n'
            "expiry=$(date -u -d +1hour +%Y-%m-%dT%H:%M:%SZ)\n"
            'status="{\\"token\\":\\"t0ken\\",\\"expirationTimestamp\\":\\"$expiry\\"}"\n'
            'printf \'{"kind":"ExecCredential","apiVersion":"%s","status":%s}\' "$version" "$status"\n'
        )
    folder = ROOT if "examples/" in command else tmp_path
    done = subprocess.run(
        shlex.split(command, comments=True), env=reader, cwd=folder, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_demo_stays_signed_in() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "examples.stay_signed_in",
            "--requests",
            "6",
            "--interval",
            "0",
            "--token-seconds",
            "60",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert "6 requests" in done.stdout
    assert "none lost" in done.stdout


def test_the_gateway_demo_shows_what_it_says() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.gateway"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"her stream is cut after \d+ ms", done.stdout)
