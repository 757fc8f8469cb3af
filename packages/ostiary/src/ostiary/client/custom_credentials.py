"""Credential sources of the application, used instead of the kubeconfig's user: ``connect(source=...)``.

This is `UpdateTransportConfig` of the 2018 proposal. The source only fetches a token or client certificate. The
`Authenticator` that also runs exec plugins decides when to fetch, shares one fetch between callers, handles 401 and
backs off after failures.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime
from typing import Protocol, runtime_checkable

from ostiary.client.authenticator import Authenticator, shared_authenticator
from ostiary.client.retry_on_401 import Rejection
from ostiary.core.clock import Clock
from ostiary.core.redaction import redact
from ostiary.core.text import fits_token_header, printable
from ostiary.core.tls import parse_certificate
from ostiary.errors import ConfigurationError, CredentialError, SourceFailed
from ostiary.model import ClientCertificate, Credential, Secret


@runtime_checkable
class OwnSource(Protocol):
    """Fetch the application's credential.

    Called in its own thread, one call at a time: before the first request, shortly before the credential expires, and
    after the server rejected it. It may block. Raise `CredentialError` to give the cause. Any exception means that
    there is no credential: no request is sent, and the next call follows after an exponential backoff. A credential
    fetched earlier stays in use until it expires.
    """

    def fetch(self, rejection: Rejection | None) -> Credential:
        """Return a credential.

        *rejection* is the server's response if it rejected the last one: do not return that again.
        """


@runtime_checkable
class AsyncOwnSource(Protocol):
    """`OwnSource` as a coroutine.

    It runs in the event loop in which `connect` was called, so it can use objects of that loop. If there was none, it
    runs in a loop of its own.
    """

    async def fetch_async(self, rejection: Rejection | None) -> Credential: ...


def own_authenticator(source: OwnSource | AsyncOwnSource, *, user: str, seconds: float, clock: Clock) -> Authenticator:
    """Return the authenticator for *source*. Connections of this process with the same source object share it."""
    loop = _running_loop() if isinstance(source, AsyncOwnSource) else None
    fetcher = _Fetcher(source, user=user, seconds=seconds, loop=loop)
    # Keyed by identity: equal sources may still differ. The authenticator references the object, so its id is not
    # reused.
    return shared_authenticator(("own", id(source), id(loop), clock), lambda: Authenticator(fetcher, clock=clock))


def check_source(source: object) -> None:
    """Raise `ConfigurationError` if *source* is not a credential source."""
    is_sync, is_async = isinstance(source, OwnSource), isinstance(source, AsyncOwnSource)
    if is_sync and is_async:
        raise _no_source(source, "it has both fetch and fetch_async", hint="keep the one that connections should call")
    if isinstance(source, type):
        raise _no_source(source, "it is a class", hint="pass an object of it")
    if not (is_sync or is_async):
        hint = "give it a method fetch(rejection), or async def fetch_async(rejection), that returns a Credential"
        raise _no_source(source, "it has neither fetch nor fetch_async", hint=hint)


class _Fetcher:
    """Adapts a source to the `Plugin` interface of `Authenticator`."""

    def __init__(
        self,
        source: OwnSource | AsyncOwnSource,
        *,
        user: str,
        seconds: float,
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        self._source, self._user, self._seconds, self._loop = source, user, seconds, loop

    def is_interactive(self) -> bool:
        return False

    def run(self, rejection: Rejection | None) -> Credential:
        try:
            credential = self._fetch(rejection)
        except CredentialError:
            raise
        except Exception as error:
            raise self._failure(error) from error
        return self._checked(credential)

    def expired_error(self, cause: str) -> CredentialError:
        hint = "compare this machine's clock with that of whoever issued it"
        return self._invalid(cause, hint=hint)

    def _fetch(self, rejection: Rejection | None) -> object:
        if isinstance(self._source, OwnSource):
            return self._source.fetch(rejection)
        awaited = self._bounded(self._source, rejection)
        if self._loop is None:
            return asyncio.run(awaited)
        if self._loop.is_closed():
            awaited.close()
            raise RuntimeError("the event loop in which connect was called is closed")
        future = asyncio.run_coroutine_threadsafe(awaited, self._loop)
        try:
            # Longer than the coroutine's own timeout, which does not fire while the loop is blocked.
            return future.result(self._seconds + 1)
        finally:
            future.cancel()

    async def _bounded(self, source: AsyncOwnSource, rejection: Rejection | None) -> Credential:
        return await asyncio.wait_for(source.fetch_async(rejection), self._seconds)

    def _checked(self, credential: object) -> Credential:
        if not isinstance(credential, Credential):
            raise self._invalid(
                f"it returned {type(credential).__name__}", hint="return Credential(token=Secret(...), expires_at=...)"
            )
        token, expires_at = credential.token, credential.expires_at
        if token is None and credential.certificate is None and credential.basic is None:
            raise self._invalid(
                "its credential has neither a token nor a certificate", hint="set token=, or certificate="
            )
        if token is not None and not isinstance(token, Secret):
            raise self._invalid("its token is not a Secret", hint="wrap it: Credential(token=Secret(text))")
        if token is not None and not fits_token_header(token.reveal()):
            raise self._invalid(
                "its token holds a line break, a space or another character that no header can carry",
                hint="return the token alone, without white space around it and without Bearer",
            )
        if expires_at is not None and not (isinstance(expires_at, datetime) and expires_at.tzinfo is not None):
            raise self._invalid(
                "its expires_at is not a time with its zone", hint="use datetime.now(UTC) + timedelta(...)"
            )
        # Always a new object: a source may return the same one again, which would then count as already rejected.
        return replace(credential, certificate=self._certificate(credential.certificate))

    def _certificate(self, certificate: object) -> ClientCertificate | None:
        if certificate is None:
            return None
        if not isinstance(certificate, ClientCertificate):
            raise self._invalid("its certificate is not a ClientCertificate", hint="use ClientCertificate(chain, key)")
        try:
            if certificate.device_key is not None:
                # Lazy import, because it imports cryptography.
                from ostiary.keys.pairing import pair_with_key

                return pair_with_key(certificate.chain_pem, certificate.device_key)
            parse_certificate(certificate.chain_pem, certificate.key_pem.reveal())
        except ValueError as error:
            raise self._invalid(str(error), hint="return a PEM certificate and the key that belongs to it") from None
        return certificate

    def _failure(self, error: Exception) -> SourceFailed:
        if isinstance(error, TimeoutError) and isinstance(self._source, AsyncOwnSource):
            return self._error(
                f"fetch_async did not return within {self._seconds:g} s, or its event loop was blocked",
                hint="do not call a blocking client within the loop; plugin_seconds of connect is the limit",
            )
        text = printable(redact(str(error)))
        cause = f"it raised {type(error).__name__}" + (f": {text}" if text else "")
        return self._error(cause, hint="the exception that this one is caused by says where")

    def _invalid(self, cause: str, *, hint: str) -> SourceFailed:
        return self._error(cause, hint=hint, code="own-source-invalid")

    def _error(self, cause: str, *, hint: str, code: str = "own-source-failed") -> SourceFailed:
        name = type(self._source).__name__
        summary = f"no credential for user {self._user!r}" if self._user else "no credential"
        return SourceFailed(summary, cause=f"source {name}: {cause}", hint=hint, code=code)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _no_source(source: object, cause: str, *, hint: str) -> ConfigurationError:
    name = source.__name__ if isinstance(source, type) else type(source).__name__
    return ConfigurationError(f"{name} cannot be used as a source of credentials", cause=cause, hint=hint)
