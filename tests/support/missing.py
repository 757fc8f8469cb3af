"""A program that is not installed: no test for a developer without it, and a failure where everything must run."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def missing(*programs: str) -> NoReturn:
    say = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
    say(f"missing: {', '.join(programs)}")
    raise AssertionError
