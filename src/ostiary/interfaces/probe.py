"""Providers that can say, before anybody signs in, whether the system they need can be asked."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Probes(Protocol):
    """An identity, group, authorization or admission provider, or a token store, that can try its outside system.

    Called by ``ostiary serve --check --online``, with a time limit, and never while the gateway serves. Ask for
    something that changes nothing and needs no person: an issuer's metadata and keys, a bind of the search account.
    Returns a short text that says what answered; raises `ostiary.errors.ProviderError` if it cannot be asked.
    """

    async def probe(self) -> str: ...
