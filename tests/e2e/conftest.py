"""Components that a test needs: without one it is skipped, but in CI it fails, so that green means all of it."""

from __future__ import annotations

import os
import shutil

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*commands): programs that must be installed")


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        missing = [command for command in mark.args if shutil.which(command) is None]
        if missing and os.environ.get("CI") == "true":
            pytest.fail(f"missing: {', '.join(missing)}")
        if missing:
            pytest.skip(f"missing: {', '.join(missing)}")
