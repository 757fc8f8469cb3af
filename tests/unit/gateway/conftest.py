"""Fixtures of the gateway's unit tests."""

from tests.unit.gateway.signing_in import make

__all__ = ["make"]
