"""Puts a key that signs into an `ssl.SSLContext`, and tells what went wrong when a handshake fails because of it."""

from __future__ import annotations

import logging
import ssl

from ostiary.core.clock import SYSTEM_CLOCK
from ostiary.core.keys.openssl.library import context_pointer, load, unsupported
from ostiary.core.keys.openssl.provider import provider
from ostiary.core.keys.openssl.tables import take_failure
from ostiary.errors import OstiaryError
from ostiary.model import DeviceKey

log = logging.getLogger("ostiary.keys")
SECONDS_BETWEEN_LOGS = 10.0


def use_key(context: ssl.SSLContext, chain_path: str, key: DeviceKey) -> None:
    """Present the certificates in the file at *chain_path* in *context*, and sign by *key*.

    Raises `ValueError` if the two are not a pair, and `KeyUnusable` where this interpreter cannot do it. The context
    must not be in use yet. It keeps *key*.
    """
    library = load()
    try:
        keys = provider()
    except RuntimeError as error:
        raise unsupported(f"OpenSSL does not take a provider of ours: {error}") from None
    pointer = context_pointer(library, context)
    library.ERR_clear_error()
    if library.SSL_CTX_use_certificate_chain_file(pointer, chain_path.encode()) != 1:
        library.ERR_clear_error()
        raise ValueError("the certificate cannot be loaded as PEM")
    made = keys.make_key(key)
    try:
        used = library.SSL_CTX_use_PrivateKey(pointer, made)
        # A key of another type than the certificate's is taken without a word: only the check finds it alone.
        if used != 1 or library.SSL_CTX_check_private_key(pointer) != 1:
            library.ERR_clear_error()
            raise ValueError("the key does not belong to the certificate")
    finally:
        library.EVP_PKEY_free(made)
    _tell_failures(context)


class _TellsFailure:
    """In front of an `SSLSocket` or an `SSLObject`: a handshake that fails by the key says why.

    A client gets the error of the key in place of what OpenSSL makes of it, a bare "internal error". At a listener
    nobody waits for an exception, so there it is logged.
    """

    server_side: bool

    def do_handshake(self, *arguments: bool) -> None:
        take_failure()
        try:
            super().do_handshake(*arguments)  # type: ignore[misc]  # of the class behind this one
        except ssl.SSLError:
            failure = take_failure()
            if failure is None:
                raise
            if not self.server_side:
                raise failure from None
            _log_failure(failure)
            raise


def _tell_failures(context: ssl.SSLContext) -> None:
    for name in ("sslsocket_class", "sslobject_class"):
        behind: type = getattr(context, name)
        if not issubclass(behind, _TellsFailure):
            setattr(context, name, type(f"Telling{behind.__name__}", (_TellsFailure, behind), {}))


def _log_failure(failure: BaseException) -> None:
    global _logged_at
    now = SYSTEM_CLOCK.monotonic()
    # Every client that tries again causes one.
    if now - _logged_at >= SECONDS_BETWEEN_LOGS:
        _logged_at = now
        cause = failure.lines() if isinstance(failure, OstiaryError) else [("cause", str(failure))]
        log.error("a TLS handshake failed: %s", failure.args[0] if failure.args else "", extra=dict(cause))


_logged_at = float("-inf")
