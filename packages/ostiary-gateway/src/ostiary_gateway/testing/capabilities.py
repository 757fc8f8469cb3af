"""The check of a provider's members that all suites share, as the gateway does it at startup."""

from __future__ import annotations

from ostiary_gateway.contract_violations import flaws


def check_members(plugin_type: str, provider: object) -> None:
    """Fail if *provider* lacks a method of its contract, or if a capability or trait has a wrong name or signature."""
    messages = [f"{flaw.message} ({flaw.hint})" for flaw in flaws(plugin_type, provider)]
    assert not messages, "; ".join(messages)
