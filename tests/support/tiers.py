"""Which tests run: pytest hooks and options that `tests/conftest.py` imports.

`make test` deselects tests marked ``slow`` and skips those that need a program which is not installed; the summary
says how many. ``--all`` runs everything, and fails if a program is missing. ``--rest`` is ``--all`` without the tests
that passed in the previous run, so that CI runs no test twice.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import NoReturn

import pytest

PASSED = "ostiary/passed"
MISSING = re.compile(r"(?:Skipped: )?missing: (.+)")
# Packages that need a compiler and system libraries.
MODULES = {"python-ldap": "ldap", "gssapi": "gssapi"}
# The most expensive files start first, so that no worker is left with a long one while the others are idle.
FOLDERS = ("e2e", "interop", "conformance", "fuzz", "project")


def missing(*needed: str) -> NoReturn:
    """Skip the running test because *needed* is not installed."""
    pytest.skip(f"missing: {', '.join(needed)}")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tiers")
    group.addoption("--all", action="store_true", help="run slow tests too, and fail where a program is missing")
    group.addoption("--rest", action="store_true", help="like --all, without the tests that passed in the last run")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", 'needs(*programs): what must be installed, or "root"')
    config.addinivalue_line("markers", "slow: expensive; runs in `make test-all` only")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Summary(config))


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        lacking = [program for program in mark.args if not _has(program)]
        if lacking:
            missing(*lacking)


def _has(needed: str) -> bool:
    if needed == "root":
        return os.geteuid() == 0
    if needed in MODULES:
        return importlib.util.find_spec(MODULES[needed]) is not None
    return shutil.which(needed) is not None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    deselected: list[pytest.Item] = []
    if config.option.rest:
        assert config.cache is not None
        passed = set(config.cache.get(PASSED, []))
        deselected = [item for item in items if item.nodeid in passed]
    elif not config.option.all and not any("::" in argument for argument in config.args):
        deselected = [item for item in items if item.get_closest_marker("slow")]
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        gone = set(deselected)
        items[:] = [item for item in items if item not in gone]
    sizes = {path: path.stat().st_size for path in {item.path for item in items}}
    items.sort(key=lambda item: (_rank(item.path), -sizes[item.path], item.path))


def _rank(path: Path) -> int:
    return next((rank for rank, folder in enumerate(FOLDERS) if folder in path.parts), len(FOLDERS))


class Summary:
    """In the process that reports: what passed, and which programs were missing for how many tests."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._everything = config.option.all or config.option.rest
        self._passed: set[str] = set()
        self._incomplete: set[str] = set()  # failed, or a part of it was skipped
        self._missing: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped:
            self._skipped(report, 1)
            self._incomplete.add(report.nodeid)
        elif report.failed:
            self._incomplete.add(report.nodeid)
        elif report.when == "call":
            self._passed.add(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            text = (self._config.rootpath / report.nodeid).read_text()
            self._skipped(report, len(re.findall(r"^\s*(?:async )?def test_", text, re.MULTILINE)))

    def _skipped(self, report: pytest.TestReport | pytest.CollectReport, tests: int) -> None:
        if isinstance(report.longrepr, tuple) and (reason := MISSING.match(report.longrepr[2])):
            for program in reason[1].split(", "):
                self._missing[program] += tests

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._everything and self._missing:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if (cache := getattr(self._config, "cache", None)) is not None:  # unless -p no:cacheprovider
            cache.set(PASSED, sorted(self._passed - self._incomplete))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._missing:
            return
        terminalreporter.section("not installed")
        for program, tests in self._missing.most_common():
            terminalreporter.line(f"{tests:5} tests need {program}")
        terminalreporter.line("`make test-all` installs what is missing (Debian 12, as root) and runs every test.")
