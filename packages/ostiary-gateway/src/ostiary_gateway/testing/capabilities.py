"""What all suites check alike: the members of a provider, as the gateway checks them when it starts."""

from __future__ import annotations

from ostiary_gateway.contract_violations import flaws


def check_members(plugin_type: str, provider: object) -> None:
    """Fail if *provider* lacks a method of its contract, or misspells or misshapes an ability or a trait."""
    messages = [f"{flaw.message} ({flaw.hint})" for flaw in flaws(plugin_type, provider)]
    assert not messages, "; ".join(messages)
