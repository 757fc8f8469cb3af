"""Headless Chromium in the hands of a test: what a person sees, clicks and types.

    with Chromium.running() as chromium:
        chromium.person(); chromium.go(url); chromium.fill("Name", "alice"); chromium.click("button", "Sign in")

Chromium is Debian's. What drives it (Playwright), and what judges the pages (axe), comes from npm.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from tests.support.npm import installed

SOURCE = Path(__file__).parent / "browser"
PHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1000, "height": 700}


class Chromium:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._answer()

    @classmethod
    @contextmanager
    def running(
        cls,
        *arguments: str,
        program: str = "chromium",
        environment: Mapping[str, str] | None = None,
    ) -> Iterator[Self]:
        """*arguments* and *environment* are Chromium's own, besides what all tests need; *program* may start it."""
        found = shutil.which(program)
        assert found is not None, "a test that comes here needs chromium"
        with subprocess.Popen(
            ["node", "driver.js", found, *arguments],
            cwd=installed(SOURCE),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **(environment or {})},
            text=True,
        ) as process:
            yield cls(process)
            assert process.stdin is not None
            process.stdin.close()
            process.wait(30)

    def person(self, **look: Any) -> None:
        """Somebody else, whose browser knows nothing yet."""
        self("person", look={"viewport": DESKTOP, "colorScheme": "light", **look})

    def go(self, url: str) -> int:
        status: int = self("go", url=url)
        return status

    def fill(self, label: str, text: str) -> None:
        self("fill", label=label, text=text)

    def click(self, role: str, name: str) -> None:
        self("click", role=role, name=name)

    def see(self, text: str) -> None:
        """Wait until *text* stands on the page, however many pages lie in between."""
        self("see", text=text)

    def press(self, *keys: str) -> None:
        self("press", keys=keys)

    @property
    def text(self) -> str:
        return str(self("text"))

    @property
    def url(self) -> str:
        return str(self("url"))

    def __call__(self, step: str, **parts: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": step, **parts}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the browser has ended"
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer["value"]
