"""Lifecycle of providers: release resources, and check connectivity before serving."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Closes(Protocol):
    """A provider of any type that has resources to release.

    Called once, after the provider's last request, when the gateway ends or a reload has replaced it. A provider that
    was built but never used is closed, too. An exception is ignored.
    """

    async def close(self) -> None: ...


# Checks before serving.


@runtime_checkable
class Probes(Protocol):
    """A provider or token store that can check the connection to its external system.

    For identity, group, authorization and admission providers, and token stores. Called by ``ostiary-gateway serve
    --check --online``, with a time limit, and never while the gateway serves. Send a request that changes nothing and
    needs no user: an issuer's metadata and keys, a bind of the search account. Return a short text that names what
    responded; raise `ostiary.errors.ProviderError` if it is unreachable.
    """

    async def probe(self) -> str: ...


@runtime_checkable
class ProbesRedirectUri(Protocol):
    """An identity provider that can check without a user whether its issuer accepts a redirect URI.

    Called like `probe`. Send an authorization request without user interaction (``prompt=none``), and follow no
    redirect. Return True if the issuer accepts *redirect_uri*, and False if that is unknown because it shows its login
    page in any case; raise `ostiary.errors.ProviderError` if it rejects the request.
    """

    async def probe_redirect_uri(self, redirect_uri: str) -> bool: ...
