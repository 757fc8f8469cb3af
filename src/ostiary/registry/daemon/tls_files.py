"""The TLS context of the daemon's HTTP API, made again when its files change: a daemon outlives a certificate."""

from __future__ import annotations

import logging
import ssl
import threading

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.keys.openssl.session_tickets import turn_off_resumption
from ostiary.core.text import printable
from ostiary.core.watched_file import Fingerprint, fingerprint, is_settled
from ostiary.errors import ConfigurationError

log = logging.getLogger("ostiary.registry")


class DaemonTls:
    """*certificate* and *key* are the server's, and *client_ca* the authority of the clients. Used from any thread."""

    def __init__(self, certificate: str, key: str, client_ca: str, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._files = (certificate, key, client_ca)
        self._clock = clock
        self._lock = threading.Lock()
        self._seen = self._look()
        self._context = self._build()

    def context(self) -> ssl.SSLContext:
        """For the next connection. Files that cannot be used leave the old one in force."""
        with self._lock:
            look = self._look()
            if look != self._seen or not is_settled(look, self._clock):
                try:
                    self._context = self._build()
                except ConfigurationError as error:
                    if look != self._seen:
                        log.error("%s; the old one stays in force: %s", error.summary, error.cause)
                self._seen = look
            return self._context

    def _look(self) -> tuple[Fingerprint | None, ...]:
        return tuple(fingerprint(file) for file in self._files)

    def _build(self) -> ssl.SSLContext:
        certificate, key, client_ca = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_REQUIRED
        # Or a client whose certificate has expired would resume what it began before.
        turn_off_resumption(context)
        try:
            context.load_cert_chain(certificate, key, password="")
            context.load_verify_locations(client_ca)
        except OSError as error:
            raise ConfigurationError(
                "the TLS files of the credential daemon cannot be used",
                cause=getattr(error, "reason", None) or error.strerror or str(error),
                where=", ".join(printable(file) for file in self._files),
                hint="a certificate with its key, and the authority of the clients, in PEM",
                code="registry-socket-unusable",
            ) from None
        return context
