"""Shipped for those who build on ostiary: a clock to turn by hand, and the conformance suites."""

from ostiary.testing import FakeClock

__all__ = ["FakeClock"]
