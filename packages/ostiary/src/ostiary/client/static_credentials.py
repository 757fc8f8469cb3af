"""Credentials that are inline in the kubeconfig, or in files that it names and that other processes rotate.

The counterpart of the authenticator for users without an exec plugin: same interface, no process.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from ostiary.client.retry_on_401 import Rejection
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.text import fits_token_header
from ostiary.core.tls import parse_certificate
from ostiary.errors import CredentialError, KeyUnusable
from ostiary.model import ClientCertificate, Credential, DeviceKey, Place, Secret

log = logging.getLogger("ostiary.client")

# Projected service account tokens are rotated in place. client-go reads them again after 50 s.
TOKEN_FILE_SECONDS = 50.0
CERTIFICATE_FILE_SECONDS = 1.0


class FixedSource:
    """A credential that never changes."""

    def __init__(self, credential: Credential) -> None:
        self.latest: Credential | None = credential
        self._credential = credential

    def current(self) -> Credential:
        return self._credential

    def replacement(self, rejected: Credential, rejection: Rejection) -> Credential | None:
        return None

    def note_accepted(self, credential: Credential) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Files:
    """The files that a user's credential is read from. Each may be absent."""

    token: str | None = None
    certificate: str | None = None
    key: str | None = None
    chain: bytes | None = None
    """The certificate itself, if it is in the kubeconfig and its key is elsewhere."""


# Open the device key. Called at first use; the key then stays open.
OpenKey: TypeAlias = "Callable[[], DeviceKey]"


class FileSource:
    """A credential whose token or certificate is in files, which are read again periodically.

    If a read fails, the previous content stays in use: the file may be in the middle of being replaced.
    """

    def __init__(
        self,
        files: Files,
        *,
        base: Credential,
        where: Place,
        clock: Clock | None = None,
        open_key: OpenKey | None = None,
    ) -> None:
        self._files, self._base, self._where = files, base, where
        self._open_key = open_key
        self._device_key: DeviceKey | None = None
        self._clock = clock or SYSTEM_CLOCK
        self._lock = threading.Lock()
        self._interval = CERTIFICATE_FILE_SECONDS if files.certificate else TOKEN_FILE_SECONDS
        self._latest: Credential | None = None
        self._read_again_at = float("-inf")

    @property
    def latest(self) -> Credential:
        """The credential read last. A request that its caller authenticates still presents the certificate."""
        return self._latest or self.current()

    def current(self) -> Credential:
        latest = self._latest
        if latest is not None and self._clock.monotonic() < self._read_again_at:
            return latest
        with self._lock:
            return self._reread()

    def replacement(self, rejected: Credential, rejection: Rejection) -> Credential | None:
        with self._lock:
            latest = self._reread()
        return latest if latest is not rejected else None

    def note_accepted(self, credential: Credential) -> None:
        pass

    def _reread(self) -> Credential:
        self._read_again_at = self._clock.monotonic() + self._interval
        try:
            token, certificate = self._token(), self._certificate()
        except KeyUnusable:
            # A certificate may be rotated before its key is.
            if self._latest is None:
                raise
            log.warning("the credential's new certificate does not fit its key; using the previous one")
            return self._latest
        except (OSError, ValueError) as error:
            if self._latest is None:
                raise self._unreadable(error) from None
            log.warning("the credential's files cannot be read (%s); using their previous content", _why(error))
            return self._latest
        if self._latest is None or (token, certificate) != (self._latest.token, self._latest.certificate):
            self._latest = Credential(token, certificate, basic=self._base.basic)
        return self._latest

    def _token(self) -> Secret | None:
        if self._files.token is None:
            return self._base.token
        try:
            return self._token_in(self._files.token)
        except (OSError, ValueError) as error:
            # As in client-go, the inline token is used while the token file is unreadable.
            if self._base.token is None:
                raise
            log.warning("the token file cannot be read (%s); the token in the kubeconfig is sent instead", _why(error))
            return self._base.token

    def _token_in(self, path: str) -> Secret:
        with open(path, encoding="utf-8") as file:
            text = file.read().strip()
        if not text:
            raise ValueError("the token file is empty")
        if not fits_token_header(text):
            raise ValueError(
                "the token in the file holds a line break, a space or another character no header can carry"
            )
        return Secret(text)

    def _certificate(self) -> ClientCertificate | None:
        if self._open_key is not None:
            return self._pair(self._open_key)
        if self._files.certificate is None or self._files.key is None:
            return self._base.certificate
        with (
            open(self._files.certificate, encoding="utf-8") as certificate,
            open(self._files.key, encoding="utf-8") as key,
        ):
            return parse_certificate(certificate.read(), key.read())

    def _pair(self, open_key: OpenKey) -> ClientCertificate:
        # Lazy import: it takes 30 ms and only device keys need it.
        from ostiary.keys.pairing import pair_with_key

        chain = self._files.chain
        if chain is None:
            with open(self._files.certificate or "", "rb") as file:
                chain = file.read()
        if self._device_key is None:
            self._device_key = open_key()
        return pair_with_key(chain.decode("utf-8", "replace"), self._device_key, where=self._where)

    def _unreadable(self, error: OSError | ValueError) -> CredentialError:
        return CredentialError(
            "no credential: its files cannot be read",
            cause=_why(error),
            where=self._where,
            hint="the kubeconfig names these files; check that they exist and that this user can read them",
            code="token-file-unreadable",
        )


def _why(error: OSError | ValueError) -> str:
    # str() of a UnicodeDecodeError quotes the bytes.
    if isinstance(error, UnicodeDecodeError):
        return "the file is not UTF-8 text"
    if isinstance(error, OSError):
        return f"{error.filename}: {os.strerror(error.errno or 0)}"
    return str(error)
