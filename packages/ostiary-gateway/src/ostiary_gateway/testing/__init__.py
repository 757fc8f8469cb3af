"""Test support for plugin authors: a fake clock, and the conformance suites."""

from ostiary.testing import FakeClock

__all__ = ["FakeClock"]
