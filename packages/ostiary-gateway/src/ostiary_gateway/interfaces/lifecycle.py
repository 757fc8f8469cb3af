"""Providers that hold something open: a file, a connection, a task."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Closes(Protocol):
    """A provider of any type that has something to close.

    Called once, when the gateway ends or a reload has replaced the provider, after its last request. A provider that
    was built and never used is closed, too. An exception is ignored.
    """

    async def close(self) -> None: ...


# Providers that can say, before anybody signs in, whether the system they need can be asked, and accepts us.


@runtime_checkable
class Probes(Protocol):
    """An identity, group, authorization or admission provider, or a token store, that can try its outside system.

    Called by ``ostiary-gateway serve --check --online``, with a time limit, and never while the gateway serves. Ask for
    something that changes nothing and needs no person: an issuer's metadata and keys, a bind of the search account.
    Returns a short text that says what answered; raises `ostiary.errors.ProviderError` if it cannot be asked.
    """

    async def probe(self) -> str: ...


@runtime_checkable
class ProbesRedirectUri(Protocol):
    """An identity provider that can try, without a person, whether its issuer accepts a redirect URI.

    Called as `probe` is. Send an authorization request that no person has to see (``prompt=none``), and follow nothing.
    Return True if the issuer accepts *redirect_uri*, and False if that cannot be told, because it shows its login page
    in any case; raise `ostiary.errors.ProviderError` if it rejects the request.
    """

    async def probe_redirect_uri(self, redirect_uri: str) -> bool: ...
